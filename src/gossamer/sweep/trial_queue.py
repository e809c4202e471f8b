"""The trials of a sweep that begins, or goes on after a kill: which runs are left, what those that are done are worth, which are stopped."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RunFailed
from gossamer.record.objectives import MARKS, evaluations
from gossamer.sweep.pool import RunQueue
from gossamer.sweep.search import Study
from gossamer.sweep.trial import settings_in_words, worth_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.record.exits import Exit
    from gossamer.sweep.pool import PlannedRun
    from gossamer.sweep.store import SweepFolder
    from gossamer.sweep.trial import State, Trial

MOST_FAILURES = 3
"""Trials that fail before one is done: then something is wrong with all of them."""
LONGER = 2.0
"""A run that trains for so many times as long as those that failed is no such one."""


class TrialQueue(RunQueue):
    """The runs of a sweep's trials, which begin as there is room for them.

    Args:
        folder: where the sweep is written down; it is locked.
    """

    def __init__(self, folder: SweepFolder):
        super().__init__()
        self.sweep = folder.sweep
        self.trials: dict[int, Trial] = {}
        self.refused: dict[int, tuple[dict[str, Any], str]] = {}
        """Settings of trials that cannot work together, with the reason."""
        self._folder = folder
        self._trial_of: dict[str, Trial] = {}
        self._began: dict[str, float] = {}  # when each run that trains began, by its name
        self._failed_seconds = 0.0  # that a run which failed has trained at most
        self._study = Study(folder.sweep) if folder.sweep.uses_optuna else None
        for trial in folder.read_trials():
            self._admit(trial)

    def by_number(self) -> list[Trial]:
        """Return the trials in the order of their numbers, in which they need not have come."""
        return [self.trials[x] for x in sorted(self.trials)]

    def count(self, *states: State) -> int:
        """Return how many trials are in one of some states."""
        return sum(x.state in states for x in self.trials.values())

    def _admit(self, trial: Trial) -> None:
        """Queue the runs that are left of a trial, or compute its worth."""
        self.trials[trial.number] = trial
        self.runs += trial.runs
        self._trial_of |= {run.name: trial for run in trial.runs}
        if self._study is not None:
            self._study.begin(trial.number, trial.chosen)
        if trial.pruned or trial.judge(self.sweep.judge):
            # Of one that trains the first look reports: pruners say once that it was worse.
            self._tell(trial)
            return
        self._report(trial, until=trial.judged)
        self._folder.write_settings(trial)
        self.pending += [run for run in trial.runs if not run.done]

    def next(self) -> PlannedRun | None:
        """Return a run to begin or to go on with."""
        if self._must_wait():
            return None
        while not self.pending and len(self.trials) + len(self.refused) < self.sweep.trials:
            self._new_trial()
        if self.refused and not self.trials:
            reason = list(self.refused.values())[-1][1]
            raise RunFailed(f"no trial has settings that can work together; the last one: {reason}")
        run = super().next()
        if run is not None:
            self._began.setdefault(run.name, time.monotonic())
        return run

    def adopted(self, run: PlannedRun) -> None:
        """Take a run that still trains from those that are to begin."""
        super().adopted(run)
        self._began.setdefault(run.name, time.monotonic())

    def to_begin(self) -> int:
        """Return how many runs are still to begin, those of trials that are not made yet among them."""
        trials = self.sweep.trials - len(self.trials) - len(self.refused)
        return super().to_begin() + trials * self.sweep.options.seeds

    def _must_wait(self) -> bool:
        """Return whether no run is to begin, as all trials may fail as those before have; raise RunFailed if they do.

        One that trains shows that they do not when it has trained for longer than those that have failed.
        """
        reasons = [x.failure for x in self.trials.values() if x.failure]
        if len(reasons) < MOST_FAILURES or self.count("done", "pruned"):
            return False
        if not self._began:
            if self.pending:  # of a trial that was begun before so many had failed
                return False
            raise RunFailed(
                f"{len(reasons)} trials failed and none was done; the last one: {reasons[-1]}"
            )
        began = [x for name, x in self._began.items() if not self._trial_of[name].failure]
        return not began or time.monotonic() - min(began) < LONGER * self._failed_seconds

    def _new_trial(self) -> None:
        used = {*self.trials, *self.refused}
        number = next(i for i in range(self.sweep.trials) if i not in used)
        tpe = self._study if self.sweep.options.method == "tpe" else None
        chosen = self.sweep.choice(number) if tpe is None else tpe.propose(number)
        try:
            trial = self._folder.add(number, chosen)
        except ConfigError as error:
            self.refused[number] = (chosen, str(error))
            self.say(f"trial {number} is left out, its settings cannot work together: {error}")
            return
        self._admit(trial)

    def ended(self, run: PlannedRun, how: Exit) -> None:
        """Record that a run has ended; judge its trial once all of its runs have."""
        trial = self._trial_of[run.name]
        began = self._began.pop(run.name, None)
        if trial.pruned or trial.values or how.kind == "stopped":
            return  # judged before, when the files of its last run were there and its process was not gone yet
        if how.kind == "failed":
            trial.failure = how.cause
            self._drop(trial)
            self.say(f"trial {trial.number} failed ({run.name}): {how.cause}")
        elif trial.judge(self.sweep.judge):
            self._tell(trial)
            if trial.failure:
                self.say(f"trial {trial.number} failed: {trial.failure}")
            else:
                self.say(
                    f"trial {trial.number}: {worth_in_words(self.sweep.judge, trial.values)} "
                    f"({settings_in_words(trial.chosen)}); {self.count('done')} of {self.sweep.trials} trials done"
                )
        if trial.failure and began is not None:
            self._failed_seconds = max(self._failed_seconds, time.monotonic() - began)

    def _drop(self, trial: Trial) -> None:
        self.pending = deque(x for x in self.pending if x not in trial.runs)

    def _tell(self, trial: Trial) -> None:
        """Tell Optuna of a trial that has ended."""
        self._report(trial)
        if self._study is not None and not trial.failure:
            self._study.tell(trial.number, trial.values)

    def unwanted(self, running: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
        """Return the runs of trials that are not worth going on."""
        if self._study is not None and self.sweep.options.pruner != "none":
            for number in dict.fromkeys(self._trial_of[x.name].number for x in running):
                trial = self.trials[number]
                if trial.pruned or trial.values or trial.failure or not trial.may_go_on:
                    continue  # of one that is done the processes have yet to end
                worse, last = self._report(trial)
                if worse or self._study.should_prune(number):
                    # First: it must not be resumed, whatever comes between.
                    self._folder.prune(trial)
                    self._tell(trial)
                    self._drop(trial)
                    self.say(f"trial {number} is stopped early: others were better at that time")
                else:
                    self._folder.let_go_on(trial, last)
        return [run for run in running if self._trial_of[run.name].pruned]

    def _report(self, trial: Trial, *, until: int = MARKS) -> tuple[bool, int]:
        """Tell the evaluations of a trial's first run, up to a moment; return whether one was worse than others', and the last one's moment.

        Of the first alone: its others train beside it or after it, as there is room, and differ from it by their luck.
        What a sweep before a kill has let go on is not judged again: others were not there at that time.
        """
        if self._study is None or self.sweep.options.pruner == "none" or not until:
            return False, 0
        found = evaluations(
            trial.runs[0].files,
            total_env_steps=trial.config.total_env_steps,
            stop_after_seconds=trial.config.stop_after_seconds,
        )
        worse = False
        told = [(mark, mean) for mark, mean in found.items() if mark <= until]
        for mark, mean in told:
            worse |= self._study.report(trial.number, mark, mean) and mark > trial.judged
        return worse, max((mark for mark, _ in told), default=0)
