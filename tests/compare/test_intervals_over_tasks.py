"""Intervals over several tasks, whose seeds differ."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from gossamer.compare.statistics import probability_of_improvement


def newcombe(p: float, here: int, there: int, quantile: float) -> tuple[float, float]:
    """Return the bounds at which a probability is so many of its own errors from the one found."""

    def beyond(q: float) -> float:
        spare = (here + there) / 2 - 1
        inflated = 1 + spare * (1 - q) / (2 - q) + spare * q / (1 + q)
        return abs(p - q) - quantile * np.sqrt(q * (1 - q) * inflated / (here * there))

    return optimize.brentq(beyond, 1e-12, p), optimize.brentq(beyond, p, 1 - 1e-12)


def test_improvement_over_several_tasks_has_students_quantile_in_each() -> None:
    """The normal one, which is that of a single task of many pairs, would be too sure of several together."""
    first = [np.arange(6.0), np.array([1.0, 4.0, 9.0, 16.0, 25.0, 36.0])]
    second = [np.arange(6.0) - 1.5, np.array([0.0, 2.0, 3.0, 8.0, 20.0, 30.0])]
    found = probability_of_improvement(first, second)
    values = [float(np.mean(x[:, None] > y[None])) for x, y in zip(first, second, strict=True)]
    bounds = [newcombe(p, 6, 6, float(stats.t.ppf(0.975, 10))) for p in values]
    below = np.sqrt(sum((p - low) ** 2 for p, (low, _) in zip(values, bounds, strict=True))) / 2
    above = np.sqrt(sum((high - p) ** 2 for p, (_, high) in zip(values, bounds, strict=True))) / 2
    assert float(found.value) == pytest.approx(np.mean(values))
    assert float(found.low) == pytest.approx(np.mean(values) - below, abs=1e-6)
    assert float(found.high) == pytest.approx(np.mean(values) + above, abs=1e-6)
