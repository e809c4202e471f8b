"""One choice of settings, the runs that are trained with it, and their worth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from gossamer.record.objectives import shown_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.record.objectives import Judge
    from gossamer.sweep.pool import PlannedRun

State = Literal["done", "pruned", "failed", "unfinished"]


@dataclass
class Trial:
    """One choice of settings, and its runs."""

    number: int
    chosen: dict[str, Any]
    folder: Path
    config: TrainConfig
    runs: list[PlannedRun]
    pruned: bool = False
    """Stopped early, as others were better at that time."""
    judged: int = 0
    """Moment, of those that trials have in common, up to which a pruner has let it go on; 0: none yet."""
    failure: str = ""
    """Reason why one of its runs cannot go on; not kept, so that the next sweep tries again."""
    values: tuple[float, ...] = ()
    """Its objectives, means over its runs, once all are done."""
    of_seeds: list[list[float]] = field(default_factory=list[list[float]])
    """The objectives of each run."""

    @property
    def may_go_on(self) -> bool:
        """Whether a run of it is left to train."""
        return not all(run.done for run in self.runs)

    @property
    def state(self) -> State:
        """Its state; one that was stopped early stays so, whatever became of its runs."""
        if self.values:
            return "done"
        if self.pruned:
            return "pruned"
        return "failed" if self.failure else "unfinished"

    def judge(self, judge: Judge) -> bool:
        """Compute the worth of the trial from its runs; return whether all of them are done."""
        if self.may_go_on:
            return False
        worth = [
            judge.of_run(
                run.files,
                total_env_steps=self.config.total_env_steps,
                stop_after_seconds=self.config.stop_after_seconds,
                num_learners=self.config.num_learners,
            )
            for run in self.runs
        ]
        self.values, missing = judge.means(worth)
        if missing:
            self.failure = f"not every run has recorded the objective {missing}: " + (
                "no policy was evaluated; if its last evaluation was interrupted, delete the run's folder and type the same "
                "command again; otherwise set evaluation.every_seconds lower, in another sweep"
                if missing == "evaluation"
                else "no training episode ended; set total_env_steps higher, in another sweep"
            )
        else:
            self.of_seeds = cast("list[list[float]]", worth)
        return True


def settings_in_words(chosen: Mapping[str, Any]) -> str:
    """Return the settings of a trial in a line."""
    return ", ".join(f"{name} {setting_in_words(value)}" for name, value in chosen.items())


def setting_in_words(value: Any) -> str:
    """Return the value of a setting, a number to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def worth_in_words(judge: Judge, values: Sequence[float]) -> str:
    """Return the worth of a trial by each objective in a line."""
    pairs = zip(judge.objectives, values, strict=True)
    return ", ".join(f"{name} {shown_value(name, value)}" for name, value in pairs)
