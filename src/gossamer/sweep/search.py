"""Optuna as a sweep uses it: it proposes settings and says which trials to stop early (prune); we run them.

Its study is kept in memory. A sweep that goes on makes it anew from what the folder's trials and the files of their runs tell.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

import numpy as np

from gossamer.record.objectives import GREATER_IS_BETTER, MARKS
from gossamer.sweep.space import Choices, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.sweep.file import Sweep

NAME = "sweep"
FIRST_MARKS = MARKS // 5
"""No trial is stopped before: returns say little then."""


class Study:
    """An Optuna study of a sweep, whose trials have the sweep's numbers; its warnings of what is experimental are not shown.

    Args:
        sweep: which.
    """

    def __init__(self, sweep: Sweep):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._sweep = optuna, sweep
        self._trials: dict[int, Any] = {}
        self._told: set[tuple[int, int]] = set()  # trials, and their moments
        with catch_warnings(action="ignore"):
            self._study = self._made(pruner=self._pruner())
            self._distributions: dict[str, Any] = {x: self._distribution(x) for x in sweep.space}

    def _made(self, **options: Any) -> Any:
        goals = self._sweep.options.objective
        directions = ["maximize" if GREATER_IS_BETTER[x] else "minimize" for x in goals]
        # The name decides which bracket of hyperband a trial is in.
        return self._optuna.create_study(directions=directions, study_name=NAME, **options)

    def _pruner(self) -> Any:
        pruners, options = self._optuna.pruners, self._sweep.options
        if options.pruner == "median":
            return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=FIRST_MARKS)
        if options.pruner == "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=FIRST_MARKS, reduction_factor=3)
        if options.pruner == "hyperband":
            return pruners.HyperbandPruner(
                min_resource=FIRST_MARKS, max_resource=MARKS, reduction_factor=3
            )
        return pruners.NopPruner()

    def _distribution(self, name: str) -> Any:
        """Return the values of a setting as Optuna knows them; a list's, and those of a range with so many, as words."""
        domain, known = self._sweep.space[name], self._optuna.distributions
        if isinstance(domain, Choices) or domain.num is not None:
            return known.CategoricalDistribution([encoded(x) for x in domain.grid()])
        high = domain.high if domain.step is None else domain.grid()[-1]
        kind = known.IntDistribution if domain.whole else known.FloatDistribution
        step = int(domain.step or 1) if domain.whole else domain.step
        return kind(domain.low, high, log=domain.log, step=step)

    def propose(self, number: int) -> dict[str, Any]:
        """Return settings to try in a trial, by its number; it is not one of the study yet."""
        options = self._sweep.options
        # A sampler for each trial: a sweep that was killed must not draw the same numbers again.
        seed = int(np.random.SeedSequence([options.sampler_seed, number]).generate_state(1)[0])
        with catch_warnings(action="ignore"):
            sampler = self._optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=max(4, min(10, self._sweep.trials // 3)),
                constant_liar=True,  # trials that run side by side are not to be alike
            )
            # With hyperband the sampler learns from the trials of one bracket.
            copy = self._made(sampler=sampler, pruner=self._study.pruner)
            copy.add_trials(self._study.get_trials(deepcopy=False))
            drawn = copy.ask(self._distributions).params
        return {name: self._value(name, value) for name, value in drawn.items()}

    def _value(self, name: str, drawn: Any) -> Any:
        if isinstance(drawn, str):
            return json.loads(drawn)
        # As it would be written: 0.1 and three steps of it are 0.4.
        stepped = isinstance(drawn, float) and self._distributions[name].step is not None
        return float(f"{drawn:.12g}") if stepped else drawn

    def begin(self, number: int, chosen: Mapping[str, Any]) -> None:
        """Tell the study of a trial that is being trained.

        Args:
            number: of the trial.
            chosen: settings that it tries.
        """
        categorical = self._optuna.distributions.CategoricalDistribution
        known = {x: self._distributions[x] for x in chosen}
        words = {
            x: encoded(y) if isinstance(known[x], categorical) else y for x, y in chosen.items()
        }
        with catch_warnings(action="ignore"):
            self._study.enqueue_trial(words)
            self._trials[number] = self._study.ask(known)

    def report(self, number: int, step: int, mean: float) -> bool:
        """Tell the mean of an evaluation; return whether the trial is worse than others were at that time.

        Args:
            number: of the trial, which has not ended.
            step: a moment that trials have in common; what is told of it again does not count.
            mean: return.
        """
        if (number, step) in self._told:
            return False
        self._told.add((number, step))
        # Evaluations are better the greater; Optuna goes by the study's direction.
        sign = 1.0 if GREATER_IS_BETTER[self._sweep.options.objective[0]] else -1.0
        self._trials[number].report(sign * mean, step)
        return self.should_prune(number)

    def should_prune(self, number: int) -> bool:
        """Whether a trial that has not ended is worse than others were."""
        return bool(self._trials[number].should_prune())

    def tell(self, number: int, values: Sequence[float]) -> None:
        """Tell the objectives of a trial; none: it was stopped early."""
        state = None if values else self._optuna.trial.TrialState.PRUNED
        trial = self._trials[number]
        with catch_warnings(action="ignore"):
            self._study.tell(trial, list(values) or None, state=state, skip_if_finished=True)
