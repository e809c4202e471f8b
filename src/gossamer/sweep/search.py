"""What a sweep trains next: which trials there are, whose runs are left, and which of them are not worth going on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RunFailed
from gossamer.record.objectives import MARKS, evaluations, is_done, shown_value
from gossamer.sweep.space import grid_choice, random_choice
from gossamer.sweep.study import Study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gossamer.sweep.file import Sweep
    from gossamer.sweep.pool import Outcome
    from gossamer.sweep.processes import Run
    from gossamer.sweep.store import SweepFolder, Trial

MOST_FAILURES = 3
"""Trials that fail before one is done: then something is wrong with all of them."""


class Search:
    """The trials of a sweep; a source of runs.

    Args:
        sweep: what is searched.
        folder: where it is written down.
        trials: that the folder holds.
        say: shows a line.
    """

    def __init__(
        self, sweep: Sweep, folder: SweepFolder, trials: list[Trial], say: Callable[[str], None]
    ):
        self.trials = {trial.number: trial for trial in trials}
        self.refused: dict[int, tuple[Mapping[str, Any], str]] = {}
        """Trials whose settings cannot work together, with the reason."""
        self._sweep, self._folder, self._say = sweep, folder, say
        self._pending: deque[Run] = deque()
        self._trial_of: dict[str, Trial] = {}
        self._study: Study | None = None
        if sweep.uses_optuna:
            known = [x.study_number for x in trials if x.study_number is not None]
            self._study = Study(folder.path, sweep, known)
        for trial in trials:
            self._admit(trial)

    def _admit(self, trial: Trial) -> None:
        """Take up a trial: what is left of it, or what it is worth."""
        self._trial_of |= {run.name: trial for run in trial.runs}
        if trial.pruned or self._folder.judge(trial):
            self._tell(trial)
            return
        self._folder.rewrite(trial)
        self._pending += [run for run in trial.runs if not is_done(run.folder)]

    def left_over(self) -> list[Run]:
        """Return the runs that an earlier sweep may still be training."""
        return [run for trial in self.trials.values() for run in trial.runs]

    def adopted(self, runs: Sequence[Run]) -> None:
        """Take notice of runs that are being trained."""
        names = {run.name for run in runs}
        self._pending = deque(run for run in self._pending if run.name not in names)

    def next(self) -> Run | None:
        """Return a run to begin or to go on with."""
        self._refuse_to_go_on()
        while not self._pending and len(self.trials) + len(self.refused) < self._sweep.trials:
            self._new_trial()
            self._refuse_to_go_on()
        return self._pending.popleft() if self._pending else None

    def _refuse_to_go_on(self) -> None:
        reasons = [x.failure for x in self.trials.values() if x.failure]
        reasons += [reason for _, reason in self.refused.values()]
        if len(reasons) >= MOST_FAILURES and not any(x.values for x in self.trials.values()):
            raise RunFailed(
                f"{len(reasons)} trials failed and none was done; the last one: {reasons[-1]}"
            )

    def _new_trial(self) -> None:
        used = {*self.trials, *self.refused}
        number = next(i for i in range(self._sweep.trials) if i not in used)
        study_number, chosen = self._choose(number)
        try:
            trial = self._folder.add(number, chosen, study_number)
        except ConfigError as error:
            self.refused[number] = (chosen, str(error))
            self._say(f"trial {number} is left out, its settings cannot work together: {error}")
            return
        self.trials[number] = trial
        self._admit(trial)

    def _choose(self, number: int) -> tuple[int | None, dict[str, Any]]:
        sweep = self._sweep
        if sweep.method == "tpe":
            assert self._study is not None
            return self._study.ask(number)
        if sweep.method == "list":
            chosen = sweep.experiments[number]
        elif sweep.method == "grid":
            chosen = grid_choice(sweep.space, number)
        else:
            chosen = random_choice(sweep.space, number, sweep.sampler_seed)
        return self._study.ask(number, chosen) if self._study is not None else (None, chosen)

    def ended(self, run: Run, outcome: Outcome) -> None:
        """Take notice that a run has ended."""
        trial = self._trial_of[run.name]
        if trial.pruned or trial.values or outcome.state == "stopped":
            return  # judged before, when the files of its last run were there and its process was not gone yet
        if outcome.state == "failed":
            trial.failure = outcome.reason
            self._drop(trial)
            self._say(f"trial {trial.number} failed ({run.name}): {outcome.reason}")
        elif self._folder.judge(trial):
            self._report(trial)
            self._tell(trial)
            if trial.failure:
                self._say(f"trial {trial.number} failed: {trial.failure}")
            else:
                self._say(self._told(trial))

    def _told(self, trial: Trial) -> str:
        names = self._sweep.judge.objectives
        worth = ", ".join(
            f"{x} {shown_value(x, y)}" for x, y in zip(names, trial.values, strict=True)
        )
        done = sum(bool(x.values) for x in self.trials.values())
        return f"trial {trial.number}: {worth} ({settings_in_words(trial.chosen)}); {done} of {self._sweep.trials} trials done"

    def _drop(self, trial: Trial) -> None:
        self._pending = deque(x for x in self._pending if self._trial_of[x.name] is not trial)

    def _tell(self, trial: Trial) -> None:
        if self._study is not None and trial.study_number is not None and not trial.failure:
            self._study.tell(trial.study_number, trial.values)

    def look(self, running: Sequence[Run]) -> Sequence[Run]:
        """Return the runs of trials that are not worth going on."""
        if self._study is None or self._sweep.pruner == "none":
            return [run for run in running if self._trial_of[run.name].pruned]
        for trial in {
            self._trial_of[x.name].number: self._trial_of[x.name] for x in running
        }.values():
            if trial.study_number is None or trial.pruned:
                continue
            self._report(trial)
            if self._study.should_prune(trial.study_number):
                self._folder.prune(trial)  # first: it must not be resumed, whatever comes between
                self._study.tell(trial.study_number, ())
                self._drop(trial)
                self._say(f"trial {trial.number} is stopped early: others were better at that time")
        return [run for run in running if self._trial_of[run.name].pruned]

    def _report(self, trial: Trial) -> None:
        """Tell the evaluations of a trial's runs; one moment of one seed is the same in all trials."""
        if self._study is None or self._sweep.pruner == "none" or trial.study_number is None:
            return
        for index, run in enumerate(trial.runs):
            config = trial.config
            found = evaluations(
                run.folder,
                total_env_steps=config.total_env_steps,
                stop_after_seconds=config.stop_after_seconds,
            )
            for mark, mean in found.items():
                self._study.report(trial.study_number, index * MARKS + mark, mean)


def settings_in_words(chosen: Mapping[str, Any]) -> str:
    """Return the settings of a trial in a line."""
    return ", ".join(f"{name} {setting_in_words(value)}" for name, value in chosen.items())


def setting_in_words(value: Any) -> str:
    """Return the value of a setting, a number to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
