"""Statistics of few seeds: mean, median and IQM with intervals, differences, probability of improvement, profiles.

Scores are lists of arrays, one array a task (environment), whose first dimension is the seed. Further dimensions, as points of
a curve, are kept: every point has its own statistics.

Percentile intervals of the bootstrap cover 75 % instead of 95 % at three seeds, because no resample leaves the range of the
scores. These intervals are studentized instead: the bootstrap says how much a statistic varies when seeds are drawn
again within each task, and that many standard errors are added as normally distributed scores would need, so few seeds
make wide intervals. Of the mean of one task this is Student's interval, a little wider at three seeds.
`benchmarks/coverage.py` measures what they cover.

Shapes: n seeds of a task, P points, K tasks.
Source: Agarwal et al. 2021 (arXiv:2108.13264) for the statistics; Efron and Tibshirani 1993, chapter 12, for studentizing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scores = Sequence[Array]
"""One array [n, ...] a task; n may differ between tasks."""
Statistic = Literal["iqm", "mean", "median"]
STATISTICS: tuple[Statistic, ...] = ("iqm", "mean", "median")
TITLES: dict[Statistic, str] = {"iqm": "IQM", "mean": "mean", "median": "median"}
LEVEL = 0.95
"""Share of intervals that hold the truth."""
RESAMPLES = 2_000
"""Bootstrap resamples of several tasks together."""
TABLE_SEEDS = 40
"""With more seeds of one task, Student's t is near enough to the critical values of medians and IQMs."""

_TABLE_RESAMPLES, _TABLE_DRAWS = 20_000, 100_000
_MAX_NUMBERS = 4_000_000
"""Numbers held at once while resampling; 32 MB."""


class Estimate(NamedTuple):
    """A statistic with its interval. NaN where it cannot be told, as the bounds of a single seed."""

    value: Array
    low: Array
    high: Array


class Spread(NamedTuple):
    """A statistic of one group, and what its intervals of every level are made of."""

    value: Array
    variance: Array
    """Square of the standard error: 0 where the seeds do not differ, NaN if a task has less than two."""
    dof: Array
    """Degrees of freedom of the variance."""
    alone: tuple[int, Statistic] | None
    """Seeds of the only task, and the statistic, which tell the critical value; None: it is Student's."""

    def factor(self, level: float) -> float:
        """Return the critical value of a level, divided by Student's."""
        if self.alone is None:
            return 1.0
        n, statistic = self.alone
        return _critical(n, statistic, level) / float(_student(np.array(n - 1.0), level))


def statistic_of(scores: Scores, statistic: Statistic) -> Array:
    """Return mean, median or IQM of each point.

    Args:
        scores: [n, ...] a task.
        statistic: "mean": of the tasks' means. "median": of the tasks' means; of a single task, the median of its
            seeds. "iqm": mean of the middle half of all scores, of which a quarter (rounded down) is cut at each end, so
            that the IQM of three seeds is their mean.

    Returns:
        [...], one number a point.
    """
    if len(scores) == 1 or statistic == "iqm":
        ordered = np.sort(np.concatenate(list(scores)), axis=0)
        return np.tensordot(_weights(len(ordered), statistic), ordered, axes=1)
    means = np.stack([task.mean(axis=0) for task in scores])
    return means.mean(axis=0) if statistic == "mean" else np.median(means, axis=0)


def estimate(scores: Scores, statistic: Statistic, level: float = LEVEL) -> Estimate:
    """Return a statistic with its interval, for which seeds are resampled within tasks.

    Args:
        scores: [n, ...] a task.
        statistic: see `statistic_of`.
        level: share of intervals that hold the truth, in (0, 1).

    Returns:
        Arrays [...]; without bounds if a task has less than two seeds.
    """
    spread = spread_of(scores, statistic)
    return _interval(spread.value, spread.variance, spread.dof, spread.factor(level), level)


def difference(first: Spread, second: Spread, level: float = LEVEL) -> Estimate:
    """Return how far a statistic of the first is above that of the second, with its interval.

    Args:
        first: of the same statistic and tasks as the second; their seeds need not be as many.
        second: likewise.
        level: share of intervals that hold the truth, in (0, 1).
    """
    variance = first.variance + second.variance
    weighed = first.variance * first.factor(level) + second.variance * second.factor(level)
    factor = _ratio(weighed, variance, otherwise=1.0)
    parts = np.stack([first.variance, second.variance])
    dof = _satterthwaite(parts, np.stack([first.dof, second.dof]))
    return _interval(first.value - second.value, variance, dof, factor, level)


def spread_of(scores: Scores, statistic: Statistic) -> Spread:
    """Return a statistic with its variance, for which seeds are resampled within tasks.

    Args:
        scores: [n, ...] a task.
        statistic: see `statistic_of`.
    """
    value = statistic_of(scores, statistic)
    if min(len(task) for task in scores) < 2:
        nothing = np.full_like(value, np.nan)
        return Spread(value, nothing, nothing, None)
    if len(scores) > 1:
        return _resampled(scores, statistic, value)
    n = len(scores[0])
    ordered = np.sort(scores[0], axis=0)
    variance = _variance(ordered - value, statistic)
    return Spread(value, variance, np.full_like(value, n - 1.0), (n, statistic))


