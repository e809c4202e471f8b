"""Steps/s of one run divided by another's, both going on in turns: what a machine does meanwhile meets both alike.

    python benchmarks/alternate.py --first-src ../before/src --seconds 120 -- CartPole-v1
    python benchmarks/alternate.py --first='--env.mask off' --second='--env.mask info' -- Taxi-v4

Each run is stopped by a signal (SIGSTOP, all of its processes) while the other has the machine, for a few seconds at a time. Both
are started several times, since one and the same command is a few percent faster in one process than in another for as long as
it lives. The ratio is the second's. Intervals of 90 % are of the mean of the pairs' ratios, and tell nothing of other machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

SRC = Path(__file__).parents[1] / "src"
T_90 = (math.nan, 6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)
"""Student's t, by degrees of freedom, between whose negative and itself 90 % lie."""


@dataclass
class Alternate:
    """A run that has the machine now and then.

    Args:
        words: of `gossamer train`.
        folder: of the run.
        src: which gossamer it is.
        python: which runs it.
    """

    words: list[str]
    folder: Path
    src: Path
    python: str
    seconds: float = field(init=False, default=0.0)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def start(self) -> None:
        """Start it; returns when it has learned for the first time, and holds it."""
        command = [self.python, "-m", "gossamer", "train", *self.words]
        path = os.pathsep.join([str(self.src), os.environ.get("PYTHONPATH", "")])
        self.folder.mkdir()
        log = (self.folder / "output").open("wb")
        self._process = subprocess.Popen(
            [*command, "--run-folder", str(self.folder / "run")],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
        )
        until = time.monotonic() + 300.0
        while self.steps() is None:
            if time.monotonic() > until or self._process.poll() is not None:
                sys.exit(f"it does not learn: {(self.folder / 'output').read_text()[-2_000:]}")
            time.sleep(0.05)
        self._signal(signal.SIGSTOP)

    def steps(self) -> int | None:
        """Return the last env_steps that the run reports; None: it has not."""
        with contextlib.suppress(FileNotFoundError):
            rows = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
            with contextlib.suppress(ValueError, IndexError):
                return int(json.loads(rows[-1])["env_steps"])
            return int(json.loads(rows[-2])["env_steps"]) if len(rows) > 1 else None
        return None

    def go_on(self, seconds: float) -> tuple[int, float]:
        """Let it go on; return the steps that it reports, and how long it went on.

        It stops when it reports something: what it has done without a report would count for the next turn.
        """
        before, began = self.steps(), time.monotonic()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        last = self.steps()
        until = time.monotonic() + 60.0
        while (now := self.steps()) == last and time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                sys.exit(f"it ended: {(self.folder / 'output').read_text()[-2_000:]}")
            time.sleep(0.002)
        self._signal(signal.SIGSTOP)
        assert before is not None
        assert now is not None
        return now - before, time.monotonic() - began

    def end(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            # The parent first, which would notice that a child does nothing; and last when they go on.
            each = [parent, *parent.children(recursive=True)]
            for one in reversed(each) if number == signal.SIGCONT else each:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(number)


def print_ratio(
    make: Callable[[Path], tuple[Alternate, Alternate]], *, pairs: int, seconds: float, turn: float
) -> None:
    """Let two runs go on in turns, several times anew, and print how the second compares.

    Args:
        make: makes both, in an empty folder.
        pairs: how often both are started; each is the first to start in half of them.
        seconds: how long each goes on in all.
        turn: how long one goes on at a time.
    """
    ratios: list[float] = []
    for pair in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            speeds = _speeds(make(Path(folder)), pair % 2, seconds / pairs, turn)
        ratios.append(speeds[1] / speeds[0])
        told = f"first {speeds[0]:,.0f}, second {speeds[1]:,.0f} steps/s: {ratios[-1]:.3f}"
        print(told, flush=True)
    told = f"mean of {pairs} pairs: {statistics.mean(ratios):.3f}"
    if pairs > 1:
        t = T_90[min(pairs, len(T_90)) - 1]
        told += f" +- {t * statistics.stdev(ratios) / pairs**0.5:.3f}"
    print(told, flush=True)


def _speeds(
    both: tuple[Alternate, Alternate], begins: int, seconds: float, turn: float
) -> tuple[float, float]:
    """Return the steps/s of two runs, of which one starts before the other."""
    steps, took = [0, 0], [0.0, 0.0]
    try:
        for which in (begins, 1 - begins):
            both[which].start()
            both[which].go_on(5.0)  # imports, caches, the first updates
        for number in range(max(2, math.ceil(seconds / turn))):
            for which in (0, 1) if number % 2 else (1, 0):
                done, lasted = both[which].go_on(turn)
                steps[which] += done
                took[which] += lasted
    finally:
        for run in both:
            run.end()
    return steps[0] / took[0], steps[1] / took[1]


def main() -> None:
    """Compare two runs that command lines describe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--first-src", type=Path, default=SRC, help="whose gossamer runs first")
    parser.add_argument("--second-src", type=Path, default=SRC)
    parser.add_argument("--first-python", default=sys.executable)
    parser.add_argument("--second-python", default=sys.executable)
    parser.add_argument("--first", default="", help="words of the first run's command alone")
    parser.add_argument("--second", default="")
    told = "times that both are started"
    parser.add_argument(
        "--pairs", type=int, default=4, choices=range(1, 1000), metavar="N", help=told
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run, in all pairs")
    parser.add_argument("--turn", type=float, default=4.0, help="seconds at a time")
    parser.add_argument("words", nargs="+", help="words of both commands, after --")
    asked = parser.parse_args()
    endless = ["--total-env-steps", "10_000_000_000", "--evaluation.every-seconds", "0"]

    def make(folder: Path) -> tuple[Alternate, Alternate]:
        words = [*asked.words, *endless]
        return (
            Alternate(
                [*words, *shlex.split(asked.first)],
                folder / "first",
                asked.first_src.resolve(),
                asked.first_python,
            ),
            Alternate(
                [*words, *shlex.split(asked.second)],
                folder / "second",
                asked.second_src.resolve(),
                asked.second_python,
            ),
        )

    print_ratio(make, pairs=asked.pairs, seconds=asked.seconds, turn=asked.turn)


if __name__ == "__main__":
    main()
