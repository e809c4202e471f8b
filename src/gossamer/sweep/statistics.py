"""What a table of trials says: means of seeds with intervals, and how much each setting matters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gossamer.sweep.space import Choices, Domain, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 0.975, for 1 to 30 degrees of freedom."""
FEWEST = 6
"""Trials without which nothing is said of what matters."""


def t_quantile(degrees: int) -> float:
    """Return Student's t at 0.975, from a table; above 30 degrees of freedom to within 0.001."""
    if degrees <= len(_T975):
        return _T975[degrees - 1]
    # Cornish and Fisher's expansion around the normal quantile.
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a mean, by Student's t; None of fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    deviation = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for i in order[at : end + 1]:
            found[i] = (at + end) / 2 + 1
        at = end + 1
    return found


def importance(setting: Sequence[Any], worth: Sequence[float], domain: Domain) -> float | None:
    """Return how much of what trials are worth goes with one setting alone, in [0, 1].

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
    groups = _groups(setting, domain)
    k = len(set(groups))
    if n < FEWEST or k < 2 or n <= k or len(set(worth)) < 2:
        return None
    order = ranks(worth)
    mean = (n + 1) / 2
    total = sum((x - mean) ** 2 for x in order)
    between = 0.0
    for group in set(groups):
        own = [x for x, mine in zip(order, groups, strict=True) if mine == group]
        between += len(own) * (sum(own) / len(own) - mean) ** 2
    explained = between / total
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
        name: importance([x[name] for x in chosen], worth, domain) for name, domain in space.items()
    }
    known = {name: x for name, x in found.items() if x is not None}
    return dict(sorted(known.items(), key=lambda x: -x[1]))
