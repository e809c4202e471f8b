"""What the network costs: the same run on two hosts and on one machine, in turn.

    python benchmarks/cluster/pairs.py --rounds 3 --seconds 40
    python benchmarks/cluster/pairs.py --what actors

gossip: two learners that never wait for each other, on two hosts and as processes. actors: one learner on one host with its
actor on the other, and one learner whose acting and learning overlap on both cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hosts import PYTHON_FOLDER, Hosts, why_not

COMMON = ["--stop-at-return", "none", "--evaluation.every-seconds", "0", "--total-env-steps", "1e7"]
GOSSIP = ["--config", "gala_pong", "--num-envs", "16", "--topology.max-staleness", "never"]
ACTORS = ["--config", "bench"]
ELSEWHERE = ["--placement", "cluster", "--cluster.cpus-per-learner", "1"]


def speed_of(run: Path) -> float:
    """Return a run's steps a second."""
    return float(json.loads((run / "summary.json").read_text())["steps_per_second"])


def main() -> None:
    """Print the speed of both, a line a round."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--what", choices=("gossip", "actors"), default="gossip")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0)
    asked = parser.parse_args()
    if missing := why_not():
        sys.exit(f"this needs {missing}")
    command = [str(PYTHON_FOLDER / "gossamer"), "train"]
    command += (GOSSIP if asked.what == "gossip" else ACTORS) + COMMON
    command += ["--stop-after-seconds", str(asked.seconds)]
    more = ELSEWHERE + (["--actors-per-learner", "1"] if asked.what == "actors" else [])
    ratios: list[float] = []
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            local, cluster = (Path(folder) / f"{kind}{number}" for kind in ("local", "cluster"))
            subprocess.run([*command, "--run-folder", str(local)], check=True, **quiet)
            with Hosts(2, cpus=1) as hosts:
                words = [*command, *more, "--run-folder", str(cluster)]
                hosts.start(1, words, cores=2, **quiet).wait(asked.seconds + 120)
            one, two = speed_of(local), speed_of(cluster)
            ratios.append(two / one)
            print(f"local {one:,.0f} steps/s, two hosts {two:,.0f}: {two / one:.3f}", flush=True)
    print(f"{asked.what}: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
