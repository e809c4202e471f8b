"""One fault after the other on runs over several hosts: how long each one is felt.

    python benchmarks/cluster/faults.py                       # all of them: a quarter of an hour
    python benchmarks/cluster/faults.py --what kill cut --times 5

kill: a whole host, which joins again (4 learners that gossip on 3 hosts). cut: a host's cable for 20 s. stop: a learner
for 30 s. allreduce: a learner of a group that averages gradients. join: a host comes to a run that waits for it.
supervisor: the command itself, killed with signal 9.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from chaos import steps_of
from hosts import NETWORK, PYTHON_FOLDER, Hosts, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

CUT_SECONDS, STOP_SECONDS = 20.0, 30.0
LIMIT_SECONDS = 120.0
"""Longest wait for anything."""


class Run:
    """A run that is disturbed.

    Args:
        hosts: that it runs on.
        folder: of the run.
        words: of its command.
    """

    def __init__(self, hosts: Hosts, folder: Path, words: list[str]):
        self.hosts, self.folder = hosts, folder
        self._log = (folder.parent / f"{folder.name}.log").open("wb")
        command = [str(PYTHON_FOLDER / "gossamer"), "train", "CartPole-v1", *words]
        command += ["--placement", "cluster", "--cluster.cpus-per-learner", "1"]
        command += ["--total-env-steps", "1_000_000_000", "--run-folder", str(folder)]
        self.process = hosts.start(1, command, stdout=self._log, stderr=subprocess.STDOUT, cores=2)

    def rows(self) -> list[dict[str, Any]]:
        """Return the learners that have a process."""
        with suppress(OSError, ValueError):
            rows = json.loads((self.folder / "processes.json").read_text())
            return [x for x in rows if x["role"] == "learner" and x["pid"]]
        return []

    def wait(self, happened: Callable[[], bool]) -> float:
        """Return the seconds until something has happened."""
        began = time.monotonic()
        while not happened():
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended: see {self.folder}")
            if time.monotonic() - began > LIMIT_SECONDS:
                raise SystemExit(f"nothing for {LIMIT_SECONDS:.0f} s: see {self.folder}")
            time.sleep(0.05)
        return time.monotonic() - began

    def longest_pause(self, seconds: float, until: Callable[[], bool] = lambda: True) -> float:
        """Return for how long no step was reported at most, over some time and until something has happened."""
        began = moved = time.monotonic()
        steps, longest = steps_of(self.folder), 0.0
        while (now := time.monotonic()) - began < seconds or not until():
            if now - began > seconds + LIMIT_SECONDS or self.process.poll() is not None:
                raise SystemExit(f"the run does not go on: see {self.folder}")
            if (at := steps_of(self.folder)) > steps:
                steps, moved = at, now
            longest = max(longest, now - moved)
            time.sleep(0.1)
        return longest

    def end(self) -> str:
        """Let it save and end; return what it said last."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        return (self.folder / "log.txt").read_text().splitlines()[-1]


@contextmanager
def running(count: int, folder: Path, *words: str, cpus: int = 4) -> Generator[Run]:
    """Start hosts and a run on them; end both."""
    with Hosts(count, cpus=cpus) as hosts:
        made = Run(hosts, folder, list(words))
        try:
            yield made
        finally:
            made.process.kill()
            made.process.wait()


def gossip_faults(folder: Path, what: str, times: int) -> None:
    """Disturb four learners that gossip on three hosts."""
    # Room for two learners a host, or all of them end up on the first, which is never killed.
    with running(3, folder, "topology:gossip", "--num-learners", "4", cpus=2) as run:
        run.wait(lambda: steps_of(folder) > 20_000)
        for i in range(times):
            before = {x["rank"]: x["pid"] for x in run.rows()}
            if what == "kill":
                there = {x["machine"] for x in run.rows()}
                host = next(h for h in (2 + i % 2, 3 - i % 2) if f"{NETWORK}.{h}" in there)
                gone = [x["rank"] for x in run.rows() if x["machine"] == f"{NETWORK}.{host}"]
                run.hosts.kill(host)
                began = time.monotonic()

                def back(gone: list[int] = gone, before: dict[int, int] = before) -> bool:
                    there = {x["rank"]: x["pid"] for x in run.rows()}
                    return len(there) == 4 and all(there[r] != before[r] for r in gone)

                pause = run.longest_pause(5.0, back)
                felt = f"learners {gone} back after {time.monotonic() - began:.1f} s"
                run.hosts.join(host)
            elif what == "cut":
                host = 2 + i % 2
                run.hosts.cut(host)
                pause = run.longest_pause(CUT_SECONDS)
                run.hosts.heal(host)
                pause = max(pause, run.longest_pause(10.0, lambda: len(run.rows()) == 4))
                kept = sum(before[x["rank"]] == x["pid"] for x in run.rows())
                felt = f"{kept} of 4 learners are the same as before"
            else:
                rank = i % 4
                os.kill(before[rank], signal.SIGSTOP)
                pause = run.longest_pause(STOP_SECONDS)
                with suppress(ProcessLookupError):
                    os.kill(before[rank], signal.SIGCONT)
                pause = max(pause, run.longest_pause(10.0, lambda: len(run.rows()) == 4))
                kept = sum(before[x["rank"]] == x["pid"] for x in run.rows())
                felt = f"{kept} of 4 learners are the same as before"
            print(f"{what} {i + 1}: longest pause {pause:.1f} s, {felt}", flush=True)
        print(f"{what}: {run.end()}", flush=True)


