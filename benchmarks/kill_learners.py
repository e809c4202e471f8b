"""Kill learners of a gossiping run with SIGKILL, again and again, and see what becomes of the run.

    python benchmarks/kill_learners.py CartPole-v1 --kills 10 --seeds 3 -- --num-learners 4

First the run undisturbed, once per seed, then once more with the kills. Prints the steps, restarts and final
return of each; what follows `--` goes to `gossamer train`.
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
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120.0


def main() -> None:
    """Run, kill and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("env_id")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3, help="undisturbed runs")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    asked, words = parser.parse_args(given[:cut]), given[cut + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = [
            _run(asked.env_id, Path(folder) / str(seed), seed, words, kills=0)
            for seed in range(1, asked.seeds + 1)
        ]
        killed = _run(asked.env_id, Path(folder) / "killed", 1, words, kills=asked.kills)
    lowest = min(summary["mean_return_last_100"] for summary in undisturbed)
    print(
        f"lowest undisturbed return {lowest:.4g}, with {killed['restarts']} restarts "
        f"{killed['mean_return_last_100']:.4g}"
    )


def _run(env_id: str, folder: Path, seed: int, words: list[str], *, kills: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "gossamer", "train", env_id, "topology:gossip", "--seed", str(seed),
               "--run-folder", str(folder), *words]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    chance = random.Random(1)  # noqa: S311 - picks whom to kill
    for _ in range(kills):
        pids = _wait_for_progress(process, folder)
        if process.poll() is None:
            os.kill(chance.choice(pids), signal.SIGKILL)
    code = process.wait()
    summary = json.loads((folder / "summary.json").read_text())
    print(
        f"seed {seed}, {kills} kills: exit code {code}, {summary['env_steps']:,} steps, "
        f"{summary['restarts']} restarts, {summary['seconds']:.0f} s, return "
        f"{summary['mean_return_last_100']:.4g}, {summary['exit_reason']}",
        flush=True,
    )
    return summary


def _wait_for_progress(process: subprocess.Popen[bytes], folder: Path) -> list[int]:
    """Wait until three more rows have been logged; return the learners' process ids."""
    first, give_up = _rows(folder), time.monotonic() + PATIENCE_SECONDS
    while _rows(folder) < first + 3 and process.poll() is None:
        if time.monotonic() > give_up:
            raise SystemExit(f"no progress within {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.1)
    rows = json.loads((folder / "processes.json").read_text())
    return [row["pid"] for row in rows if row["role"] == "learner"]


def _rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


if __name__ == "__main__":
    main()
