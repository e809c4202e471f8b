"""A run that is stopped evaluates its last policy only where there is time for it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.record.exits import Exit
from gossamer.run.evaluations import Evaluations
from gossamer.run.stopping import Stop


@pytest.mark.parametrize(("cost", "plays"), [(0.0, True), (3.0, True), (25.0, False)])
def test_an_evaluation_that_is_known_to_take_too_long_is_not_begun(
    cost: float, plays: bool
) -> None:
    """Whoever pressed Ctrl-C would wait ten seconds for nothing."""
    played: list[bool] = []
    saved: list[bool] = []
    said: list[str] = []

    def evaluate(stop: Any, *, few: bool) -> None:
        played.append(few)

    evaluator = SimpleNamespace(
        report_to=lambda _: None, evaluate_newest=evaluate, few_cost=cost, budget=0.0
    )
    placement: Any = SimpleNamespace(boards=None, make_evaluator=lambda: evaluator, stuck=False)
    recorder: Any = SimpleNamespace(say=said.append, notice=said.append, seconds=lambda: 500.0)
    scoring: Any = SimpleNamespace(settle=lambda: None, evaluated_at=0.0)
    config: Any = SimpleNamespace(evaluation=SimpleNamespace(every_seconds=60.0))
    stop = Stop(within_seconds=30.0)
    evaluations = Evaluations(config, placement, recorder, scoring, stop)
    evaluations.begin()
    scoring.evaluated_at = time.monotonic() - 100.0
    stop.request("SIGINT", 2)
    evaluations.finish(Exit("stopped", "SIGINT"), lambda: saved.append(True))
    assert played == [True] * plays
    assert ("The last policy was not evaluated: that takes about 25 s" in said) == (not plays)
