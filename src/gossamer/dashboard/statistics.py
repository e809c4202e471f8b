"""Seeds of one experiment as one curve: mean, median or interquartile mean at every x, with a bootstrap interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

Statistic = Literal["mean", "median", "iqm"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
RESAMPLES = 1000
COVERAGE = 0.95
_AT_ONCE = 1 << 20
"""Numbers that are resampled at a time."""


class Curve(NamedTuple):
    """A statistic of several runs over x; the interval is as narrow as the curve where there is one run."""

    x: Numbers
    y: Numbers
    low: Numbers
    high: Numbers
    counts: NDArray[np.int64]
    """Runs behind each point: those that have come so far."""


def curve(
    runs: Sequence[tuple[Numbers, Numbers]], points: int, statistic: Statistic, *, seed: int = 0
) -> Curve:
    """Return a statistic of several runs on one grid of x, with pointwise bootstrap intervals over runs.

    The grid reaches from where the last run begins to where half of the runs have ended.

    Args:
        runs: of each its x, ascending, and y, of equal length, at least 1.
        points: of the grid.
        statistic: one of STATISTICS.
        seed: of the resamples.
    """
    ends = sorted((float(x[-1]) for x, _ in runs), reverse=True)
    begin, end = max(float(x[0]) for x, _ in runs), ends[(len(ends) - 1) // 2]
    grid = np.linspace(begin, end, points) if end > begin else np.array([max(begin, end)])
    values = np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in runs])
    there = np.isfinite(values)  # [runs, points]
    keep = there.any(axis=0)
    grid, values, there = grid[keep], values[:, keep], there[:, keep]
    y, low, high = (np.empty(len(grid)) for _ in range(3))
    # Runs end one after another, so that there are few sets of runs, and each has a stretch of x.
    patterns, which = np.unique(there, axis=1, return_inverse=True)
    for i, pattern in enumerate(patterns.T):
        at = which.reshape(-1) == i
        block = values[np.ix_(pattern, at)]
        y[at] = summary(block, statistic)
        low[at], high[at] = interval(block, statistic, seed=seed)
    return Curve(grid, y, low, high, there.sum(axis=0))


def summary(values: Numbers, statistic: Statistic, axis: int = 0) -> Numbers:
    """Return the mean, the median, or the mean of the middle half of values along an axis.

    The middle half leaves out a quarter at each end, rounded down, as a trimmed mean does.
    Source: Agarwal et al. 2021 (arXiv:2108.13264), section 4.3.
    """
    if statistic == "mean":
        return np.mean(values, axis=axis)
    if statistic == "median":
        return np.median(values, axis=axis)
    cut = values.shape[axis] // 4
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, 0)
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def interval(values: Numbers, statistic: Statistic, *, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Return the percentile bootstrap interval of a statistic over runs, at each point by itself.

    Args:
        values: [runs, points].
        statistic: one of STATISTICS.
        seed: of the resamples.
    """
    size, points = values.shape
    if size == 1:
        return values[0].copy(), values[0].copy()
    drawn = np.random.default_rng(seed).integers(size, size=(RESAMPLES, size))
    tails = [50 * (1 - COVERAGE), 50 * (1 + COVERAGE)]
    step = max(_AT_ONCE // (RESAMPLES * size), 1)
    low, high = np.empty(points), np.empty(points)
    for first in range(0, points, step):
        part = slice(first, first + step)
        found = summary(values[:, part][drawn], statistic, axis=1)  # [resamples, points]
        low[part], high[part] = np.percentile(found, tails, axis=0)
    return low, high
