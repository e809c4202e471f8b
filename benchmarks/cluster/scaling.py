"""What a learner costs where there are many: messages between hosts, and the time of supervisor, agents and Ray.

    python benchmarks/cluster/scaling.py                 # 8 and 64 learners
    python benchmarks/cluster/scaling.py --learners 8 --full-speed

Learners with networks of 8 units gossip on a ring, four to a process, on two hosts. Their environments sleep, so that all of them have the
time they want; `--full-speed` takes CartPole as it is.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from hosts import PYTHON_FOLDER, Hosts, why_not

START_SECONDS = 300.0
"""Longest wait for all learners."""
SETTLE_SECONDS = 20.0
"""From then on until it is measured."""
WORDS = [
    *(
        "topology:gossip",
        "--learners-per-process",
        "4",
        "--policy.hidden-sizes",
        "8",
        "--num-envs",
        "2",
    ),
    *("--unroll-length", "16", "--algorithm.passes", "1", "--algorithm.num-minibatches", "1"),
    *("--evaluation.every-seconds", "0", "--total-env-steps", "1e9"),
    *("--placement", "cluster", "--cluster.cpus-per-learner", "1"),
]
ROLES: dict[str, Callable[[str], bool]] = {
    "supervisor": lambda words: "gossamer train" in words and "fork_server" not in words,
    "agents": lambda words: words.startswith("ray::"),
    "Ray": lambda words: "raylet/raylet" in words or "gcs_server" in words,
}


def seconds_of(role: Callable[[str], bool]) -> float:
    """Return the processor time of a role's processes so far."""
    spent = 0.0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if role(" ".join(process.cmdline())):
                spent += sum(process.cpu_times()[:2])
    return spent


def carried(host: int) -> tuple[int, int]:
    """Return bytes and packets that a host's cable has carried."""
    words = ["ip", "-s", "-j", "link", "show", f"gsm{host}"]
    found: Any = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    both = [found[0]["stats64"][way] for way in ("rx", "tx")]
    return sum(x["bytes"] for x in both), sum(x["packets"] for x in both)


def num_there(folder: Path) -> int:
    """Return how many learners have a process."""
    with suppress(OSError, ValueError):
        rows = json.loads((folder / "processes.json").read_text())
        return sum(1 for row in rows if row["role"] == "learner" and row["pid"])
    return 0


def measure(learners: int, env_id: str, seconds: float, folder: Path) -> dict[str, float]:
    """Return what one learner of so many costs."""
    command = [str(PYTHON_FOLDER / "gossamer"), "train", env_id, *WORDS]
    command += ["--num-learners", str(learners), "--run-folder", str(folder)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with Hosts(2, cpus=learners) as hosts:
        run = hosts.start(1, command, cores=2, **quiet)
        give_up = time.monotonic() + START_SECONDS
        while num_there(folder) < learners:
            if time.monotonic() > give_up or run.poll() is not None:
                sys.exit(f"{num_there(folder)} of {learners} learners have begun")
            time.sleep(1.0)
        time.sleep(SETTLE_SECONDS)
        spent, sent, began = (
            {x: seconds_of(f) for x, f in ROLES.items()},
            carried(2),
            time.monotonic(),
        )
        time.sleep(seconds)
        took = time.monotonic() - began
        share = took * learners
        found = {
            f"{x}, % of a core": 100 * (seconds_of(f) - spent[x]) / share for x, f in ROLES.items()
        }
        now = carried(2)
        found["KB/s between hosts"] = (now[0] - sent[0]) / 1e3 / share
        found["packets/s between hosts"] = (now[1] - sent[1]) / share
        run.send_signal(signal.SIGINT)
        run.wait(120.0)
    found["steps/s"] = (
        json.loads((folder / "summary.json").read_text())["steps_per_second"] / learners
    )
    return found


def main() -> None:
    """Print a learner's costs, a column a number of learners."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--learners", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--seconds", type=float, default=40.0, help="measured")
    parser.add_argument("--full-speed", action="store_true", help="environments that do not sleep")
    asked = parser.parse_args()
    if missing := why_not():
        sys.exit(f"this needs {missing}")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # paced.py, on every host
    env_id = "CartPole-v1" if asked.full_speed else "paced:cartpole"
    with tempfile.TemporaryDirectory() as folder:
        columns = [measure(n, env_id, asked.seconds, Path(folder) / str(n)) for n in asked.learners]
    print(f"{'a learner of':<26}", *(f"{n:>9}" for n in asked.learners))
    for name in columns[0]:
        print(f"{name:<26}", *(f"{column[name]:9.3f}" for column in columns))


if __name__ == "__main__":
    main()
