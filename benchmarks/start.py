"""How long a run takes to its first update, and how much memory its processes take: of this code, or of several in turn.

    python benchmarks/start.py [--against COMMIT] [--repeats 5] [-- words of gossamer train]

Without words: four learners that gossip, each with two actors in processes of their own. Memory is what the processes
hold with every shared page counted in parts (PSS).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

WORDS = ["CartPole-v1", "algorithm:vtrace", "topology:gossip", "--num-learners", "4",
         "--actors-per-learner", "2", "--num-envs", "4", "--evaluation.every-seconds", "0"]  # fmt: skip
HOME = Path(__file__).resolve().parents[1]
GIVE_UP_SECONDS = 120.0


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words.add_argument(
        "--against", default="", help="another commit, measured in turn with this code"
    )
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("words", nargs="*", default=WORDS)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        codes = {"this code": HOME}
        if asked.against:
            codes[asked.against] = other = Path(place) / "other"
            git = ("git", "-C", str(HOME), "worktree")
            subprocess.run([*git, "add", "--detach", "-q", str(other), asked.against], check=True)
            stack.callback(subprocess.run, [*git, "remove", "--force", str(other)], check=True)
        found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in codes}
        for turn in range(asked.repeats):
            for index, (name, home) in enumerate(codes.items()):
                one = _start(home, asked.words, Path(place) / f"{turn}-{index}")
                found[name].append(one)
                print(f"{name}: {one[0]:.2f} s, {one[1]:.0f} MB in {one[2]} processes", flush=True)
    for name, all_of_it in found.items():
        seconds, megabytes, count = (statistics.median(x) for x in zip(*all_of_it, strict=True))
        print(
            f"{name}: median {seconds:.2f} s to the first update, {megabytes:.0f} MB, {count:.0f} processes"
        )


def _start(home: Path, words: list[str], folder: Path) -> tuple[float, float, int]:
    """Start a run and end it after its first update; return its seconds, megabytes and processes."""
    environment = {**os.environ, "PYTHONPATH": str(home / "src")}
    command = [sys.executable, "-m", "gossamer", "train", *words, "--run-folder", str(folder)]
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        try:
            while not _has_learnt(folder):
                if run.poll() is not None or time.monotonic() - began > GIVE_UP_SECONDS:
                    sys.exit(f"it has not begun: {' '.join(command)}")
                time.sleep(0.01)
            seconds = time.monotonic() - began
            everyone = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            held = sum(one.memory_full_info().pss for one in everyone)
        finally:
            run.send_signal(signal.SIGKILL)
    return seconds, held / 1e6, len(everyone)


def _has_learnt(folder: Path) -> bool:
    try:
        rows = (folder / "metrics.jsonl").read_text().splitlines()
        return any(json.loads(row)["updates"] > 0 for row in rows)
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    main()
