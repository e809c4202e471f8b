"""What the network costs: the same learners on two hosts and as processes of one machine, in turn.

    python benchmarks/cluster/pairs.py --rounds 3 --seconds 40

Prints a line a round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hosts import PYTHON_FOLDER, Hosts, why_not

GOSSIP = [
    *("--config", "gala_pong", "--num-envs", "16", "--topology.max-staleness", "never"),
    *("--stop-at-return", "none", "--evaluation.every-seconds", "0", "--total-env-steps", "1e7"),
]


def speed_of(run: Path) -> float:
    """Return a run's steps a second."""
    return float(json.loads((run / "summary.json").read_text())["steps_per_second"])


def main() -> None:
    """Print the speed of both, a line a round."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0)
    asked = parser.parse_args()
    if missing := why_not():
        sys.exit(f"this needs {missing}")
    command = [str(PYTHON_FOLDER / "gossamer"), "train", *GOSSIP]
    command += ["--stop-after-seconds", str(asked.seconds)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            local, cluster = (Path(folder) / f"{kind}{number}" for kind in ("local", "cluster"))
            quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run([*command, "--run-folder", str(local)], check=True, **quiet)
            with Hosts(2, cpus=1) as hosts:
                more = ["--placement", "cluster", "--cluster.cpus-per-learner", "1"]
                words = [*command, *more, "--run-folder", str(cluster)]
                hosts.start(1, words, cores=2, **quiet).wait(asked.seconds + 120)
            one, two = speed_of(local), speed_of(cluster)
            print(f"local {one:,.0f} steps/s, two hosts {two:,.0f}: {two / one:.3f}", flush=True)


if __name__ == "__main__":
    main()
