"""kill -9 at random moments of a short run, resumed each time: does it end as if nothing happened?

    python benchmarks/kill_resume.py --kills 20
    python benchmarks/kill_resume.py --kills 10 -- algorithm:laser --replay-ratio 3 --checkpoint-replay

For CartPole and for Pong: one run is left alone; another is killed again and again, at a random moment
after its first new checkpoint, and resumed. A kill counts as survived when the run came back from it;
all of them count for nothing unless every tensor of the last checkpoint (parameters, optimizer,
normaliser, environments, what replays hold) and every episode's return equal those of the run that was left
alone. Settings after `--` go to both, and win over those below.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from gossamer.record.checkpoint import CheckpointStore

COMMON = [
    "--checkpoint-every-seconds=0.2",
    "--evaluation.every-seconds=0",
    "--optimizer.schedule=constant",
    "--algorithm.passes=1",
    "--algorithm.num-minibatches=1",
]
TASKS = {
    "CartPole-v1": [
        *COMMON,
        "--lag=0",
        "--num-envs=4",
        "--unroll-length=8",
        "--total-env-steps=60_000",
    ],
    "PongNoFrameskip-v4": [*COMMON, "--lag=1", "--num-envs=8", "--total-env-steps=100_000"],
}
ALGORITHMS = {"CartPole-v1": "algorithm:ppo", "PongNoFrameskip-v4": "algorithm:vtrace"}
PATIENCE_SECONDS = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--env", choices=TASKS, action="append", help="only this one")
    own = sys.argv[1:]
    cut = own.index("--") if "--" in own else len(own)
    asked, given = parser.parse_args(own[:cut]), own[cut + 1 :]
    failed = False
    for env_id in asked.env or TASKS:
        with tempfile.TemporaryDirectory() as folder:
            survived, equal = measure(env_id, given, Path(folder), asked.kills, asked.seed)
        failed = failed or survived < asked.kills or not equal
        count = survived if equal else 0
        print(f"{env_id}: {count}/{asked.kills} kills survived; final state equal: {equal}")
    sys.exit(failed)


def measure(env_id: str, given: list[str], folder: Path, kills: int, seed: int) -> tuple[int, bool]:
    """Return how many kills a run came back from, and whether it then equals the other run."""
    alone, killed = folder / "alone", folder / "killed"
    own = [] if any(x.lstrip("-").startswith("algorithm:") for x in given) else [ALGORITHMS[env_id]]
    words = [env_id, *own, *TASKS[env_id], *given]
    if not finish(start([*words, "--run-folder", str(alone)])):
        sys.exit(f"the run that is left alone fails: gossamer train {shlex.join(words)}")
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    survived = 0
    for kill in range(kills + 1):
        before = checkpoints(killed)
        resume = ["--resume", str(killed)]
        process = start(resume if before else [*words, "--run-folder", str(killed)])
        if kill == kills:
            survived += before != [] and finish(process)
            break
        if not wait_for_checkpoint(process, killed, before):
            print(f"{env_id}: the run ended before kill {kill + 1}; give it more steps")
            break
        survived += kill > 0
        try:
            process.wait(chance.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
    return survived, same(alone, killed)


def start(words: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gossamer", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()


def wait_for_checkpoint(process: subprocess.Popen[bytes], folder: Path, before: list[int]) -> bool:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while checkpoints(folder)[-1:] <= before[-1:]:
        if process.poll() is not None or time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def checkpoints(folder: Path) -> list[int]:
    return CheckpointStore(folder / "checkpoints", 0).list()


def same(one: Path, other: Path) -> bool:
    a, b = (CheckpointStore(x / "checkpoints", 0).load("last") for x in (one, other))
    if a.updates != b.updates or a.tensors.keys() != b.tensors.keys():
        return False
    equal = all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    return equal and episodes(one) == episodes(other)


def episodes(folder: Path) -> list[tuple[int, float, int]]:
    rows = map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())
    return [(row["env"], row["return"], row["length"]) for row in rows]


if __name__ == "__main__":
    main()
