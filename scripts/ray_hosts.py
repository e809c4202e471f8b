"""Print the configuration that `ray up` reads, made from the CSV of workers of multi-learner IMPALA.

    python scripts/ray_hosts.py workers.csv > hosts.yaml

The CSV has a row a process: `job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username`. Ray needs the machines alone: the
first learner's is the head, and Ray finds out by itself how many cores and GPUs each has. Passwords are not taken: ssh
keys do without one lying in a file.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gossamer.errors import ConfigError
from gossamer.system.reading import clipped, expand, read_plain, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

JOBS = ("learner", "actor")
NEEDED = ("job", "ip")
KNOWN = (*NEEDED, "tf_port", "cuda_visible_devices", "ssh_port", "ssh_username")
CHECKOUT, PYTHON = "~/gossamer", "python3.11"
LOCAL = ("localhost", "127.0.0.1", "::1")
MAX_BYTES = 1 << 20
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")


def main() -> int:
    """Print the configuration; return the exit code: 2, and one line, for a CSV that cannot be used."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("file", metavar="FILE.csv", help=f"its first line is {','.join(KNOWN)}")
    try:
        print(ray_configuration(read_hosts(parser.parse_args().file)))
    except ConfigError as error:
        print(f"{parser.prog}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0


class Row(NamedTuple):
    """A process of the CSV."""

    job: str
    host: str
    devices: tuple[str, ...]
    """GPUs that it sees."""
    ssh_port: str
    ssh_user: str


def read_hosts(path: str) -> list[Row]:
    """Return the rows of a CSV of workers.

    Raises:
        ConfigError: it cannot be read, holds a password, or a row that makes no sense.
    """
    try:
        text = read_plain(expand(path), MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason
        raise ConfigError(f"{clipped(path)} cannot be read: {reason}") from None
    table = csv.DictReader(io.StringIO(text), skipinitialspace=True, restkey="", restval="")
    columns = [x.strip() for x in table.fieldnames or ()]
    table.fieldnames = columns
    for name in NEEDED:
        if name not in columns:
            raise ConfigError(
                f"{clipped(path)} has no column {name}; its first line must be {','.join(KNOWN)}"
            )
    rows: list[Row] = []
    seen: dict[tuple[str, str], int] = {}
    for number, row in enumerate(table, 2):
        for column in columns:
            if "password" in column.lower() and row.get(column, "").strip():
                raise ConfigError(
                    f"{clipped(path)}, line {number} has a password in column {clipped(column)}: others can read it there; "
                    "leave it empty, and let ssh use a key (ssh-copy-id USER@HOST)"
                )
        made = _row(path, number, row)
        port = row.get("tf_port", "").strip()
        first = seen.setdefault((made.host, port), number) if port else number
        if first != number:
            raise ConfigError(
                f"{clipped(path)}, line {number}: {made.host} with tf_port {clipped(port)} stands in line {first} already"
            )
        rows.append(made)
    if not any(row.job == "learner" for row in rows):
        raise ConfigError(f"{clipped(path)} names no learner; a row is learner,IP,...")
    return rows


def _row(path: str, number: int, row: dict[str, str]) -> Row:
    at = f"{clipped(path)}, line {number}"
    if "" in row:
        raise ConfigError(f"{at} has more entries than the first line has columns")
    job, host = row["job"].strip(), row["ip"].strip()
    if job not in JOBS:
        raise ConfigError(f"{at}: job is {clipped(job)!r}; it must be one of {', '.join(JOBS)}")
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{at}: ip is {clipped(host)!r}; it must be an address or a host's name")
    devices = tuple(x for x in re.split(r"[\s,;]+", row.get("cuda_visible_devices", "")) if x)
    port, user = (row.get(name, "").strip() for name in ("ssh_port", "ssh_username"))
    if port and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"{at}: ssh_port is {clipped(port)!r}; it must be in [1, 65535]")
    if user and not _USER.fullmatch(user):
        raise ConfigError(f"{at}: ssh_username is {clipped(user)!r}; it must be a user's name")
    return Row(job, host, devices, port, user)


def ray_configuration(rows: Sequence[Row]) -> str:
    """Return YAML for `ray up`, with the commands that start and train as comments.

    Raises:
        ConfigError: Ray cannot reach these hosts as the CSV says.
    """
    hosts = list(dict.fromkeys(row.host for row in rows if row.job == "learner"))
    hosts += [x for x in dict.fromkeys(row.host for row in rows) if x not in hosts]
    far = [x for x in hosts if x not in LOCAL]
    if not far:
        return "\n".join(
            ("# All rows are this machine: Ray needs no configuration.", *_train(rows))
        )
    if len(far) < len(hosts):
        here = next(x for x in hosts if x in LOCAL)
        raise ConfigError(
            f"{here} stands beside {far[0]}: other machines cannot reach {here}; give this machine's own address"
        )
    for what, values in (
        ("ssh_username", {row.ssh_user for row in rows}),
        ("ssh_port", {row.ssh_port or "22" for row in rows}),
    ):
        if len(values) > 1:
            raise ConfigError(
                f"{what} differs between rows ({', '.join(sorted(x or 'none' for x in values))}), but ray up takes one "
                "for all hosts: use one, or start Ray on each host with ray start"
            )
    return "\n".join(_lines(rows, far))


def _lines(rows: Sequence[Row], hosts: Sequence[str]) -> Iterator[str]:
    head, *workers = map(json.dumps, hosts)
    devices = {
        host: sorted({x for r in rows if r.host == host for x in r.devices}) for host in hosts
    }
    yield "# ray up hosts.yaml    starts Ray on every host; ray down hosts.yaml ends it."
    for host, found in devices.items():
        if found:
            yield f"# {host} has GPUs {','.join(found)}: Ray finds them by itself"
    if (port := rows[0].ssh_port or "22") != "22":
        yield f"# ssh uses port {port}: say so in ~/.ssh/config (Host ..., Port {port})"
    yield from _train(rows, f"RAY_ADDRESS={hosts[0]}:6379 ")
    yield "cluster_name: gossamer"
    yield "provider:"
    yield "  type: local"
    yield f"  head_ip: {head}"
    yield f"  worker_ips: [{', '.join(workers)}]"
    yield "auth:"
    yield f"  ssh_user: {json.dumps(rows[0].ssh_user or 'root')}"
    yield "  ssh_private_key: ~/.ssh/id_ed25519"
    yield f"max_workers: {len(workers)}"
    yield f"min_workers: {len(workers)}"
    yield "setup_commands:"
    yield f"  # Needs a checkout in {CHECKOUT} on every host (docs/cluster.md) and {PYTHON}; change both here if they differ."
    yield f'  - cd {CHECKOUT} && {PYTHON} -m venv .venv && .venv/bin/pip install -c constraints.txt -e ".[atari,cluster]"'
    ray = f"{CHECKOUT}/.venv/bin/ray"
    yield "head_start_ray_commands:"
    yield f"  - {ray} stop"
    yield f"  - {ray} start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml"
    yield "worker_start_ray_commands:"
    yield f"  - {ray} stop"
    yield f"  - {ray} start --address=$RAY_HEAD_IP:6379"


def _train(rows: Sequence[Row], before: str = "") -> Iterator[str]:
    count = Counter(row.job for row in rows)
    learners = count["learner"]
    each = -(-count["actor"] // learners)
    words = f"--num-learners {learners}" * (learners > 1)
    words += f" --actors-per-learner {each}" * (each > 0)
    topology = " topology:allreduce" if learners > 1 else ""
    gpus = any(row.devices for row in rows if row.job == "learner")
    words += " --cluster.gpus-per-learner 1" * gpus
    yield f"# {before}gossamer train PongNoFrameskip-v4 algorithm:vtrace{topology} --placement cluster {words.strip()}"
    if count["actor"] % learners:
        yield f"# {count['actor']} actor{'s' * (count['actor'] > 1)} cannot be shared out evenly among {learners} learners: {each} for each are {each * learners}"


if __name__ == "__main__":
    sys.exit(main())
