"""Golden runs: tiny trainings of every part, whose parameters and episodes a change of structure must not change.

    python benchmarks/golden.py --record golden.json        before the change
    python benchmarks/golden.py --check golden.json         after it, on the same machine
    python benchmarks/golden.py --against HEAD~1            both in one command: a revision, then the working tree

Numbers are those of one machine and one version of torch: `--check` refuses records of another. Every run is reproducible
to the bit, so a check that differs is a change of behaviour. Runs are made through the command line and read through
`gossamer.load_policy` and `episodes.jsonl`, so the records outlive any module.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
COMMON = (
    "--seed 1 --evaluation.every-seconds 0 --checkpoint-every-seconds 0 --keep-checkpoints 1 "
    "--optimizer.schedule constant"
)
CART = "CartPole-v1 --num-envs 4 --unroll-length 16"
PONG = "PongNoFrameskip-v4 --num-envs 4 --unroll-length 8 --policy.fc-size 32 --policy.normalize-steps 64"
# Written out: a suite's defaults may change, and what these settings compute must not.
NORMALIZED = (
    "--algorithm.normalize-advantage --algorithm.value-norm false --policy.torso nature --policy.last-filters 64 "
    "--optimizer.learning-rate 5e-4 --optimizer.learn-start 0"
)
FOUR = "--num-learners 4"
PPO = "algorithm:ppo --algorithm.passes 2 --algorithm.num-minibatches 2"
ONE_EACH = "--placement local --learners-per-process 1"

RUNS: dict[str, tuple[str, int]] = {
    # Every algorithm; one process, and acting beside learning.
    "a2c": (f"{CART} algorithm:a2c --placement inline", 1600),
    "vtrace-pong": (
        f"{PONG} algorithm:vtrace --algorithm.num-minibatches 2 {NORMALIZED} --placement inline --lag 1",
        192,
    ),
    "ppo-pong-overlapped": (f"{PONG} {PPO} --placement local --lag 1", 224),
    "ppo-pendulum": (f"Pendulum-v1 --num-envs 4 --unroll-length 16 {PPO} --placement inline", 1600),
    "ppo-mujoco-workers": (
        f"HalfCheetah-v5 --num-envs 4 --unroll-length 16 --env.workers 2 {PPO} --placement local --lag 1",
        960,
    ),
    "laser-uniform": (f"{CART} algorithm:laser --replay-ratio 3 --placement inline", 1600),
    "laser-elite-pong": (
        f"{PONG} algorithm:laser --replay-ratio 1 --replays.1.name elite --algorithm.num-minibatches 4 "
        f"--algorithm.max-kl-nats 0.3 {NORMALIZED} --placement local --lag 1",
        224,
    ),
    "impact-circular": (
        f"{CART} algorithm:impact --replay-ratio 1 --replays.1.name circular --placement local --lag 1",
        1600,
    ),
    "cloning-attentive-gru": (
        f"{CART} algorithm:vtrace --policy.core gru --replay-ratio 1 --replays.1.name attentive --replay-burn-in 4 "
        "--algorithm.policy-cloning-cost 0.01 --algorithm.value-cloning-cost 0.005 --placement inline",
        1600,
    ),
    "ppo-lstm": (f"{CART} {PPO} --policy.core lstm --placement local --lag 1", 1600),
    # Every topology; learners that take turns, and learners in processes.
    "independent": (f"{CART} {PPO} topology:single --num-learners 2 --placement inline", 1600),
    "population": (
        f"{CART} algorithm:laser --replay-ratio 1 --replays.1.shared on --num-learners 2 "
        "--optimizer.learning-rate 0.001 0.0005 --placement inline",
        1600,
    ),
    "gossip": (
        f"{CART} {PPO} topology:gossip --topology.graph rotating --topology.max-staleness 0 {FOUR} --placement inline",
        3200,
    ),
    "diffusion-tasks": (
        "RandomExtremeAcrobot-v1 --num-envs 2 --unroll-length 8 algorithm:a2c topology:diffusion "
        f"--topology.adjacency ring {FOUR} --placement inline",
        1600,
    ),
    "allreduce": (f"{CART} algorithm:vtrace topology:allreduce {FOUR} --placement inline", 3200),
    "gossip-processes": (
        f"{CART} {PPO} topology:gossip --topology.max-staleness 0 --num-learners 2 {ONE_EACH}",
        1600,
    ),
    "diffusion-processes": (
        f"{CART} algorithm:vtrace topology:diffusion --topology.max-staleness 0 --num-learners 3 {ONE_EACH}",
        2400,
    ),
    "allreduce-processes": (
        f"{CART} algorithm:laser --replay-ratio 1 topology:allreduce --num-learners 2 {ONE_EACH}",
        1600,
    ),
}
"""Settings and env steps of each; the second half is trained after a resume, which has to be exact."""


def main() -> None:
    """Record, check, or both."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="FILE", help="train and write the hashes")
    what.add_argument("--check", type=Path, metavar="FILE", help="train and compare with them")
    what.add_argument(
        "--against", metavar="REVISION", help="compare with a revision, trained here and now"
    )
    what.add_argument("--hash", type=Path, metavar="RUN", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS), metavar="NAME")
    asked = parser.parse_args()
    if asked.hash is not None:
        print(json.dumps(hashes(asked.hash)))
    elif asked.record is not None:
        asked.record.write_text(
            json.dumps({"machine": machine(), "runs": record(asked.only, HERE)}, indent=1)
        )
    elif asked.check is not None:
        before = json.loads(asked.check.read_text())
        if before["machine"] != machine():
            sys.exit(
                f"{asked.check} is of {before['machine']}, this is {machine()}: record it here, or use --against"
            )
        compare(before["runs"], record(asked.only, HERE))
    else:
        with tempfile.TemporaryDirectory() as home:
            tree = Path(home) / "before"
            git = ["git", "-C", str(HERE)]
            subprocess.run(
                [*git, "worktree", "add", "--quiet", "--detach", str(tree), asked.against],
                check=True,
            )
            try:
                before = record(asked.only, tree)
            finally:
                subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
        compare(before, record(asked.only, HERE))


