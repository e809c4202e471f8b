"""Optuna as a sweep uses it: it proposes settings and says which trials to stop early; we run them.

Its journal lies in the sweep's folder. Whoever works there holds the folder's lock, so the journal needs none.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gossamer.errors import ConfigError
from gossamer.record.objectives import GREATER_IS_BETTER, MARKS
from gossamer.sweep.space import Choices, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gossamer.sweep.file import Sweep
    from gossamer.sweep.space import Domain

JOURNAL = "optuna.journal"
NAME = "sweep"
FIRST_MARKS = MARKS // 5
"""No trial is stopped before: returns say little then."""


class _NoLock:
    """A lock that is always free."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Study:
    """An Optuna study of a sweep.

    Args:
        folder: of the sweep.
        sweep: what is searched.
        known: numbers, as Optuna counts, of the trials that the folder holds; others are given up.
    """

    def __init__(self, folder: Path, sweep: Sweep, known: Sequence[int]):
        import optuna
        from optuna.storages.journal import JournalFileBackend

        self._optuna, self._sweep = optuna, sweep
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / JOURNAL
        _cut_last_line(path)
        goals = sweep.judge.objectives
        directions: list[Any] = ["maximize" if GREATER_IS_BETTER[x] else "minimize" for x in goals]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                backend = JournalFileBackend(str(path), lock_obj=cast("Any", _NoLock()))
                self._storage: Any = optuna.storages.JournalStorage(backend)
                self._study = optuna.create_study(
                    study_name=NAME,
                    storage=self._storage,
                    directions=directions,
                    pruner=self._pruner(),
                    load_if_exists=True,
                )
            self._id = self._storage.get_study_id_from_name(NAME)
            trials = self._study.get_trials(deepcopy=False)
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of its reader
            raise ConfigError(
                f"{path} is damaged ({' '.join(str(error).split())[:100] or type(error).__name__}); name another folder "
                "with --folder"
            ) from None
        if max(known, default=-1) >= len(trials):
            raise ConfigError(
                f"{path} does not know trials that {folder} holds; put it back, or name another folder with --folder"
            )
        self._reported = {x.number: set(x.intermediate_values) for x in trials}
        for trial in trials:
            if not trial.state.is_finished() and trial.number not in known:
                # Asked for, and killed before it was written down.
                if trial.state == optuna.trial.TrialState.WAITING:
                    self._study.ask()  # which begins that one: one that waits cannot fail
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        marks = MARKS * self._sweep.seeds
        if self._sweep.pruner == "median":
            return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=FIRST_MARKS)
        if self._sweep.pruner == "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=FIRST_MARKS, reduction_factor=3)
        if self._sweep.pruner == "hyperband":
            return pruners.HyperbandPruner(
                min_resource=FIRST_MARKS, max_resource=marks, reduction_factor=3
            )
        return pruners.NopPruner()

    def ask(
        self, number: int, fixed: Mapping[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the number that Optuna gives a trial, and the settings to try.

        Args:
            number: of the trial.
            fixed: settings that were chosen elsewhere.
        """
        space, sweep = self._sweep.space, self._sweep
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if fixed is not None:
                values = {x: self._word(x, y) for x, y in fixed.items()}
                self._study.enqueue_trial(values)
            # A sampler for each trial: a sweep that was killed must not draw the same numbers again.
            seed = int(np.random.SeedSequence([sweep.sampler_seed, number]).generate_state(1)[0])
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=max(4, min(10, sweep.trials // 3)),
                constant_liar=True,  # trials that run side by side are not to be alike
            )
            trial = self._study.ask()
            chosen = {name: self._suggest(trial, name) for name in space}
        self._reported[trial.number] = set()
        return trial.number, chosen if fixed is None else dict(fixed)

    def _word(self, name: str, value: Any) -> Any:
        return encoded(value) if isinstance(self._domain(name), Choices) else value

    def _domain(self, name: str) -> Domain:
        """Return the domain of a setting as Optuna sees it: of a range with so many values a list."""
        domain = self._sweep.space[name]
        if not isinstance(domain, Choices) and domain.num is not None:
            return Choices(domain.grid())
        return domain

    def _suggest(self, trial: Any, name: str) -> Any:
        domain = self._domain(name)
        if isinstance(domain, Choices):
            return json.loads(trial.suggest_categorical(name, domain.words()))
        if domain.low == domain.high:
            return domain.low
        if domain.whole:
            step = int(domain.step or 1)
            high = domain.low + (domain.high - domain.low) // step * step
            return trial.suggest_int(name, domain.low, high, step=step, log=domain.log)
        if domain.step is not None:
            high = domain.grid()[-1]
            return float(f"{trial.suggest_float(name, domain.low, high, step=domain.step):.12g}")
        return trial.suggest_float(name, domain.low, domain.high, log=domain.log)

    def report(self, number: int, step: int, mean: float) -> None:
        """Tell the mean of an evaluation.

        Args:
            number: as Optuna counts.
            step: a moment that trials have in common.
            mean: return.
        """
        if step in self._reported.setdefault(number, set()):
            return
        self._reported[number].add(step)
        # Evaluations are better the greater; Optuna goes by the study's direction.
        sign = 1.0 if GREATER_IS_BETTER[self._sweep.judge.objectives[0]] else -1.0
        self._storage.set_trial_intermediate_value(self._trial_id(number), step, sign * mean)

    def should_prune(self, number: int) -> bool:
        """Whether a trial that runs is worse than others were."""
        trial = self._storage.get_trial(self._trial_id(number))
        if trial.state.is_finished() or not trial.intermediate_values:
            return False
        return bool(self._study.pruner.prune(self._study, trial))

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def tell(self, number: int, values: Sequence[float]) -> None:
        """Tell what a trial is worth; nothing: it was stopped early."""
        state = None if values else self._optuna.trial.TrialState.PRUNED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(number, list(values) or None, state=state, skip_if_finished=True)


def _cut_last_line(path: Path) -> None:
    """Drop a line that was being written when the sweep was killed."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        at = size
        while at > 0:
            begin = max(0, at - 4096)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                file.truncate(begin + found + 1)
                return
            at = begin
        file.truncate(0)
