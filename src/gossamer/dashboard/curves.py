"""Curves of several runs: seeds of equal settings grouped into one, with an interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.compare.grouping import sets_apart, value_key
from gossamer.dashboard.listing import differing
from gossamer.dashboard.series import read_series
from gossamer.dashboard.statistics import FEWEST, curve
from gossamer.dashboard.thinning import Series, thin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.compare.statistics import Statistic
    from gossamer.dashboard.columns import Columns
    from gossamer.dashboard.root import Root
    from gossamer.dashboard.series import Axis

GRID_POINTS = 300
"""Of a group: more cost time and cannot be told apart."""
ONE, TWO, SEVERAL = "none: one run", "none: two runs", "95 % studentized bootstrap"


@dataclass
class Group:
    """Runs that are one curve."""

    settings: dict[str, Any]
    runs: list[str] = field(default_factory=list[str])

    @property
    def label(self) -> str:
        """What sets it apart, in words."""
        told = (
            f"{name.removesuffix('.name')} {_text(x)}"
            for name, x in self.settings.items()
            if x is not None
        )
        return ", ".join(told) or "all"


def group(settings: Mapping[str, dict[str, Any]], by: Sequence[str] | None = None) -> list[Group]:
    """Return runs grouped by the settings that tell them apart, in the order in which they came.

    Args:
        settings: by run, by dotted name.
        by: names of the settings that count; None: those by which `gossamer compare` tells groups apart, and the
            environment, of which a curve has one.
    """
    names = differing(list(settings.values())) if by is None else list(by)
    if by is None:
        names = [name for name in names if name == "env_id" or sets_apart(name)]
    found: dict[tuple[str, ...], Group] = {}
    for run, own in settings.items():
        key = {name: own.get(name) for name in names}
        same = tuple(value_key(own, name) for name in names)
        found.setdefault(same, Group(key)).runs.append(run)
    return list(found.values())


def curves(
    root: Root,
    columns: Columns,
    settings: Mapping[str, dict[str, Any]],
    metric: str,
    axis: Axis,
    *,
    points: int,
    statistic: Statistic,
    by: Sequence[str] | None = None,
    learner: int | None = None,
    wait: bool = False,
) -> list[dict[str, Any]]:
    """Return a curve for each group of runs.

    Args:
        root: of the runs.
        columns: reads their rows.
        settings: of each run, by its id.
        metric: name.
        axis: what is x.
        points: of a curve, at most.
        statistic: of the runs in a group.
        by: as `group` has it.
        learner: as `read_series` has it.
        wait: as `read_series` has it.
    """
    told: list[dict[str, Any]] = []
    for one in group(settings, by):
        exact, series = True, list[Series]()
        for run in one.runs:
            raw = read_series(root, columns, run, metric, axis, learner, wait=wait)
            exact = exact and raw.exact
            series.append(thin(raw.x, raw.y, points))
        there = [(found.x, found.y) for found in series if len(found.x)]
        entry: dict[str, Any] = {
            "label": one.label,
            "settings": one.settings,
            "n": len(there),
            "runs": one.runs,
            "interval": (ONE, ONE, TWO)[len(there)] if len(there) < FEWEST else SEVERAL,
            "exact": exact,
            "not_positive_rows": sum(x.not_positive_rows for x in series) if exact else None,
        }
        if len(there) > 1:
            found = curve(there, min(points, GRID_POINTS), statistic)
            entry |= {"x": found.x, "y": found.y, "low": found.low, "high": found.high}
            entry["counts"] = found.counts
        else:
            one_run = next((found for found in series if len(found.x)), series[0])
            # Of a run alone they are the extremes of the rows behind a point.
            low, high = (one_run.y if x is None else x for x in (one_run.low, one_run.high))
            entry |= {"x": one_run.x, "y": one_run.y, "low": low, "high": high}
            entry["counts"] = np.ones(len(one_run.x), dtype=int)
        told.append(entry)
    return told


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:  # one value for all learners
        return _text(value[0])
    return f"{value:g}" if isinstance(value, float) else str(value)