def machine() -> dict[str, Any]:
    """Return what the last bits of sums depend on."""
    import torch

    from gossamer.machine import processor_name

    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
    }


def record(names: list[str], tree: Path) -> dict[str, dict[str, Any]]:
    """Train with the sources of a tree and return each run's hashes."""
    found: dict[str, dict[str, Any]] = {}
    environ = {**os.environ, "PYTHONPATH": str(tree / "src"), "NO_COLOR": "1"}
    for name in names:
        words, steps = RUNS[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as home:
            run = Path(home) / "run"
            first = [
                *words.split(),
                *COMMON.split(),
                "--total-env-steps",
                str(steps // 2),
                "--run-folder",
                str(run),
            ]
            rest = ["--resume", str(run), "--total-env-steps", str(steps)]
            if "replay" in words:
                first.append("--checkpoint-replay")
            for argv in (first, rest):
                done = subprocess.run(
                    [sys.executable, "-m", "gossamer", "train", *argv],
                    env=environ, cwd=home, capture_output=True, text=True, check=False,
                )  # fmt: skip
                if done.returncode != 0:
                    sys.exit(
                        f"{name}: gossamer train {' '.join(argv)} ended with {done.returncode}:\n{done.stderr}"
                    )
            told = subprocess.run(
                [sys.executable, __file__, "--hash", str(run)],
                env=environ, check=True, capture_output=True, text=True,
            )  # fmt: skip
        found[name] = json.loads(told.stdout)
        print(
            f"{name}: {found[name]['parameters'][:12]} ({time.monotonic() - began:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
    return found


def hashes(run: Path) -> dict[str, Any]:
    """Return hashes of every learner's last parameters and moments and of all episodes, and what was counted."""
    import gossamer

    learners = json.loads((run / "config.json").read_text())["num_learners"]
    parameters = hashlib.sha256()
    for learner in range(learners):
        policy = gossamer.load_policy(str(run), learner=learner if learners > 1 else None)
        for tensor in policy.state_dict().values():  # what is derived from it may be kept elsewhere
            parameters.update(tensor.contiguous().numpy().tobytes())
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    # Processes write as they come; each learner's and environment's episodes are in order.
    told = sorted(
        (x.get("learner", 0), x["env"], i, x["return"], x["length"]) for i, x in enumerate(rows)
    )
    played = [(learner, env, total, length) for learner, env, _, total, length in told]
    summary = json.loads((run / "summary.json").read_text())
    return {
        "parameters": parameters.hexdigest(),
        "episodes": hashlib.sha256(json.dumps(played).encode()).hexdigest(),
        "played": len(played),
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
    }


def compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> None:
    """Print what differs, and exit with 1 if anything does."""
    different = [name for name in after if before.get(name) != after[name]]
    for name in different:
        was = before.get(name, {})
        print(f"{name} differs: {', '.join(k for k, x in after[name].items() if was.get(k) != x)}")
    print(f"{len(after) - len(different)} of {len(after)} golden runs are equal")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
