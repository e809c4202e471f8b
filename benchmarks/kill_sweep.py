"""kill -9 a sweep at random moments and start it again each time: is every trial done, and none twice?

    python benchmarks/kill_sweep.py
    python benchmarks/kill_sweep.py --trials 12 --kills 3 --method tpe

Half of the kills take the sweep alone, whose runs then train on; the others take its runs too. In the end every trial
must have reached its last env step, whatever was done must not have been begun again, and no run may have learnt a step
twice: the episodes of each lie in order, and their lengths sum up to its env steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

FILE = """\
method = "{method}"
trials = {trials}

[settings]
env_id = "CartPole-v1"
total_env_steps = {steps}
checkpoint_every_seconds = 0.5
evaluation.every_seconds = 0

[search]
"optimizer.learning_rate" = {{ min = 1e-4, max = 1e-2, log = true }}
"algorithm.entropy_cost" = [0.0, 0.01]
"""
PATIENCE_SECONDS = 1800.0


class Result(NamedTuple):
    """What came of a sweep that was killed."""

    kills: int
    done: int
    """Trials that have reached their end."""
    twice: int
    """Runs that were begun again after they were done, or that learnt some step twice."""
    resumed: int
    """Sessions that went on from a checkpoint."""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000, help="of each trial")
    parser.add_argument("--method", choices=("random", "tpe"), default="tpe")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            Path(folder), asked.trials, asked.kills, asked.steps, asked.method, asked.seed
        )
    print(
        f"{found.kills} kills, {found.resumed} runs resumed: {found.done} of {asked.trials} trials done, "
        f"{found.twice} twice"
    )
    sys.exit((found.done, found.twice, found.kills) != (asked.trials, 0, asked.kills))


def measure(folder: Path, trials: int, kills: int, steps: int, method: str, seed: int) -> Result:
    """Run a sweep, kill it, and look at what its runs have written."""
    (folder / "killed.toml").write_text(FILE.format(method=method, trials=trials, steps=steps))
    sweep = folder / "runs" / "sweeps" / "killed"
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    finished: dict[str, int] = {}
    twice = killed = 0
    for kill in range(kills + 1):
        process = start(folder)
        if kill == kills:
            end(process)
            break
        # Spread over the sweep: the first kill comes before a third of it is done, with three of them.
        wanted = max(1, trials * (kill + 1) // (kills + 2))
        wait_for(process, lambda n=wanted: len(done(sweep)) >= n)
        time.sleep(chance.uniform(0.0, 3.0))
        if process.poll() is not None:
            break
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        killed += 1
        for child in children if kill % 2 else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        twice += sum(finished[name] != sessions(sweep / name) for name in finished)
        finished = {name: sessions(sweep / name) for name in done(sweep)}
    twice += sum(finished[name] != sessions(sweep / name) for name in finished)
    runs = sorted(sweep.glob("*/s*/config.json"))
    twice += sum(not learnt_once(path.parent, steps) for path in runs)
    resumed = sum(sessions(path.parent) - 1 for path in runs)
    return Result(killed, len(done(sweep)), twice, resumed)


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gossamer", "sweep", "killed.toml"]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(PATIENCE_SECONDS)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def wait_for(process: subprocess.Popen[bytes], condition: Any) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition() and process.poll() is None:
        if time.monotonic() > give_up:
            raise TimeoutError("the sweep does not get on")
        time.sleep(0.05)


def done(sweep: Path) -> list[str]:
    """Return the runs that have reached their end, by path."""
    found: list[str] = []
    for path in sweep.glob("*/s*/summary.json"):
        try:
            reason = json.loads(path.read_text())["exit_reason"]
        except (OSError, ValueError):
            continue
        if reason.startswith("done"):
            found.append(os.path.relpath(path.parent, sweep))
    return found


def sessions(run: Path) -> int:
    """Return how often a run was begun or gone on with."""
    return len(json.loads((run / "meta.json").read_text())["sessions"])


def learnt_once(run: Path, steps: int) -> bool:
    """Whether a run's episodes lie in order, and are no longer together than it is."""
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    at = [row["env_steps"] for row in rows]
    learnt: int = json.loads((run / "summary.json").read_text())["env_steps"]
    return at == sorted(at) and sum(row["length"] for row in rows) <= learnt and learnt >= steps


if __name__ == "__main__":
    main()
