"""The last training episodes, by which a run is told to be as good as it is."""

from __future__ import annotations

import math
import statistics

import pytest

from gossamer.record.window import Window


def test_of_one_learner_it_is_its_last_hundred() -> None:
    window = Window(1)
    assert window.mean() is None
    assert window.metrics() == {}
    for i in range(250):
        window.add(0, float(i), 2 * i)
        assert window.full == (i >= 99)
    assert window.mean() == window.mean_of(0) == statistics.fmean(range(150, 250))
    assert window.mean(16) == statistics.fmean(range(234, 250))
    assert window.metrics() == {
        "return_mean_100": 199.5, "return_min_100": 150.0, "return_max_100": 249.0,
        "length_mean_100": 399.0,
    }  # fmt: skip


def test_learners_of_short_episodes_do_not_drown_the_others() -> None:
    window = Window(3)
    for i in range(1000):
        window.add(1, 10.0, 10)
        if i % 50 == 0:
            window.add(0, 100.0, 100)
    assert window.mean() == pytest.approx((100.0 + 10.0) / 2)
    assert not window.full, "learner 2 has told nothing"
    for _ in range(34):
        window.add(2, 40.0, 40)
        assert not window.full, "20 of learner 0"
    for _ in range(14):
        window.add(0, 100.0, 100)
    assert window.full
    assert window.mean() == pytest.approx(50.0)
    for _ in range(2):
        window.add(0, 160.0, 160)
    assert window.mean(6) == pytest.approx((160.0 + 10.0 + 40.0) / 3), "two of each"
    assert window.mean_of(1) == 10.0
    again = Window(3)
    again.load(window.state())
    assert again.metrics() == window.metrics()
    assert again.full


def test_learners_that_are_absent_do_not_count_until_they_are_back() -> None:
    window = Window(4)
    for _ in range(30):
        window.add(0, 100.0, 10)
        window.add(1, 60.0, 10)
        window.add(2, 1.0, 10)
    assert not window.full, "learner 3 was never there"
    window.leave_out({2, 3})
    assert window.mean() == pytest.approx(80.0)
    assert window.shares() == {0: 100.0, 1: 60.0}
    assert window.metrics()["return_min_100"] == 60.0
    assert not window.full, "60 episodes"
    for _ in range(20):
        window.add(0, 100.0, 10)
        window.add(1, 60.0, 10)
    assert window.full, "50 of each are 100"
    assert [x.rank for x in window.state()] == [0, 1, 2], "it is kept"
    assert window.mean_of(2) == 1.0
    window.leave_out({3})
    assert window.mean() == pytest.approx(161.0 / 3)
    assert not window.full, "30 of learner 2"
    window.leave_out(())
    again = Window(4)
    again.load(window.state())
    assert again.metrics() == window.metrics()


def test_means_of_what_environments_tell_are_told_and_kept() -> None:
    window = Window(1)
    for i in range(150):
        window.add(0, 0.0, 1, {"success": float(i >= 125), "grip": 3.0 if i == 149 else math.nan})
    row = window.metrics()
    assert (row["info/success"], row["info/grip"]) == (0.25, 3.0)
    again = Window(1)
    again.load(window.state())
    assert again.metrics() == row
