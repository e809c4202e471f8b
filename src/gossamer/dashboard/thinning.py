"""Series thin enough to draw: as many points as a screen has columns, with the extremes of what each stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]


class Series(NamedTuple):
    """Points of a line; `low` and `high` are None where every row is a point."""

    x: Numbers
    y: Numbers
    low: Numbers | None
    high: Numbers | None
    rows: int
    """Rows that it stands for."""
    not_positive_rows: int
    """Those of 0 or less, which have no place on a logarithmic axis."""


def thin(
    x: Numbers, y: Numbers, points: int, *, begin: float | None = None, end: float | None = None
) -> Series:
    """Return at most `points` points of a series, in the order of x.

    Rows are divided into buckets of equal numbers; a point is the mean of its bucket.

    Args:
        x: [N], NaN where a row does not tell.
        y: [N], likewise.
        points: at least 1.
        begin: smallest x that is shown; None: all.
        end: largest x; None: all.
    """
    keep = np.isfinite(x) & np.isfinite(y)
    if begin is not None:
        keep &= x >= begin
    if end is not None:
        keep &= x <= end
    x, y = x[keep], y[keep]
    if np.any(x[1:] < x[:-1]):
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    size, not_positive = len(x), int(np.count_nonzero(y <= 0))
    if size <= points:
        return Series(x, y, None, None, size, not_positive)
    edges = np.linspace(0, size, points + 1).astype(np.intp)
    counts = np.diff(edges)
    starts = edges[:-1]
    return Series(
        np.add.reduceat(x, starts) / counts,
        np.add.reduceat(y, starts) / counts,
        np.minimum.reduceat(y, starts),
        np.maximum.reduceat(y, starts),
        size,
        not_positive,
    )
