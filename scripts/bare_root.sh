#!/usr/bin/env bash
# Proves two things in a bare Debian that debootstrap makes: the Dockerfile's RUN commands work, and so do README's two
# commands, on a machine with python3, make, git and a C compiler and nothing else.
#   scripts/bare_root.sh [FOLDER]      needs root and debootstrap; KEEP=1 keeps the folder
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
root=${1:-$(mktemp -d)/root}
[ "$(id -u)" = 0 ] || { echo "SKIPPED: this needs root"; exit 0; }
command -v debootstrap >/dev/null || { echo "SKIPPED: this needs debootstrap (apt-get install debootstrap)"; exit 0; }
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
  sed -nE 's#^(URIs:|deb( \[[^]]*\])?) +(https?://[^ ]+).*#\3#p' | head -n 1 || true)
[ -e "$root/usr" ] || debootstrap --variant=minbase \
  --include=python3,python3-venv,python3-dev,make,git,gcc,g++,libc6-dev,ca-certificates "$suite" "$root" ${mirror:+"$mirror"} >/dev/null
inside() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
  $(env | grep -E '^(PIP|SSL|REQUESTS|CURL)_' || true) bash -euc "$1"; }
mount --bind /proc "$root/proc"; mount --bind /dev "$root/dev"
mounted=""
trap 'umount -l "$root/dev" "$root/proc" $mounted; [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"' EXIT
# How this machine reaches its package registry and whom it trusts is its own affair.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
for file in /etc/pip.conf /root/.config/pip/pip.conf /root/.pip/pip.conf; do
  [ ! -e "$file" ] || install -D "$file" "$root$file"
done
for folder in $( (cat /etc/pip.conf /root/.config/pip/pip.conf /root/.pip/pip.conf; env | grep '^PIP_') 2>/dev/null | grep -oE '/[A-Za-z0-9_./-]+' | sed -E 's#^/*(/[^/]+/[^/]+).*#\1#' | sort -u); do
  case "$folder" in /opt/*|/srv/*|/mnt/*) if [ -d "$folder" ]; then  # packages that lie on this machine
    mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; mount -o remount,bind,ro "$root$folder"; mounted="$mounted $root$folder"; fi;; esac
done
[ ! -d /etc/ssl/certs ] || cp -L --remove-destination /etc/ssl/certs/* "$root/etc/ssl/certs/" 2>/dev/null || true

# A folder that was kept has a user and a clone of the time before.
inside 'userdel -r gossamer 2>/dev/null || true; rm -rf /root/gossamer'
echo "== the Dockerfile's commands"
mkdir -p "$root/gossamer"
(cd "$here" && cp -r pyproject.toml constraints.txt README.md LICENSE src "$root/gossamer/")
inside 'python3 -m venv /opt/python'
torch=$(sed -n 's/^ARG TORCH=//p' "$here/Dockerfile") extras=$(sed -n 's/^ARG EXTRAS=//p' "$here/Dockerfile")
sed -n 's/^RUN //p' "$here/Dockerfile" | while read -r command; do
  echo "-- $command"
  inside "cd /gossamer; export PATH=/opt/python/bin:\$PATH TORCH='$torch' TORCH_INDEX= EXTRAS='$extras'; $command" </dev/null 2>&1 | tail -n 1 | cut -c1-200
done
inside 'cd /tmp; /opt/python/bin/gossamer list >/dev/null; /opt/python/bin/gossamer train CartPole-v1 topology:gossip --num-learners 2 \
  --placement cluster --total-env-steps 20000 --run-folder /tmp/run' 2>&1 | tail -n 1

echo "== README's two commands"
git clone -q "$here" "$root/root/gossamer"
inside 'cd /root/gossamer; make train ARGS="--stop-after-seconds 45"' 2>&1 | tail -n 2
inside 'cd /root/gossamer; make test ARGS="tests/ops tests/config"' 2>&1 | tail -n 1
