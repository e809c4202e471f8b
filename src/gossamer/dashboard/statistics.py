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


NEAR = 0.05
"""Share of all of x: what a run tells holds for as far at least."""
TOGETHER = 0.02
"""Share of all of x: runs that begin to tell within it do so at one moment, which is that of the last of them."""


class Curve(NamedTuple):
    """A statistic of several runs over x, and its interval, which is NaN where fewer than FEWEST runs are."""

    x: Numbers
    y: Numbers
    low: Numbers
    high: Numbers
    counts: NDArray[np.int64]
    """Runs behind each point: those that have begun to tell a value there, and have not ended long before."""


def curve(runs: Sequence[tuple[Numbers, Numbers]], points: int, statistic: Statistic) -> Curve:
    """Return a statistic of several runs on one grid of x, with pointwise 95 % intervals over runs.

    A point is of all runs that have a value there: between two of their rows, or as near behind their last one as their
    rows are to each other, or as NEAR; no run has a value before its first row. There are points where more than half of
    the runs are, or as many as there are anywhere, but none just before another run begins, by TOGETHER.

    Args:
        runs: of each its x, ascending and counted from the beginning of the run, and y, of equal length, at least 1.
        points: of the grid.
        statistic: one of `compare.statistics.STATISTICS`.
    """
    begin, end = min(float(x[0]) for x, _ in runs), max(float(x[-1]) for x, _ in runs)
    grid = np.linspace(begin, end, points) if end > begin else np.array([begin])
    values = np.array([np.interp(grid, x, y) for x, y in runs])
    there = np.array([_has_value(grid, x, NEAR * end) for x, _ in runs])  # [runs, points]
    there &= np.isfinite(values)
    counts = there.sum(axis=0)
    keep = counts > 0
    keep &= counts >= min(len(runs) // 2 + 1, counts.max(initial=0))
    firsts = np.array([[x[0]] for x, _ in runs])
    keep &= ~((firsts > grid) & (firsts <= grid + TOGETHER * end)).any(axis=0)
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


def _has_value(grid: Numbers, x: Numbers, least: float) -> NDArray[np.bool_]:
    """Return which points of a grid are among a run's rows, or near behind its last one."""
    reach = max(float(np.diff(x).max(initial=0.0)), least)
    return (grid >= x[0]) & (grid <= x[-1] + reach)
