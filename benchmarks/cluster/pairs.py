"""What the network costs: the same run on two hosts and on one machine, in turn.

    python benchmarks/cluster/pairs.py --rounds 3
    python benchmarks/cluster/pairs.py --what actors
    python benchmarks/cluster/pairs.py --what preset --rounds 3 --seconds 60
    python benchmarks/cluster/pairs.py --what pong --rounds 1
    python benchmarks/cluster/pairs.py --what lock-step

gossip: two learners that never wait for each other, on two hosts and as processes. actors: one learner on one host with its
actor on the other, and one learner whose acting and learning overlap on both cores. preset: `gala_pong`, whose two learners
go in lock-step; on one machine also with `--topology.every versions`. pong: seconds until the preset
`gala_pong` plays Pong to 18, 30 greedy games from each checkpoint, a seed a round; also on one machine with
`--topology.every versions`. lock-step: whether every topology has the same parameters after 50 versions as in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from hosts import PYTHON_FOLDER, Hosts, why_not

from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.checkpoint_contents import from_disk

QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SPEED = ["--stop-at-return", "none", "--evaluation.every-seconds", "0", "--total-env-steps", "1e7"]
GOSSIP = ["--config", "gala_pong", "--num-envs", "16", "--topology.max-staleness", "never"]
ACTORS = ["--config", "bench"]
PRESET = ["--config", "gala_pong"]
VERSIONS = ["--topology.every", "versions"]
PONG = ["--config", "gala_pong", "--keep-checkpoints", "0", "--stop-at-return", "none"]
ELSEWHERE = ["--placement", "cluster", "--cluster.cpus-per-learner", "1"]
LOCK_STEP = [
    *("CartPole-v1", "algorithm:ppo", "--num-learners", "2", "--lag", "0", "--num-envs", "4"),
    *(
        "--unroll-length",
        "16",
        "--total-env-steps",
        str(50 * 2 * 4 * 16),
        "--evaluation.every-seconds",
        "0",
    ),
]
SCORE = Path(__file__).parents[1] / "score_run.py"


def train(words: list[str], seconds: float, folder: Path, *, hosts: int = 0) -> float:
    """Train for so long, on this machine or on hosts with a core each; return the run's steps a second."""
    command = [str(PYTHON_FOLDER / "gossamer"), "train", *words]
    command += ["--stop-after-seconds", str(seconds), "--run-folder", str(folder)]
    if not hosts:
        # As many cores as two hosts have, on a larger machine too.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
        subprocess.run(["taskset", "-c", cores, *command], check=True, **QUIET)
    else:
        with Hosts(hosts, cpus=1) as made:
            made.start(1, [*command, *ELSEWHERE], cores=2, **QUIET).wait(seconds + 120)
    speed = json.loads((folder / "summary.json").read_text())["steps_per_second"]
    if speed is None:
        sys.exit(f"{seconds:g} s are too short for two batches here: give more --seconds")
    return float(speed)


def seconds_to_18(folder: Path) -> float | None:
    """Return when the first of two checkpoints in a row that play Pong to 18 was written."""
    words = [sys.executable, str(SCORE), str(folder), "--target", "18", "--skip-below", "-4"]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = re.search(r"^reached 18 at ([0-9.]+) s", told, re.M)
    return float(found[1]) if found else None


def main() -> None:
    """Print the figures of both, a line a round."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--what", choices=("gossip", "actors", "preset", "pong", "lock-step"), default="gossip"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first round of pong")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="of each run, of which the start may be twenty; default 90, Pong 400",
    )
    asked = parser.parse_args()
    if missing := why_not():
        sys.exit(f"this needs {missing}")
    with tempfile.TemporaryDirectory() as folder:
        if asked.what == "pong":
            compare_pong(
                range(asked.seed, asked.seed + asked.rounds), asked.seconds or 400.0, Path(folder)
            )
        elif asked.what == "lock-step":
            compare_parameters(Path(folder))
        else:
            compare_speed(asked.what, asked.rounds, asked.seconds or 90.0, Path(folder))


def compare_speed(what: str, rounds: int, seconds: float, folder: Path) -> None:
    """Print steps a second on one machine and on two hosts."""
    kinds = {"gossip": GOSSIP, "actors": ACTORS, "preset": PRESET}
    words, more = kinds[what] + SPEED, ["--actors-per-learner", "1"] if what == "actors" else []
    ratios: list[float] = []
    for number in range(rounds):
        one = train(words, seconds, folder / f"local{number}")
        two = train([*words, *more], seconds, folder / f"hosts{number}", hosts=2)
        ratios.append(two / one)
        told = f"local {one:,.0f} steps/s, two hosts {two:,.0f}: {two / one:.3f}"
        if what == "preset":
            speed = train([*words, *VERSIONS], seconds, folder / f"versions{number}")
            told += f"; mixed once a version {speed:,.0f}: {speed / one:.3f}"
        print(told, flush=True)
    print(f"{what}: median {statistics.median(ratios):.3f}")


def compare_pong(seeds: range, seconds: float, folder: Path) -> None:
    """Print the seconds to 18 on one machine, on two hosts, and with parameters mixed once a version."""
    for seed in seeds:
        words, told = [*PONG, "--seed", str(seed)], list[str]()
        for kind, more, hosts in (("local", [], 0), ("hosts", [], 2), ("versions", VERSIONS, 0)):
            run = folder / f"{kind}{seed}"
            speed = train([*words, *more], seconds, run, hosts=hosts)
            reached = seconds_to_18(run)
            told.append(f"{kind} {reached or 'not within'} s ({speed:,.0f} steps/s)")
            print(f"seed {seed}: {told[-1]}", flush=True)


def compare_parameters(folder: Path) -> None:
    """Print for each topology how many of the tensors of a checkpoint differ between one process and two hosts."""
    for topology in ("diffusion", "gossip", "allreduce"):
        words = [*LOCK_STEP, f"topology:{topology}"]
        words += [] if topology == "allreduce" else ["--topology.max-staleness", "0"]
        runs = [folder / f"{topology}-{kind}" for kind in ("inline", "hosts")]
        train([*words, "--placement", "inline"], 600.0, runs[0])
        train(words, 600.0, runs[1], hosts=2)
        one, two = (CheckpointStore(run / "checkpoints", 0).load("last") for run in runs)
        learnt = [name for name in one.tensors if "learner." in name]
        differ = [name for name in learnt if not torch.equal(one.tensors[name], two.tensors[name])]
        versions = from_disk(one, 2).learners[0].version
        print(
            f"{topology}: {versions} versions, {len(differ)} of {len(learnt)} tensors differ",
            flush=True,
        )


if __name__ == "__main__":
    main()
