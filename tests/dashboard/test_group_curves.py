"""Seeds as one curve: every point is of all runs that have a value near it, and n is their number."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.dashboard.curves import group
from gossamer.dashboard.statistics import curve


def test_groups_are_those_of_compare_for_each_environment() -> None:
    common = {"env_id": "CartPole-v1", "algorithm.name": "ppo", "checkpoint_every_seconds": 30.0}
    runs = {
        "a": {**common, "seed": 1},
        "b": {**common, "seed": 2, "checkpoint_every_seconds": 5.0, "evaluation.episodes": 3},
        "c": {**common, "seed": 1, "total_env_steps": 5},
        "d": {**common, "seed": 1, "env_id": "Acrobot-v1"},
    }
    for one in runs.values():
        one.setdefault("total_env_steps", 9)
        one.setdefault("evaluation.episodes", 5)
    assert [x.runs for x in group(runs)] == [["a", "b"], ["c"], ["d"]]
    by = group(runs, ["checkpoint_every_seconds"])
    assert [x.runs for x in by] == [["a", "c", "d"], ["b"]], "who asks for it is told it"


def made(x: list[float], y: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(x, float), np.array(y, float)


def test_one_evaluation_of_each_seed_ends_in_one_mean_of_all() -> None:
    """Their ends differ by a batch or two: no seed passes for the mean of five."""
    scores = [250.0, 261, 275, 262, 347]
    runs = [made([100_000 + 300 * i], [y]) for i, y in enumerate(scores)]
    found = curve(runs, 300, "mean")
    assert found.counts.tolist() == [5]
    assert (found.x[0], found.y[0]) == (101_200, pytest.approx(279.0))


def test_evaluations_at_other_steps_are_interpolated() -> None:
    runs = [made([10 + i, 50 + i, 90 + i], [i, 10.0 + i, 20.0 + i]) for i in range(5)]
    found = curve(runs, 81 + 4, "mean")
    assert found.counts.tolist() == [5] * 81
    assert (found.x[0], found.x[-1]) == (14, 94)
    assert np.all(np.diff(found.y) >= 0)


def test_no_seed_counts_before_its_own_first_value() -> None:
    begins = (20_000, 24_000, 27_000)
    runs = [
        made([*range(at, 100_001, 10_000)], [at] * len(range(at, 100_001, 10_000))) for at in begins
    ]
    found = curve(runs, 300, "mean")
    assert found.x[0] >= 24_000, "before, only one of three has a value"
    early = found.x < 27_000
    assert set(found.counts[early].tolist()) == {2}
    assert np.isnan(found.low[early]).all(), "two have no interval"
    assert found.y[early] == pytest.approx(22_000)
    assert set(found.counts[~early].tolist()) == {3}


def test_a_run_that_goes_on_alone_draws_no_spike() -> None:
    runs = [made([0, 10, 20, 30], [0, 1, 2, 3]) for _ in range(4)]
    runs.append(made([0, 10, 20, 30, 40, 50, 60], [0, 1, 2, 3, 500, 500, 500]))
    found = curve(runs, 61, "mean")
    assert found.x[-1] <= 40, "as far as rows of the others reach"
    assert found.counts[found.x <= 30].tolist() == [5] * int((found.x <= 30).sum())
    assert found.y[found.x <= 30].max() == pytest.approx(3.0)


def test_two_runs_far_apart_are_two_points() -> None:
    found = curve([made([0.0], [1.0]), made([100.0], [3.0])], 11, "mean")
    assert found.counts.max() == 1
    assert set(found.y.tolist()) == {1.0, 3.0}
    assert np.isnan(found.low).all()
