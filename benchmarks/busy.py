"""How training slows down beside other work: steps/s alone, and beside a busy loop on one of the cores.

    python benchmarks/busy.py --seconds 20
    python benchmarks/busy.py --algorithms ppo vtrace --placements inline --learners 1 -- --num-envs 8 --lag 0

Every algorithm at its default lag, in every placement, with one learner and with four, on Pong: each pair is run one
after the other. The busy loop has the priority of the run and stays on the last core. Settings after `--` go to every run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

ENV_ID = "PongNoFrameskip-v4"
BUSY = """
import os
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
parent = os.getppid()
while os.getppid() == parent: pass
"""


def main() -> None:
    """Run every pair and print a row for each, then the smallest ratio."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--algorithms", nargs="+", default=["a2c", "vtrace", "laser", "ppo", "impact"]
    )
    parser.add_argument("--placements", nargs="+", default=["inline", "local"])
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each run")
    own = sys.argv[1:]
    given = own[own.index("--") + 1 :] if "--" in own else []
    asked = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    print("| algorithm | placement | learners | steps/s alone | beside a busy loop | ratio |")
    print("|---|---|---|---|---|---|")
    ratios: list[float] = []
    for name, placement, learners in itertools.product(
        asked.algorithms, asked.placements, asked.learners
    ):
        words = [f"algorithm:{name}", "--placement", placement, "--num-learners", str(learners)]
        words += ["topology:allreduce"] if learners > 1 else []
        alone = speed([*words, *given], asked.seconds)
        with busy_core():
            beside = speed([*words, *given], asked.seconds)
        ratios.append(beside / alone)
        print(
            f"| {name} | {placement} | {learners} | {alone:,.0f} | {beside:,.0f} | {ratios[-1]:.2f} |",
            flush=True,
        )
    print(f"smallest ratio: {min(ratios):.2f}")


def speed(words: list[str], seconds: float) -> float:
    """Return the env steps a second of a run of so many seconds, or of a longer one if these were too few to tell."""
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        command = [sys.executable, "-m", "gossamer", "train", ENV_ID, *words]
        command += ["--run-folder", str(run), "--stop-after-seconds", str(seconds)]
        command += ["--evaluation.every-seconds", "0"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found = json.loads((run / "summary.json").read_text())["steps_per_second"]
    return speed(words, 2 * seconds) if found is None else found


@contextlib.contextmanager
def busy_core() -> Generator[None]:
    """Keep the last core busy inside."""
    if not hasattr(os, "sched_setaffinity"):
        sys.exit("busy.py binds its loop to a core, which this system cannot do")
    with subprocess.Popen([sys.executable, "-c", BUSY]) as loop:
        try:
            yield
        finally:
            loop.kill()


if __name__ == "__main__":
    main()
