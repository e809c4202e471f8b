"""Seeds as one curve: the interval around it, from the fewest runs on that have one."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.compare.statistics import estimate
from gossamer.dashboard.statistics import curve


def test_three_seeds_have_the_interval_of_compare() -> None:
    """Most who compare have three."""
    x = np.array([0.0, 10.0, 20.0])
    runs = [(x, np.array(y)) for y in ([1.0, 4.0, 9.0], [2.0, 6.0, 7.0], [0.0, 5.0, 12.0])]
    found = curve(runs, 21, "mean")
    assert set(found.counts.tolist()) == {3}
    wanted = estimate([np.array([np.interp(found.x, x, y) for x, y in runs])], "mean")
    assert found.y == pytest.approx(wanted.value)
    assert found.low == pytest.approx(wanted.low)
    assert found.high == pytest.approx(wanted.high)
    assert np.all(found.low < found.y)
    assert np.all(found.y < found.high)
