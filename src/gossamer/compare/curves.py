"""Learning curves of several seeds on one grid, and when they reach a threshold.

Shapes: n seeds, R rows of a run, P points of the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.compare.statistics import estimate
from gossamer.record.window import WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.compare.statistics import Estimate, Statistic

Array = NDArray[np.float64]
Axis = Literal["env_steps", "seconds"]
AXES: tuple[Axis, ...] = ("env_steps", "seconds")


class Curve(NamedTuple):
    """How the mean return of a run's last 100 training episodes went; arrays [R], none of them falling but `value`."""

    env_steps: Array
    seconds: Array
    value: Array
    episodes: Array
    """Finished so far; with less than 100 the mean is of fewer."""

    def along(self, axis: Axis) -> Array:
        """Return env steps or seconds."""
        return self.env_steps if axis == "env_steps" else self.seconds


def grid_of(axes: Sequence[Array], points: int) -> Array:
    """Return `points` evenly spaced places [P], from the first row of any run to the last one.

    Args:
        axes: env steps or seconds [R] of each run; those without rows do not count.
        points: >= 2.
    """
    there = [x for x in axes if len(x)]
    if not there:
        return np.zeros(0)
    return np.linspace(min(x[0] for x in there), max(x[-1] for x in there), points)


def on_grid(axes: Sequence[Array], values: Sequence[Array], grid: Array) -> Array:
    """Interpolate each run between its rows.

    Args:
        axes: where the rows of each run are, [R] and not falling.
        values: of the same rows.
        grid: [P].

    Returns:
        [n, P]; NaN before the first row of a run and after its last one.
    """
    found = np.full((len(axes), len(grid)), np.nan)
    for row, x, y in zip(found, axes, values, strict=True):
        if len(x):
            row[:] = np.interp(grid, x, y, left=np.nan, right=np.nan)
    return found


def grouped_curve(values: Array, statistic: Statistic) -> Estimate:
    """Return a statistic over seeds with its interval at each point, where all of them are.

    Args:
        values: [n, P], NaN where a run is not.
        statistic: "mean", "median" or "iqm".

    Returns:
        Arrays [P]; NaN where a run is missing, and bounds NaN with a single seed.
    """
    whole = np.isfinite(values).all(axis=0)
    found = estimate([values[:, whole]], statistic)
    spread = [np.full(values.shape[1], np.nan) for _ in found]
    for target, part in zip(spread, found, strict=True):
        target[whole] = part
    return type(found)(*spread)


def reached(curve: Curve, threshold: float) -> tuple[float, float] | None:
    """Return env steps and seconds of the first point whose mean of 100 episodes reaches a threshold; None if none does."""
    there = (curve.value >= threshold) & (curve.episodes >= WINDOW)
    if not there.any():
        return None
    first = int(np.argmax(there))
    return float(curve.env_steps[first]), float(curve.seconds[first])
