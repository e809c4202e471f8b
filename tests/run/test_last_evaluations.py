"""How long a run's last evaluations may take, what they leave, and what share of the time all of them had."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from fake_placement import FakePlacement

from gossamer.record.checkpoint import BEST, CANDIDATE
from gossamer.record.exits import ON_ROW, Exit
from gossamer.roles.evaluation import Evaluation, Interrupted
from gossamer.roles.evaluator import Source
from gossamer.run import evaluations as evaluations_module

STOPPED = Exit("stopped", "SIGINT")
REACHED = Exit("done", "stop_at_return")


class FakeEvaluator:
    """Notes what it is asked to evaluate, and for how long; `ends`: what happens then."""

    def __init__(self, stop: Any, ends: Exception | None = None):
        self.budget, self.seconds, self.longest_seconds, self.confirming_cost = 0.0, 0.0, 100.0, 0.0
        self.few_cost = 0.0
        self.asked: list[dict[str, Any]] = []
        self._stop, self._ends = stop, ends

    def report_to(self, keeper: Any) -> None: ...

    def evaluate_newest(self, stop: Any, *, few: bool = False) -> None:
        self.asked.append({"few": few, "exit": self._stop.exit, "deadline": self._stop.deadline})
        if self._ends is not None:
            raise self._ends

    def film(self, stop: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still."""
    found = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: found[0])
    monkeypatch.setattr(evaluations_module, "time", clock)
    return found


def begun(supervise: Any, ends: Exception | None = None, **settings: Any) -> Any:
    """Return a run whose evaluator has begun."""
    placement = FakePlacement([], num_hosts=settings.pop("num_learners", 1))
    run = supervise(placement, **settings)
    run.evaluator = FakeEvaluator(run.stop, ends)
    placement.make_evaluator = lambda: run.evaluator  # type: ignore[method-assign]
    placement.start(None)
    run.supervisor.evaluations.begin()
    return run


def score(run: Any, version: int, *returns: float) -> None:
    """Let the policy of a version have been evaluated."""
    result = Evaluation(returns, (1,) * len(returns), 0)
    run.scoring.on_evaluation(result, Source(version, 0, (version, version)), [])


def with_a_candidate(run: Any) -> Any:
    """Let a run have a best policy, and a candidate that is ahead of it, but not beyond doubt."""
    score(run, 1, 165.0, 158.0, 169.0)
    score(run, 2, 205.0, 206.0, 187.0)
    assert run.store.score(CANDIDATE).mean == pytest.approx(598 / 3)
    run.scoring.evaluated_at = -math.inf
    return run


def test_a_stopped_run_decides_about_its_candidate(supervise):
    run = with_a_candidate(begun(supervise))
    run.supervisor.evaluations.finish(STOPPED, lambda: None)
    assert run.store.score(CANDIDATE) is None
    assert run.store.score(BEST).mean == pytest.approx(598 / 3)


def test_a_run_whose_last_evaluation_takes_too_long_decides_about_its_candidate(supervise):
    run = with_a_candidate(begun(supervise, Interrupted()))
    run.supervisor.evaluations.finish(REACHED, lambda: None)
    assert any("final evaluations were skipped" in x or "was skipped" in x for x in run.said)
    assert run.store.score(CANDIDATE) is None
    assert run.store.score(BEST).mean == pytest.approx(598 / 3)


def test_what_a_stopped_run_has_come_to_is_told_by_few_episodes(supervise):
    run = begun(supervise)
    run.scoring.evaluated_at = -math.inf
    run.stop.within_seconds = 30.0
    run.stop.request("SIGINT")
    run.supervisor.evaluations.finish(STOPPED, lambda: None)
    (asked,) = run.evaluator.asked
    assert asked["few"]


@pytest.mark.parametrize(("num_learners", "seconds"), [(1, 200.0), (3, 600.0)])
def test_every_independent_learner_has_time_for_its_last_evaluation(
    supervise, now, num_learners, seconds
):
    """Twice the longest so far for each, which is more than a stop may take."""
    run = begun(supervise, num_learners=num_learners, topology={"name": "single"})
    chosen = list[int]()
    run.placement.boards = SimpleNamespace(
        evaluate_learner_next=chosen.append, evaluate_run_policy_next=lambda _: chosen.append(0)
    )
    run.supervisor.evaluations.finish(REACHED, lambda: None)
    assert chosen == list(range(num_learners))
    assert len(run.evaluator.asked) == num_learners
    (told,) = run.said
    assert f", for at most {seconds:.0f} s " in told


@pytest.mark.parametrize(
    "ended", [REACHED, Exit("stopped", ON_ROW), Exit("done", "total_env_steps")]
)
def test_while_a_run_is_evaluated_at_its_end_its_limits_ask_for_no_other(supervise, ended):
    """A limit of time that passes meanwhile would interrupt the evaluation."""
    run = begun(supervise)
    run.supervisor.evaluations.finish(ended, lambda: None)
    (asked,) = run.evaluator.asked
    assert asked["exit"] == ended


def test_the_share_of_evaluations_is_that_of_the_time_since_the_row_before(supervise, now):
    run = begun(supervise)
    evaluations, shares = run.supervisor.evaluations, list[float]()
    for spent in (1.0, 0.0, 2.0):
        now[0] += 4.0
        run.evaluator.seconds += spent
        shares.append(evaluations.take_share())
    assert shares == [pytest.approx(0.25), pytest.approx(0.0), pytest.approx(0.5)]
