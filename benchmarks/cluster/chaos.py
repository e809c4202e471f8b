"""A run on several hosts that is disturbed every few seconds, from a seed, and must end as if nothing had happened.

Learners, their actors, agents and whole hosts are killed, cables are pulled, processes stopped; hosts that were killed join again. It
passes when the run ends by itself with its full step count, never stands still for longer than a bound, has
named everyone that was killed, and its policy is as good as undisturbed ones.

    python benchmarks/cluster/chaos.py --seeds 1 2 3 --steps 4000000 --every 15
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from hosts import NETWORK, PYTHON_FOLDER, Hosts, why_not

ACTS = ("learner", "agent", "host", "cut", "stop", "actor")
QUIET_SECONDS = 10.0
"""Of a cut cable and of a stopped process."""
BACK_SECONDS = 5.0
"""After which a host that was killed joins again."""


class Chaos:
    """Disturbs one run.

    Args:
        hosts: that it runs on.
        folder: of the run.
        seed: of what is done to it.
    """

    def __init__(self, hosts: Hosts, folder: Path, seed: int):
        self._hosts, self._folder = hosts, folder
        self._rng = random.Random(seed)  # noqa: S311
        self._later: list[tuple[float, Any]] = []
        self.done: list[str] = []
        self.killed: set[int] = set()
        """Ranks."""

    def act(self) -> None:
        """Do one thing to the run."""
        actors = [x for x in self._rows() if x["role"] == "actor" and x["pid"]]
        act = self._rng.choice(ACTS if actors else ACTS[:-1])
        learners = [x for x in self._rows() if x["role"] == "learner" and x["pid"]]
        if not learners:
            return
        victim = self._rng.choice(learners)
        host = self._rng.randrange(2, self._hosts.count + 1)
        now = time.monotonic()
        if act == "learner":
            self._kill(victim["pid"], victim["rank"])
        elif act == "agent":
            agent = self._agent_of(victim["pid"])
            if agent is not None:
                self._kill(agent, victim["rank"])
        elif act == "actor":
            victim = self._rng.choice(actors)
            with suppress(ProcessLookupError):
                os.kill(victim["pid"], signal.SIGKILL)
        elif act == "stop":
            with suppress(ProcessLookupError):
                os.kill(victim["pid"], signal.SIGSTOP)
                self._later.append((now + QUIET_SECONDS, lambda: self._go_on(victim["pid"])))
        elif act == "cut":
            self._hosts.cut(host)
            self._later.append((now + QUIET_SECONDS, lambda: self._hosts.heal(host)))
        else:
            address = f"{NETWORK}.{host}"
            self.killed |= {x["rank"] for x in learners if x["machine"] == address}
            self._hosts.kill(host)
            self._later.append((now + BACK_SECONDS, lambda: self._hosts.join(host)))
        what = f"host {host}" if act in ("host", "cut") else f"of learner {victim['rank']}"
        self.done.append(f"{act} {what}")
        print(f"  {act} {what}", flush=True)

    def tidy(self) -> None:
        """Undo what was to last for a while only."""
        due = [x for x in self._later if x[0] <= time.monotonic()]
        self._later = [x for x in self._later if x not in due]
        for _, undo in due:
            undo()

    def _rows(self) -> list[dict[str, Any]]:
        with suppress(OSError, ValueError):
            return json.loads((self._folder / "processes.json").read_text())
        return []

    def _kill(self, pid: int, rank: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed.add(rank)

    def _agent_of(self, pid: int) -> int | None:
        with suppress(psutil.Error):
            for parent in psutil.Process(pid).parents():
                if parent.name().startswith("ray::"):
                    return parent.pid
        return None

    def _go_on(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def steps_of(folder: Path) -> int:
    """Return how far a run says it is."""
    with suppress(OSError):
        for line in reversed((folder / "metrics.jsonl").read_text().splitlines()):
            with suppress(ValueError, KeyError):
                return int(json.loads(line)["env_steps"])
    return 0


def run(seed: int, asked: argparse.Namespace, folder: Path) -> bool:
    """Run and disturb once; say how it went, and whether it passed."""
    words = [
        str(PYTHON_FOLDER / "gossamer"),
        "train",
        asked.env,
        "topology:gossip",
        "--seed",
        str(seed),
    ]
    words += ["--num-learners", str(asked.learners), "--total-env-steps", str(asked.steps)]
    words += [
        "--placement",
        "cluster",
        "--cluster.cpus-per-learner",
        "1",
        "--run-folder",
        str(folder),
    ]
    words += ["--actors-per-learner", str(asked.actors)] if asked.actors else []
    with Hosts(asked.hosts) as hosts, (folder.parent / f"{seed}.log").open("wb") as log:
        trains = hosts.start(1, words, stdout=log, stderr=subprocess.STDOUT, cores=2)
        chaos = Chaos(hosts, folder, seed)
        began = acted = moved = time.monotonic()
        steps, longest = 0, 0.0
        while trains.poll() is None and time.monotonic() - began < asked.limit:
            time.sleep(0.5)
            now = time.monotonic()
            chaos.tidy()
            if (at := steps_of(folder)) > steps or not steps:
                longest = max(longest, now - moved) if steps else 0.0
                steps, moved = at, now
            if steps and now - acted >= asked.every:
                chaos.act()
                acted = now
        code = trains.poll()
        trains.kill()
    told = (folder / "log.txt").read_text() if (folder / "log.txt").exists() else ""
    summary: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        summary = json.loads((folder / "summary.json").read_text())
    named = {rank for rank in chaos.killed if f"Learner {rank} died" in told}
    score = summary.get("mean_return_last_100")
    passed = {
        "ended by itself": code == 0,
        "all steps": steps >= asked.steps,
        f"never still for {asked.bound:.0f} s": longest <= asked.bound,
        "every death named": named == chaos.killed,
        f"return {asked.score:g}": score is not None and score >= asked.score,
    }
    print(
        f"seed {seed}: {len(chaos.done)} disturbances, exit {code}, {steps:,} steps in {time.monotonic() - began:.0f} s, "
        f"longest pause {longest:.1f} s, {summary.get('restarts')} restarts, return {score}; "
        f"{'passed' if all(passed.values()) else 'FAILED: ' + ', '.join(x for x, ok in passed.items() if not ok)}",
        flush=True,
    )
    return all(passed.values())


def main() -> None:
    """Run every seed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--actors", type=int, default=0, help="of each learner, on any host")
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between disturbances")
    parser.add_argument("--bound", type=float, default=30.0, help="longest pause, in seconds")
    parser.add_argument("--score", type=float, default=450.0, help="mean return at the end")
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds for one run")
    parser.add_argument("--output", default="", help="folder for the runs")
    asked = parser.parse_args()
    if missing := why_not():
        sys.exit(f"this needs {missing}")
    root = Path(asked.output or tempfile.mkdtemp(prefix="gossamer-chaos-"))
    root.mkdir(parents=True, exist_ok=True)
    passed = [run(seed, asked, root / f"run{seed}") for seed in asked.seeds]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
