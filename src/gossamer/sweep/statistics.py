"""Statistics of trials: intervals of means over seeds, and the importance of each setting."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.sweep.space import Choices, Domain, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEWEST = 6
"""Trials without which there is no importance."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a mean as `gossamer compare` has it; None of fewer than two values, or without scipy."""
    if len(values) < 2 or importlib.util.find_spec("scipy") is None:
        return None
    from gossamer.compare.statistics import estimate

    found = estimate([np.asarray(values)], "mean")
    return float(found.low), float(found.high)


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place].tolist()


def importance(setting: Sequence[Any], worth: Sequence[float], domain: Domain) -> float | None:
    """Return the share of the trials' worth that goes with one setting alone, in [0, 1].

    Trials are grouped by their choice, or into thirds or fewer of a range; the groups' share of the variance of ranks,
    less what chance alone would explain: (H - k + 1) / (n - k) for Kruskal and Wallis' H of k groups, not below 0. None:
    too few trials, or no more than one group.

    Source: Tomczak and Tomczak 2014, "The need to report effect size estimates revisited", eta squared of H.

    Args:
        setting: its value in each trial.
        worth: of each trial; only the order matters.
        domain: of the setting.
    """
    n = len(worth)
    _, group, sizes = np.unique(_groups(setting, domain), return_inverse=True, return_counts=True)
    k = len(sizes)
    if n < FEWEST or k < 2 or n <= k or len(set(worth)) < 2:
        return None
    order, mean = np.array(ranks(worth)), (n + 1) / 2
    between = (sizes * (np.bincount(group, order) / sizes - mean) ** 2).sum()
    explained = float(between / ((order - mean) ** 2).sum())
    return max(0.0, 1.0 - (1.0 - explained) * (n - 1) / (n - k))


def _groups(setting: Sequence[Any], domain: Domain) -> list[Any]:
    if isinstance(domain, Choices) or len(set(setting)) <= 3:
        return [encoded(x) for x in setting]
    n = len(setting)
    count = 3 if n >= 9 else 2
    # Equal values have one rank, so they stay together.
    return [min(int((x - 0.5) / n * count), count - 1) for x in ranks(setting)]


def importances(
    chosen: Sequence[Mapping[str, Any]], worth: Sequence[float], space: Mapping[str, Domain]
) -> dict[str, float]:
    """Return the importance of each setting that something can be said of, the greatest first."""
    found = {
        name: importance([x.get(name) for x in chosen], worth, domain)
        for name, domain in space.items()
    }
    known = {name: x for name, x in found.items() if x is not None}
    return dict(sorted(known.items(), key=lambda x: -x[1]))
