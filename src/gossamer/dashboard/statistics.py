"""Seeds of one experiment as one curve: mean, median or interquartile mean at every x, as `gossamer compare` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gossamer.compare.statistics import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gossamer.compare.statistics import Statistic

    Numbers = NDArray[np.float64]

FEWEST = 3
"""Runs that an interval takes; of two it would be several times as wide as anything that is drawn."""


class Curve(NamedTuple):
    """A statistic of several runs over x, and its interval, which is NaN where fewer than FEWEST runs are."""

    x: Numbers
    y: Numbers
    low: Numbers
    high: Numbers
    counts: NDArray[np.int64]
    """Runs behind each point: those that have come so far."""


def curve(runs: Sequence[tuple[Numbers, Numbers]], points: int, statistic: Statistic) -> Curve:
    """Return a statistic of several runs on one grid of x, with pointwise 95 % intervals over runs.

    The grid reaches from where the last run begins to where half of the runs have ended.

    Args:
        runs: of each its x, ascending, and y, of equal length, at least 1.
        points: of the grid.
        statistic: one of `compare.statistics.STATISTICS`.
    """
    ends = sorted((float(x[-1]) for x, _ in runs), reverse=True)
    begin, end = max(float(x[0]) for x, _ in runs), ends[(len(ends) - 1) // 2]
    grid = np.linspace(begin, end, points) if end > begin else np.array([max(begin, end)])
    values = np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in runs])
    there = np.isfinite(values)  # [runs, points]
    keep = there.any(axis=0)
    grid, values, there = grid[keep], values[:, keep], there[:, keep]
    y, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    # Runs end one after another, so that there are few sets of runs, and each has a stretch of x.
    patterns, which = np.unique(there, axis=1, return_inverse=True)
    for i, pattern in enumerate(patterns.T):
        at = which.reshape(-1) == i
        found = estimate([values[np.ix_(pattern, at)]], statistic)
        y[at] = found.value
        if pattern.sum() >= FEWEST:
            low[at], high[at] = found.low, found.high
    return Curve(grid, y, low, high, there.sum(axis=0))
