"""A run that is asked to go on and has nothing left to do: why, and what to type so that it trains further."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gossamer.record.checkpoint import CANDIDATE
from gossamer.record.exits import exit_of
from gossamer.record.readers import FolderReader, table_in
from gossamer.record.window import Window
from gossamer.run.stopping import end_of
from gossamer.run.summary import summary_of
from gossamer.system.reading import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.record.exits import Exit
    from gossamer.record.folder import RunFolder
    from gossamer.run.checkpoint_contents import RunState


@dataclass(frozen=True)
class Finished:
    """A run that is asked to go on, and has reached its end."""

    folder: Path
    summary: Mapping[str, Any]
    told: str
    """What says so, and how to go on."""


def find_end(
    config: TrainConfig, folder: RunFolder, state: RunState, *, returns_compare: bool = True
) -> Finished | None:
    """Return what is told of a run that is at its end; None: it has something to do.

    Args:
        config: where the run ends.
        folder: of the run.
        state: of its last checkpoint.
        returns_compare: the returns of its last episodes are of such episodes as are to come.
    """
    record, window = state.recorder, Window(config.num_learners)
    window.load(record.window)
    window.leave_out(rank for rank, _ in state.policies.absent)
    mean = window.mean()
    ended = end_of(
        config,
        env_steps=state.env_steps,
        seconds=record.seconds,
        mean_return=mean if window.full and returns_compare else None,
    )
    if ended is None:
        return None
    summary, how = _summary(folder, state, ended, mean), str(ended)
    if ended.cause == "stop_after_seconds":
        how += f" by its {summary['seconds']:.0f} s over all sessions"
    limit = _raised(config, ended, state.env_steps, summary["seconds"])
    told = (
        f"{folder.shown} is finished ({how}); to train it further: gossamer train --resume "
        f"{quoted(folder.shown)} {limit}"
    )
    return Finished(folder.path, summary, told)


def _summary(folder: RunFolder, state: RunState, ended: Exit, mean: float | None) -> dict[str, Any]:
    """Return the summary of a run that has ended; one that was killed after its last checkpoint gets it now."""
    record, updates = state.recorder, state.updates[0]
    summary = table_in(FolderReader(folder.path), "summary.json")
    told, before = isinstance(summary.get("seconds"), int | float), exit_of(summary)
    # What failed or was stopped behind the last checkpoint, as an evaluation, is nothing that is left to do.
    whole = before is not None and before.kind == "done"
    if not told or not whole or summary.get("updates") != updates:
        (steps, seconds), store = record.paced, folder.checkpoints()
        summary = summary_of(
            env_steps=state.env_steps,
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
        with suppress(OSError):  # of a full disk
            folder.write_json("summary.json", summary)
    return summary


def _raised(config: TrainConfig, ended: Exit, env_steps: int, seconds: float) -> str:
    """Return what to type so that a finished run, which has trained for so many env steps and seconds, goes on."""
    if ended.cause == "total_env_steps":
        return f"--total-env-steps {2 * max(config.total_env_steps, env_steps):_}"
    if ended.cause == "stop_after_seconds":
        return f"--stop-after-seconds {2 * max(config.stop_after_seconds, math.ceil(seconds)):g}"
    return "--stop-at-return none"
