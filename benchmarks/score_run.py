"""Score every checkpoint of a run afterwards: when did its policy first reach a mean return?

Plays a fixed number of full games with fixed seeds from each checkpoint and names the first of two
consecutive ones that reach the target, with the wall time at which it was written.

    python benchmarks/score_run.py RUN --target 18 --episodes 30
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

from gossamer.build.evaluation_tasks import build_trials
from gossamer.config import from_dict, saved_settings
from gossamer.envs.registry import read_spec
from gossamer.machine import threads
from gossamer.record.folder import RunFolder
from gossamer.record.window import WINDOW, Window
from gossamer.roles.evaluation import play
from gossamer.run.checkpoint_contents import from_disk
from gossamer.run.load_policy import policy_and_checkpoint
from gossamer.system.cores import num_cores


def main() -> None:
    """Score a run's checkpoints in order, and stop once the target has been held twice."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("run", help="run folder trained with --keep-checkpoints 0")
    parser.add_argument("--target", type=float, required=True, help="mean return to reach")
    parser.add_argument("--episodes", type=int, default=30, help="games per checkpoint")
    parser.add_argument("--seed", type=int, default=1, help="seed of the games")
    parser.add_argument("--sample", action="store_true", help="sample actions; else the likeliest")
    parser.add_argument(
        "--skip-below",
        type=float,
        default=float("-inf"),
        help="do not play where the mean training return was lower than this",
    )
    parser.add_argument(
        "--window", type=int, default=WINDOW, help="last training games of that mean, at most 100"
    )
    parser.add_argument("--all", action="store_true", help="go on after the target was held")
    asked = parser.parse_args()
    if not 1 <= asked.window <= WINDOW:
        parser.error(f"--window {asked.window}: from 1 to {WINDOW}")

    folder = RunFolder.open(asked.run)
    config = from_dict(saved_settings(folder.path) or {})
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    trial = build_trials(
        config, spec, episodes=asked.episodes, seed=asked.seed, num_threads=num_cores()
    )[0]
    envs = trial.open()
    how = "sampled" if asked.sample else "greedy"
    print(f"{spec.protocol}; {trial.episodes} games, {how}, seed {asked.seed}")
    before: tuple[dict[str, Any], float] | None = None
    reached: dict[str, Any] | None = None
    for updates in folder.checkpoints().list():
        policy, checkpoint = policy_and_checkpoint(folder, config, updates, None)
        state, window = from_disk(checkpoint, config.num_learners), Window(config.num_learners)
        window.load(state.recorder.window)
        mean = window.mean(asked.window)
        training = float("-inf") if mean is None else mean
        if training < asked.skip_below:
            before = None  # it may have been below the target: what follows is the first in a row
            continue
        began = time.perf_counter()
        with threads(num_cores()):
            result = play(
                policy,
                envs,
                episodes=trial.episodes,
                greedy=not asked.sample,
                seed=asked.seed,
            )
        result = replace(result, tasks=trial.tasks)
        row = {
            "updates": updates,
            "env_steps": state.learners[0].env_steps,
            "seconds": round(state.recorder.seconds, 1),
            "training_return": round(training, 2),
            "mean": round(result.mean, 2),
            "standard_error": round(result.standard_error, 2),
            "truncated": result.truncated,
            "scoring_seconds": round(time.perf_counter() - began, 1),
        }
        print(json.dumps(row), flush=True)
        if before is not None and before[1] >= asked.target and result.mean >= asked.target:
            reached = reached if reached is not None else before[0]
            if not asked.all:
                break
        before = (row, result.mean)
    envs.close()
    print(
        f"reached {asked.target:g} at {reached['seconds']} s, {reached['env_steps']:,} env steps"
        if reached
        else f"{asked.target:g} not reached"
    )


if __name__ == "__main__":
    main()
