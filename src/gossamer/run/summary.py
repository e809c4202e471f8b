"""Summary of a run that has ended, and whether a run that is asked to go on has."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gossamer.record.checkpoint import CANDIDATE
from gossamer.record.readers import FolderReader, table_in
from gossamer.run.recorder import Window
from gossamer.run.stopping import end_of

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.record.checkpoint import Score
    from gossamer.record.exits import Exit
    from gossamer.record.folder import RunFolder
    from gossamer.run.checkpoint_contents import RunState


def finished(
    config: TrainConfig, folder: RunFolder, state: RunState
) -> tuple[Exit | None, dict[str, Any]]:
    """Return why a run has nothing left to do, and its summary; None if it has something to do.

    A run killed between its last checkpoint and its summary gets the summary now.
    """
    record, window = state.recorder, Window(config.num_learners)
    window.load(record.window)
    env_steps, updates, mean = state.env_steps, state.updates[0], window.mean()
    ended = end_of(
        config,
        env_steps=env_steps,
        seconds=record.seconds,
        mean_return=mean if window.full else None,
    )
    if ended is None:
        return None, {}
    summary = table_in(FolderReader(folder.path), "summary.json")
    told = isinstance(summary.get("seconds"), int | float)
    if not told or summary.get("updates") != updates:
        (steps, seconds), store = record.paced, folder.checkpoints()
        summary = summary_of(
            env_steps=env_steps,
            updates=updates,
            restarts=0,
            seconds=record.seconds,
            steps_per_second=steps / seconds if seconds and steps else None,
            mean_return=mean,
            best=store.score(),
            candidate=store.score(CANDIDATE),
            best_learner=state.policies.best_learner,
            ended=ended,
        )
        folder.write_json("summary.json", summary)
    return ended, summary


def raised(config: TrainConfig, ended: Exit, seconds: float) -> str:
    """Return what to type so that a finished run, which has trained for so many seconds, goes on."""
    if ended.cause == "total_env_steps":
        return f"--total-env-steps {2 * config.total_env_steps:_}"
    if ended.cause == "stop_after_seconds":
        return f"--stop-after-seconds {2 * max(config.stop_after_seconds, math.ceil(seconds)):g}"
    return "--stop-at-return none"


def summary_of(
    *,
    env_steps: int,
    updates: int,
    restarts: int,
    seconds: float,
    steps_per_second: float | None,
    mean_return: float | None,
    best: Score | None,
    candidate: Score | None,
    best_learner: int | None,
    ended: Exit | None,
) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "env_steps": env_steps,
        "updates": updates,
        "restarts": restarts,
        "seconds": round(seconds, 3),
        "steps_per_second": steps_per_second,
        "mean_return_last_100": mean_return,
        "best_evaluation": None if best is None else best.mean,
        "best_evaluation_episodes": None if best is None else best.episodes,
        "candidate_evaluation": None if candidate is None else candidate.mean,
        "best_learner": best_learner,
        "exit_reason": "" if ended is None else str(ended),
        "exit": None if ended is None else asdict(ended),
    }