def probability_of_improvement(first: Scores, second: Scores) -> Estimate:
    """Return how probable it is that a run of the first scores higher than one of the second in the same task.

    Ties count half; tasks count alike. The interval of a task is Wilson's, adapted to this probability, with Student's t for the
    normal quantile where pairs are few; intervals of several tasks are combined by the squares of their halves.

    Args:
        first: [n, ...] a task.
        second: the same tasks in the same order.

    Returns:
        Arrays [...]; without bounds if a task has less than two seeds on a side.

    Source: Newcombe 2006 (Statistics in Medicine 25: 559-573), method 5; Zou and Donner 2008 for tasks together.
    """
    sides = list(zip(first, second, strict=True))
    values = np.stack([_above(x, y) for x, y in sides])
    shape = (len(sides), *(1 for _ in values.shape[1:]))
    here, there = (
        np.array([len(x) for x in side], float).reshape(shape) for side in (first, second)
    )
    spare = (here + there) / 2 - 1

    def variance(p: Array) -> Array:
        inflated = 1 + spare * (1 - p) / (2 - p) + spare * p / (1 + p)
        return p * (1 - p) * inflated / (here * there)

    dof = here + there - 2
    # Single tasks with many pairs hold their level with the normal quantile; with few, or joined, they need more.
    normal = (len(sides) == 1) & (dof >= 8)
    quantile = np.where(normal, _normal(), _student(dof, LEVEL))
    enough = bool((np.minimum(here, there) >= 2).all())
    return _joined(values, variance, quantile, enough=enough)


def profile(scores: Scores, thresholds: Array) -> Estimate:
    """Return the share of runs that score above each threshold: a performance profile. Tasks count alike.

    Args:
        scores: [n] a task.
        thresholds: [P] scores.

    Returns:
        Arrays [P]; intervals are Wilson's, at each threshold.
    """
    values = np.stack([np.mean(task[:, None] > thresholds, axis=0) for task in scores])
    sizes = np.array([len(task) for task in scores], float)[:, None]
    quantile = np.full(values.shape, _normal())

    def variance(p: Array) -> Array:
        return p * (1 - p) / sizes

    return _joined(values, variance, quantile, enough=True)


def _above(first: Array, second: Array) -> Array:
    """Return the share of pairs [...] of which the first is higher, of n and m scores [n, ...] and [m, ...]."""
    pairs = first[:, None], second[None, :]
    return np.mean((pairs[0] > pairs[1]) + 0.5 * (pairs[0] == pairs[1]), axis=(0, 1))


def _weights(n: int, statistic: Statistic) -> Array:
    """Return the weights [n] of ordered scores, of which the statistic is the sum."""
    cut = _cut(n, statistic)
    weights = np.zeros(n)
    weights[cut : n - cut] = 1 / (n - 2 * cut)
    return weights


