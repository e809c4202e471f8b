"""Hosts made of network namespaces: an address, a core and a Ray node each, on one machine.

Needs root, iproute2 and Ray. A cable can be cut and healed, a host killed as a whole, and another one joins.

    python benchmarks/cluster/hosts.py up 2       # prints how to train on them
    python benchmarks/cluster/hosts.py down
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORK, PORT = "10.77.0", 6399
BRIDGE = "gossamer-br"
PYTHON_FOLDER = Path(sys.executable).parent
STORE_BYTES = 300_000_000


def why_not() -> str:
    """Return what hosts need and is missing; empty: nothing."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "iproute2"
    if not (PYTHON_FOLDER / "ray").exists():
        return "Ray: pip install gossamer[cluster]"
    made = subprocess.run(["ip", "netns", "add", "gossamer-try"], capture_output=True, check=False)
    if made.returncode:
        return "network namespaces"
    subprocess.run(["ip", "netns", "del", "gossamer-try"], check=True)
    return ""


class Hosts:
    """Hosts 1 to N, of which the first is the cluster's head; a context that ends what it has started.

    Args:
        count: N.
        cpus: that Ray believes each to have.
    """

    def __init__(self, count: int, *, cpus: int = 4):
        self.count, self.cpus = count, cpus
        self.cores = sorted(os.sched_getaffinity(0))
        self.address = f"{NETWORK}.1:{PORT}"
        # `ray start` of a head asks for a token where the user has one, of a worker it shows none unasked.
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    def __enter__(self) -> Hosts:
        self.down()
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "up")
        for host in range(1, self.count + 1):
            self.join(host)
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def join(self, host: int) -> None:
        """Make a host, if it is not there, and start its Ray node."""
        name, cable = f"gossamer{host}", f"gsm{host}"
        if not Path(f"/run/netns/{name}").exists():
            _ip("netns", "add", name)
            _add_cable(cable, name)
            _ip("link", "set", cable, "master", BRIDGE, "up")
            _ip("-n", name, "addr", "add", f"{NETWORK}.{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
        words = [
            str(PYTHON_FOLDER / "ray"),
            "start",
            f"--node-ip-address={NETWORK}.{host}",
            f"--num-cpus={self.cpus}",
            f"--object-store-memory={STORE_BYTES}",
            "--disable-usage-stats",
        ]
        if host == 1:
            words += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        else:
            words += [f"--address={self.address}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if self.start(host, words, **quiet).wait(60):
            raise RuntimeError(f"Ray did not start on host {host}: {' '.join(words)}")

    def start(
        self, host: int, words: Sequence[str], *, cores: int = 1, **more: object
    ) -> subprocess.Popen[bytes]:
        """Start a program on a host, on so many of the machine's cores."""
        first = (host - 1) % len(self.cores)
        own = [self.cores[(first + i) % len(self.cores)] for i in range(cores)]
        where = ["ip", "netns", "exec", f"gossamer{host}", "taskset", "-c", ",".join(map(str, own))]
        path = f"{PYTHON_FOLDER}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **self.token, "PATH": path, "RAY_ADDRESS": self.address}
        return subprocess.Popen([*where, *words], env=environment, **more)  # type: ignore[call-overload]

    def cut(self, host: int) -> None:
        """Pull a host's cable."""
        _ip("link", "set", f"gsm{host}", "down")

    def heal(self, host: int) -> None:
        """Put it back."""
        _ip("link", "set", f"gsm{host}", "up")

    def pids(self, host: int) -> list[int]:
        """Return the processes of a host."""
        found = subprocess.run(
            ["ip", "netns", "pids", f"gossamer{host}"], capture_output=True, text=True, check=False
        )
        return [int(x) for x in found.stdout.split()]

    def kill(self, host: int) -> None:
        """End a whole host at once."""
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def down(self) -> None:
        """End all hosts, also those that somebody else has left."""
        for path in sorted(Path("/run/netns").glob("gossamer[0-9]*")):
            host = int(path.name.removeprefix("gossamer"))
            until = time.monotonic() + 10.0
            while self.pids(host) and time.monotonic() < until:
                self.kill(host)
                time.sleep(0.1)
            _ip("netns", "del", path.name)
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "del", f"gsm{host}")  # the kernel takes it away too, some time
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", BRIDGE)


def _add_cable(cable: str, name: str) -> None:
    """Join a namespace to the machine; the kernel may still be taking an older cable of that name away."""
    until = time.monotonic() + 10.0
    while True:
        try:
            return _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        except subprocess.CalledProcessError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["up", count]:
            if missing := why_not():
                sys.exit(f"hosts need {missing}")
            hosts = Hosts(int(count)).__enter__()
            token = " ".join(f"{name}={value}" for name, value in hosts.token.items())
            print(f"ip netns exec gossamer1 env {token} gossamer train ... --placement cluster")
        case ["down"]:
            Hosts(0).down()
        case _:
            sys.exit(str(__doc__))