def all_reduced(folder: Path, times: int) -> None:
    """Kill learners of a group that starts again from its last checkpoint."""
    words = ["topology:allreduce", "--num-learners", "3", "--checkpoint-every-seconds", "5"]
    with running(3, folder, *words) as run:
        run.wait(lambda: steps_of(folder) > 20_000)
        for i in range(times):
            time.sleep(8.0)
            before = run.rows()
            os.kill(before[i % 3]["pid"], signal.SIGKILL)
            began = time.monotonic()
            pids = {x["pid"] for x in before}
            run.wait(
                lambda pids=pids: len(run.rows()) == 3 and not pids & {x["pid"] for x in run.rows()}
            )
            lines = len((folder / "metrics.jsonl").read_text().splitlines())
            run.wait(lambda n=lines: len((folder / "metrics.jsonl").read_text().splitlines()) > n)
            print(
                f"allreduce {i + 1}: learns again after {time.monotonic() - began:.1f} s",
                flush=True,
            )
        print(f"allreduce: {run.end()}", flush=True)


def joining(folder: Path, times: int) -> None:
    """Let a host come to a run of which one learner has no place."""
    for i in range(times):
        into = folder.with_name(f"{folder.name}{i + 1}")
        words = ["topology:gossip", "--num-learners", "3", "--cluster.min-learners", "2"]
        with running(2, into, *words, cpus=1) as run:
            run.wait(lambda into=into: steps_of(into) > 5_000)
            began = time.monotonic()
            run.hosts.join(3)
            run.hosts.count = 3
            there = time.monotonic()
            run.wait(lambda: len(run.rows()) == 3)
            now = time.monotonic()
            print(
                f"join {i + 1}: {now - began:.1f} s after `ray start` was typed, {now - there:.1f} s after it returned",
                flush=True,
            )
            print(f"join: {run.end()}", flush=True)


def supervisor_killed(folder: Path, times: int) -> None:
    """Kill the command itself, and see how long anything of it is left."""
    for i in range(times):
        into = folder.with_name(f"{folder.name}{i + 1}")
        words = ["topology:gossip", "--num-learners", "4"]
        with running(3, into, *words) as run:
            run.wait(lambda into=into: steps_of(into) > 5_000)
            mine = [x["pid"] for x in run.rows()]
            for pid in tuple(mine):
                mine += [x.pid for x in psutil.Process(pid).parents() if "ray::" in x.name()]
            began = time.monotonic()
            os.kill(run.process.pid, signal.SIGKILL)
            run.process.wait()
            while any(map(lives, mine)) and time.monotonic() - began < LIMIT_SECONDS:
                time.sleep(0.05)
            left = [pid for pid in mine if lives(pid)]
            print(
                f"supervisor {i + 1}: {len(mine)} processes, {len(left)} left after {time.monotonic() - began:.1f} s",
                flush=True,
            )


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def main() -> None:
    """Measure what is asked for."""
    everything = ["kill", "cut", "stop", "allreduce", "join", "supervisor"]
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--what", nargs="+", choices=everything, default=everything)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--output", default="", help="folder for the runs")
    asked = parser.parse_args()
    if missing := why_not():
        sys.exit(f"this needs {missing}")
    root = Path(asked.output or tempfile.mkdtemp(prefix="gossamer-faults-"))
    root.mkdir(parents=True, exist_ok=True)
    for what in asked.what:
        if what == "allreduce":
            all_reduced(root / what, asked.times)
        elif what == "join":
            joining(root / what, asked.times)
        elif what == "supervisor":
            supervisor_killed(root / what, asked.times)
        else:
            gossip_faults(root / what, what, asked.times)


if __name__ == "__main__":
    main()
