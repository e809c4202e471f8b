"""Statistics against slow references, published values and what must hold whatever the scores are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gossamer.compare.statistics import (
    STATISTICS,
    Estimate,
    Scores,
    Statistic,
    difference,
    estimate,
    probability_of_improvement,
    profile,
    spread_of,
    statistic_of,
)

# Agarwal et al.'s library documents these values of these scores (4 and 3 runs of 2 tasks).
X = [np.array([1.0, 2.0, 1.0, 2.0]), np.array([2.0, 2.0, 1.0, 1.0])]
Y = [np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])]

numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


def tasks(most: int = 3) -> st.SearchStrategy[list[np.ndarray[Any, Any]]]:
    seeds = st.lists(numbers, min_size=2, max_size=6).map(np.array)
    return st.lists(seeds, min_size=1, max_size=most)


def slow(scores: list[np.ndarray[Any, Any]], statistic: Statistic) -> float:
    """Return a statistic, counted by hand."""
    means = [sum(task) / len(task) for task in scores]
    if statistic == "mean":
        return sum(means) / len(means)
    if statistic == "median":
        values = sorted(scores[0] if len(scores) == 1 else means)
        half = len(values) // 2
        return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
    values = sorted(x for task in scores for x in task)
    cut = math.floor(0.25 * len(values))
    middle = values[cut : len(values) - cut]
    return sum(middle) / len(middle)


def error(scores: list[np.ndarray[Any, Any]], statistic: Statistic) -> float:
    """Return the standard error of a statistic."""
    return math.sqrt(spread_of(scores, statistic).variance)


def differ(one: Scores, two: Scores, statistic: Statistic) -> Estimate:
    """Return how far a statistic of one group is above that of another."""
    return difference(spread_of(one, statistic), spread_of(two, statistic))


def test_values_that_are_published() -> None:
    for statistic in STATISTICS:
        assert statistic_of(X, statistic) == pytest.approx(1.5)
        assert statistic_of(Y, statistic) == pytest.approx(2.0)
    assert probability_of_improvement(X, Y).value == pytest.approx(1 / 3)


@given(tasks())
def test_statistics_are_those_counted_by_hand(scores: list[np.ndarray[Any, Any]]) -> None:
    for statistic in STATISTICS:
        expected = slow(scores, statistic)
        assert statistic_of(scores, statistic) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    together = np.concatenate(scores)
    expected = stats.trim_mean(together, 0.25)
    assert statistic_of(scores, "iqm") == pytest.approx(expected, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("n", [5, 7, 30, 60])
def test_the_interval_of_a_mean_is_students(n: int) -> None:
    scores = np.random.default_rng(n).normal(50, 20, size=n)
    expected = stats.t.interval(0.95, n - 1, scores.mean(), stats.sem(scores))
    found = estimate([scores], "mean")
    assert (found.low, found.high) == pytest.approx(expected)


def test_the_interval_of_three_seeds_is_wider_as_uniform_scores_need() -> None:
    scores = np.array([1.0, 2.0, 4.0])
    student = stats.t.ppf(0.975, 2) * stats.sem(scores)
    found = estimate([scores], "mean")
    half = float(found.high - found.low) / 2
    assert 1.02 * student < half < 1.12 * student
    drawn = np.random.default_rng(5).uniform(size=(3, 40_000))
    covers = estimate([drawn], "mean")
    assert np.mean((covers.low <= 0.5) & (covers.high >= 0.5)) == pytest.approx(0.925, abs=0.004)


@pytest.mark.parametrize("n", [2, 3])
def test_the_iqm_of_three_seeds_is_their_mean_with_the_same_interval(n: int) -> None:
    scores = [np.random.default_rng(n).normal(size=n)]
    np.testing.assert_array_equal(estimate(scores, "iqm"), estimate(scores, "mean"))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("n", [3, 4, 5])
def test_the_error_is_that_of_every_possible_resample(n: int, statistic: Statistic) -> None:
    scores = np.random.default_rng(7).gamma(3, size=n)
    every = [
        slow([scores[list(drawn)]], statistic) for drawn in itertools.product(range(n), repeat=n)
    ]
    expected = np.std(every) * math.sqrt(n / (n - 1))
    assert error([scores], statistic) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_error_of_several_tasks_is_that_of_a_stratified_bootstrap(statistic: Statistic) -> None:
    rng = np.random.default_rng(4)
    scores = [rng.normal(size=5), rng.normal(3, 2, size=4), rng.normal(1, size=6)]
    resampled: list[float] = []
    for _ in range(6_000):
        # Deviations are enlarged, so that their mean square is divided by n - 1.
        again = [
            task.mean()
            + math.sqrt(len(task) / (len(task) - 1)) * (rng.choice(task, len(task)) - task.mean())
            for task in scores
        ]
        resampled.append(slow(again, statistic))
    assert error(scores, statistic) == pytest.approx(np.std(resampled), rel=0.06)


def test_the_interval_of_a_mean_of_tasks_is_welchs() -> None:
    rng = np.random.default_rng(4)
    scores = [rng.normal(size=5), rng.normal(3, 4, size=4)]
    parts = [task.var(ddof=1) / len(task) / 4 for task in scores]
    dof = sum(parts) ** 2 / sum(
        part**2 / (len(task) - 1) for part, task in zip(parts, scores, strict=True)
    )
    half = stats.t.ppf(0.975, dof) * math.sqrt(sum(parts))
    found = estimate(scores, "mean")
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)


def test_the_interval_of_a_difference_of_means_is_welchs() -> None:
    rng = np.random.default_rng(2)
    one, two = rng.normal(size=5), rng.normal(1, 4, size=9)
    expected = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    found = differ([one], [two], "mean")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@given(tasks(), st.floats(-100, 100), st.floats(0.1, 100))
def test_scores_of_another_scale_have_the_same_interval_on_it(
    scores: list[np.ndarray[Any, Any]], shift: float, scale: float
) -> None:
    size = 1 + max(np.abs(task).max() for task in scores) * scale + abs(shift)
    for statistic in STATISTICS:
        plain = estimate(scores, statistic)
        moved = estimate([shift + scale * task for task in scores], statistic)
        for before, after in zip(plain, moved, strict=True):
            np.testing.assert_allclose(after, shift + scale * before, atol=1e-4 * size)
        assert plain.low <= plain.value <= plain.high


@given(tasks(1))
def test_losses_have_the_interval_of_scores_mirrored(scores: list[np.ndarray[Any, Any]]) -> None:
    for statistic in STATISTICS:
        plain, mirrored = estimate(scores, statistic), estimate([-x for x in scores], statistic)
        np.testing.assert_allclose(mirrored.low, -plain.high, atol=1e-3)
        np.testing.assert_allclose(mirrored.value, -plain.value, atol=1e-3)


@given(tasks(1), st.randoms())
def test_the_order_of_seeds_does_not_matter(
    scores: list[np.ndarray[Any, Any]], random: Any
) -> None:
    mixed = list(scores[0])
    random.shuffle(mixed)
    for statistic in STATISTICS:
        expected = estimate(scores, statistic)
        np.testing.assert_allclose(estimate([np.array(mixed)], statistic), expected, atol=1e-6)


@given(st.data())
def test_a_difference_the_other_way_round_is_its_opposite(data: st.DataObject) -> None:
    one, two = data.draw(tasks(1)), data.draw(tasks(1))
    for statistic in STATISTICS:
        there, back = differ(one, two, statistic), differ(two, one, statistic)
        np.testing.assert_allclose(there.value, -back.value)
        np.testing.assert_allclose(there.low, -back.high, rtol=1e-9, atol=1e-9)


@given(st.data())
def test_improvement_is_mann_whitneys_share_of_pairs(data: st.DataObject) -> None:
    one = data.draw(tasks(2))
    two = [data.draw(st.lists(numbers, min_size=2, max_size=6).map(np.array)) for _ in one]
    expected = [
        stats.mannwhitneyu(x, y, method="asymptotic").statistic / (len(x) * len(y))
        for x, y in zip(one, two, strict=True)
    ]
    there, back = probability_of_improvement(one, two), probability_of_improvement(two, one)
    assert there.value == pytest.approx(np.mean(expected))
    assert there.value + back.value == pytest.approx(1)
    assert there.low == pytest.approx(1 - back.high, abs=1e-9)
    assert 0 <= there.low <= there.value <= there.high <= 1


def test_three_seeds_that_are_all_higher_prove_nothing() -> None:
    """That happens by chance once in ten times."""
    found = probability_of_improvement([np.array([4.0, 5, 6])], [np.array([1.0, 2, 3])])
    assert found.value == 1
    assert found.low < 0.5
    found = probability_of_improvement([np.arange(5) + 5.0], [np.arange(5) + 0.0])
    assert found.low > 0.5, "that happens once in 126 times"


def test_bounds_of_improvement_solve_newcombes_equation() -> None:
    one, two = np.array([1.0, 3, 5, 9]), np.array([0.0, 2, 4, 6, 8])
    found = probability_of_improvement([one], [two])
    spare = (4 + 5) / 2 - 1
    for p in (float(found.low), float(found.high)):
        variance = p * (1 - p) * (1 + spare * (1 - p) / (2 - p) + spare * p / (1 + p)) / 20
        away = abs(float(found.value) - p)
        assert away == pytest.approx(stats.t.ppf(0.975, 7) * math.sqrt(variance))
    many = probability_of_improvement([np.arange(6.0)], [np.arange(6.0) - 1.5])
    p = float(many.low)
    variance = p * (1 - p) * (1 + 5 * (1 - p) / (2 - p) + 5 * p / (1 + p)) / 36
    assert many.value - p == pytest.approx(stats.norm.ppf(0.975) * math.sqrt(variance))


def test_a_profile_has_wilsons_intervals() -> None:
    scores = np.array([1.0, 2, 3, 4, 5])
    found = profile([scores], np.array([0.0, 2.5, 5.0]))
    for i, above in enumerate((5, 3, 0)):
        assert found.value[i] == above / 5
        expected = stats.binomtest(above, 5).proportion_ci(method="wilson")
        assert (found.low[i], found.high[i]) == pytest.approx((expected.low, expected.high))


@given(tasks())
def test_a_profile_never_rises(scores: list[np.ndarray[Any, Any]]) -> None:
    lowest, highest = (f(np.concatenate(scores)) for f in (np.min, np.max))
    found = profile(scores, np.linspace(lowest - 1, highest, 20))
    assert found.value[0] == 1
    assert found.value[-1] == 0
    for part in found:
        assert (np.diff(part) <= 1e-12).all()


def test_points_of_a_curve_are_estimated_each_on_its_own() -> None:
    rng = np.random.default_rng(0)
    for scores in ([rng.normal(size=(5, 7))], [rng.normal(size=(4, 7)), rng.normal(size=(3, 7))]):
        for statistic in STATISTICS:
            whole = estimate(scores, statistic)
            each = [estimate([task[:, i] for task in scores], statistic) for i in range(7)]
            for part, parts in zip(whole, zip(*each, strict=True), strict=True):
                np.testing.assert_allclose(part, parts)


def test_one_seed_has_no_interval_and_equal_seeds_have_none_to_speak_of() -> None:
    alone = estimate([np.array([3.0])], "iqm")
    assert alone.value == 3
    assert np.isnan(alone.low)
    assert np.isnan(alone.high)
    equal = estimate([np.full(4, 3.0)], "median")
    assert (equal.low, equal.value, equal.high) == (3, 3, 3)
    assert error([np.full(4, 3.0)], "median") == 0
    same = differ([np.full(3, 3.0)], [np.full(3, 1.0)], "iqm")
    assert (same.low, same.value, same.high) == (2, 2, 2)
    assert np.isnan(probability_of_improvement([np.array([3.0])], [np.array([1.0, 2.0])]).low)


def test_the_interval_is_wider_when_more_must_hold_together() -> None:
    scores = [np.random.default_rng(1).normal(size=5)]
    for statistic in STATISTICS:
        loose, strict = (estimate(scores, statistic, level) for level in (0.95, 0.99))
        assert strict.low < loose.low < loose.high < strict.high