def _cut(n: int, statistic: Statistic) -> int:
    """Return how many of n scores are left out at each end; none: the statistic is the mean."""
    return {"mean": 0, "iqm": n // 4, "median": (n - 1) // 2}[statistic]


def _variance(ordered: Array, statistic: Statistic) -> Array:
    """Return the bootstrap's variance of a statistic of one task, enlarged as if the spread of seeds were unbiased.

    Args:
        ordered: scores [n, ...] in order, around the statistic: far from 0 digits would be lost.
        statistic: mean, median or IQM.
    """
    n = len(ordered)
    covariance = _covariance(n, statistic)
    found = np.einsum("i...,ij,j...->...", ordered, covariance, ordered, optimize=True)
    return np.maximum(found, 0.0) * n / (n - 1)


@functools.cache
def _covariance(n: int, statistic: Statistic) -> Array:
    """Return the covariance [n, n], over resamples, of the weights by which ordered scores make up the statistic."""
    if not _cut(n, statistic):
        return (np.eye(n) - 1 / n) / n**2
    rng = np.random.default_rng(1)
    count = max(2_000, min(_TABLE_RESAMPLES, _MAX_NUMBERS // n))
    chosen = np.sort(rng.integers(n, size=(count, n)), axis=1)
    cells = (chosen + n * np.arange(count)[:, None]).ravel()
    weights = np.bincount(cells, np.tile(_weights(n, statistic), count), count * n)
    found: Array = np.cov(weights.reshape(count, n), rowvar=False, ddof=0)
    # High and low are alike: what holds of scores holds of losses.
    return (found + found[::-1, ::-1]) / 2


@functools.lru_cache(maxsize=256)
def _critical(n: int, statistic: Statistic, level: float) -> float:
    """Return how many standard errors of a statistic make up half an interval, for n seeds of one task.

    As many as normal scores need, and never so few that uniform ones, which need most, were wrong half as often again.
    """
    student = float(_student(np.array(n - 1.0), level))
    if n > TABLE_SEEDS:
        return student
    rng = np.random.default_rng(2)
    flat = _pivot(rng.uniform(-1, 1, (n, _TABLE_DRAWS)), statistic, 1 - 1.5 * (1 - level))
    if not _cut(n, statistic):
        return max(student, flat)
    return max(_pivot(rng.normal(size=(n, _TABLE_DRAWS)), statistic, level), flat)


def _pivot(scores: Array, statistic: Statistic, level: float) -> float:
    """Return the quantile, over columns of scores around 0, of how many standard errors their statistic is off."""
    ordered = np.sort(scores, axis=0)
    value = _weights(len(scores), statistic) @ ordered
    return float(np.quantile(np.abs(value) / np.sqrt(_variance(ordered - value, statistic)), level))


def _resampled(scores: Scores, statistic: Statistic, value: Array) -> Spread:
    """Return the spread of several tasks together, by resampling seeds within each."""
    rng = np.random.default_rng(3)
    shape = value.shape
    columns = [task.reshape(len(task), -1) for task in scores]
    draws = [rng.integers(len(task), size=(RESAMPLES, len(task))) for task in scores]
    width = max(1, _MAX_NUMBERS // (RESAMPLES * sum(map(len, scores))))
    found: list[tuple[Array, Array]] = []
    for at in range(0, columns[0].shape[1], width):
        again = [
            _unbiased(task[:, at : at + width])[drawn]
            for task, drawn in zip(columns, draws, strict=True)
        ]
        # [n, RESAMPLES, width], as a statistic's points
        values = statistic_of([x.swapaxes(0, 1) for x in again], statistic)
        means = np.stack([x.mean(axis=1) for x in again])
        found.append(_shares(values, means))
    variance = np.concatenate([x for x, _ in found])
    shares = np.concatenate([x for _, x in found], axis=1)
    each = np.array([len(task) - 1.0 for task in scores])[:, None]
    dof = _satterthwaite(shares, np.broadcast_to(each, shares.shape))
    return Spread(value, variance.reshape(shape), dof.reshape(shape), None)


def _unbiased(task: Array) -> Array:
    """Return scores [n, P] drawn apart, so that the variance of resamples is that which n - 1 is divided by."""
    n, mean = len(task), task.mean(axis=0)
    return mean + np.sqrt(n / (n - 1)) * (task - mean)


def _shares(values: Array, means: Array) -> tuple[Array, Array]:
    """Return a statistic's variance [P] over resamples, and what each task's own mean explains of it [K, P].

    Args:
        values: [resamples, P].
        means: [K, resamples, P].
    """
    values = values - values.mean(axis=0)
    means = means - means.mean(axis=1, keepdims=True)
    together = (values * means).mean(axis=1)
    own = (means**2).mean(axis=1)
    shares = _ratio(together**2, own, otherwise=0.0)
    return (values**2).mean(axis=0), shares


def _satterthwaite(variances: Array, dofs: Array) -> Array:
    """Return the degrees of freedom of a sum of variances, each with its own; arrays [K, ...]. At least their least."""
    total, least = variances.sum(axis=0), dofs.min(axis=0)
    below = (variances**2 / dofs).sum(axis=0)
    # Squares of tiny variances vanish.
    return np.clip(_ratio(total**2, below, otherwise=least), least, dofs.sum(axis=0))


def _ratio(above: Any, below: Any, *, otherwise: Any) -> Any:
    """Return a quotient, and something else where the divisor is not positive."""
    there = np.asarray(below) > 0
    return np.where(there, above / np.where(there, below, 1.0), otherwise)


def _interval(
    value: Array, variance: Array, dof: Array, factor: Array | float, level: float
) -> Estimate:
    half = _student(dof, level) * factor * np.sqrt(variance)
    return Estimate(value, value - half, value + half)


def _student(dof: Array, level: float) -> Array:
    """Return the two-sided critical value of Student's t."""
    from scipy import special  # here, so that who groups runs need not have it

    return special.stdtrit(dof, 0.5 + level / 2)


def _normal() -> float:
    from scipy import special

    return float(special.ndtri(0.5 + LEVEL / 2))


def _score_bounds(values: Array, variance: Any, quantile: Array) -> tuple[Array, Array]:
    """Return the bounds within which a probability p is no further than so many of its own errors from the one found."""

    def within(p: Array) -> Any:
        return np.abs(values - p) <= quantile * np.sqrt(variance(p))

    found: list[Array] = []
    for end in (0.0, 1.0):
        inside, outside = values.copy(), np.full_like(values, end)
        for _ in range(50):  # halvings: as far as floats go
            middle = (inside + outside) / 2
            near = within(middle)
            inside, outside = np.where(near, middle, inside), np.where(near, outside, middle)
        found.append(outside)
    return found[0], found[1]


def _joined(values: Array, variance: Any, quantile: Array, *, enough: bool) -> Estimate:
    """Return the mean of K probabilities [K, ...] with an interval made of theirs; without bounds unless there are enough seeds."""
    k, value = len(values), values.mean(axis=0)
    low, high = _score_bounds(values, variance, quantile)
    below = np.sqrt(((values - low) ** 2).sum(axis=0)) / k
    above = np.sqrt(((high - values) ** 2).sum(axis=0)) / k
    if not enough:
        below = above = np.full_like(value, np.nan)
    return Estimate(value, value - below, value + above)
