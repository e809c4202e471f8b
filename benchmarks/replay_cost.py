"""What replay costs: learning a replayed row against an online one, and choosing rows against what that must take.

    taskset -c 0 python benchmarks/replay_cost.py --seconds 40 --repeats 3

Pong with the Nature network and V-trace, one pass, 32 environments of 32 steps, everything in one process that takes
turns, on one core, so that seconds add up. Three kinds of run alternate, so that a noisy machine is as noisy to each:

- none: online columns only;
- uniform: half of each batch replayed. "a learnt row" is the learner's time, putting batches together included, over
  online and replayed rows; the ratio to `none` tells what a replayed row costs more than an online one.
- elite: half of each batch replayed, picked from twice as many candidates. Beyond `uniform` an env step needs the
  features of one row to be stored and of two candidates; timed by themselves those predict its speed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COLUMNS, ROWS, MULTIPLIER = 32, 32, 2.0
COMMON = [
    "--config", "bench", "--placement", "inline", "--lag", "0", "--num-envs", str(COLUMNS),
    "--unroll-length", str(ROWS), "--checkpoint-every-seconds", "0",
]  # fmt: skip
QUEUE = {"name": "queue", "fraction": 0.5}
CAPACITY_STEPS = 8_192
CAPACITY = {"fraction": 0.5, "capacity_steps": CAPACITY_STEPS}
ELITE = {"name": "elite", "candidate_multiplier": MULTIPLIER, "anneal_updates": 10**9}
KINDS: dict[str, list[dict[str, Any]]] = {
    "none": [{"name": "queue"}],
    "uniform": [QUEUE, {"name": "uniform", **CAPACITY}],
    "elite": [QUEUE, {**ELITE, **CAPACITY}],
}


def main() -> None:
    """Alternate the kinds of run, and print what each took."""
    parser = argparse.ArgumentParser(description="What replay costs.")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    parser.add_argument("--repeats", type=int, default=3, help="of each kind of run")
    asked = parser.parse_args()
    print("| repeat | kind | env steps/s | us a learnt row | us a forward row |")
    print("|---|---|---|---|---|")
    rows, speeds = [], []
    for repeat in range(asked.repeats):
        found = {kind: measure(replays, asked.seconds) for kind, replays in KINDS.items()}
        forward = forward_seconds()
        for kind, (speed, row) in found.items():
            shown = f"{1e6 * forward:.0f}" if kind == "elite" else ""
            print(
                f"| {repeat + 1} | {kind} | {speed:.0f} | {1e6 * row:.0f} | {shown} |", flush=True
            )
        rows.append(found["uniform"][1] / found["none"][1])
        predicted = 1.0 / (1.0 / found["uniform"][0] + (1.0 + MULTIPLIER) * forward)
        speeds.append(found["elite"][0] / predicted)
    for what, ratios in (
        ("seconds of a learnt row, uniform / none", rows),
        ("env steps/s of elite / predicted", speeds),
    ):
        each = ", ".join(f"{x:.3f}" for x in ratios)
        print(f"{what}: {statistics.median(ratios):.3f} ({each})")


def measure(replays: list[dict[str, Any]], seconds: float) -> tuple[float, float]:
    """Train; return env steps per second and the learner's seconds per learnt row, once batches are whole."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "gossamer", "train", *COMMON, "--run-folder", str(run)]
        command += ["--replays", json.dumps(replays), "--stop-after-seconds", str(seconds)]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds + 180.0,
        )
        lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    # Not starting, nor filling: what is written to for the first time is cleared by the system first.
    found = [row for row in found if row["env_steps"] > 1.25 * CAPACITY_STEPS]
    first, last = found[0], found[-1]
    steps, elapsed = last["env_steps"] - first["env_steps"], last["time_s"] - first["time_s"]
    busy = learnt = 0.0
    for before, after in itertools.pairwise(found):
        taken = after["time_s"] - before["time_s"]
        busy += taken * (after["share/learn"] + after.get("share/wait_replay", 0.0))
        learnt += (after["env_steps"] - before["env_steps"]) * (
            1.0 + after.get("replay/ratio", 0.0)
        )
    return steps / elapsed, busy / learnt


def forward_seconds() -> float:
    """Time what measures features, on as many columns at a time as it does; return seconds per row."""
    import torch

    from gossamer import make_config
    from gossamer.build.plan import make_plan
    from gossamer.build.replays import CANDIDATE_COLUMNS
    from gossamer.build.roles import build_inference_policy, build_policy
    from gossamer.envs.registry import read_spec
    from gossamer.machine import keep_freed_memory
    from gossamer.replay.recent import RecentPolicy
    from gossamer.types import empty_trajectory

    keep_freed_memory()  # as a run does
    settings = {"num_envs": COLUMNS, "unroll_length": ROWS, "placement": "inline"}
    config = make_config(settings=settings, presets=["bench"])
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    policy = build_policy(config, spec)
    plan = make_plan(config, spec)
    acting = build_inference_policy(policy, plan, policy.device)
    recent = RecentPolicy(acting, policy.shared_tensors(), 1)
    number = recent.take()
    trajectory = empty_trajectory(
        spec, unroll_length=ROWS, num_columns=CANDIDATE_COLUMNS, core_units=policy.core_units
    )
    times: list[float] = []
    for _ in range(30):
        began = time.perf_counter()
        recent.features(number, trajectory)
        times.append(time.perf_counter() - began)
    return statistics.median(times) / (ROWS * CANDIDATE_COLUMNS)


if __name__ == "__main__":
    main()
