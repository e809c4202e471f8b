"""Curves of several runs on one grid, and thresholds."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.compare.atari_scores import RANDOM_AND_HUMAN, human_normalized
from gossamer.compare.curves import Curve, grid_of, grouped_curve, on_grid, reached
from gossamer.compare.statistics import estimate


def curve(*rows: tuple[float, float, float, float]) -> Curve:
    return Curve(*np.array(rows, float).reshape(-1, 4).T)


def test_runs_are_interpolated_between_their_rows_and_absent_elsewhere() -> None:
    axes = [np.array([0.0, 10.0]), np.array([5.0, 10.0, 20.0]), np.zeros(0)]
    values = [np.array([0.0, 1.0]), np.array([1.0, 1.0, 3.0]), np.zeros(0)]
    grid = grid_of(axes, 5)
    np.testing.assert_array_equal(grid, [0, 5, 10, 15, 20])
    found = on_grid(axes, values, grid)
    nan = np.nan
    expected = [[0, 0.5, 1, nan, nan], [nan, 1, 1, 2, 3], [nan] * 5]
    np.testing.assert_array_equal(found, expected)


def test_a_group_is_told_of_where_all_its_runs_are() -> None:
    values = np.array([[np.nan, 1.0, 2.0, 4.0], [1.0, 3.0, 2.0, np.nan]])
    found = grouped_curve(values, "mean")
    np.testing.assert_array_equal(found.value, [np.nan, 2, 2, np.nan])
    alone = estimate([np.array([1.0, 3.0])], "mean")
    assert (found.low[1], found.high[1]) == (alone.low, alone.high)
    assert (found.low[2], found.high[2]) == (2, 2)


def test_a_threshold_is_reached_by_a_hundred_episodes() -> None:
    run = curve((100, 1, 50, 20), (200, 2, 20, 100), (300, 3, 30, 140), (400, 4, 50, 180))
    assert reached(run, 30) == (300, 3), "the first 50 is the mean of 20 episodes"
    assert reached(run, 50) == (400, 4)
    assert reached(run, 51) is None
    assert reached(curve(), 0) is None


def test_fifty_seven_games_are_between_chance_and_people() -> None:
    assert len(RANDOM_AND_HUMAN) == 57
    assert all(low < high for low, high in RANDOM_AND_HUMAN.values())
    for env_id in ("PongNoFrameskip-v4", "ALE/Pong-v5", "envpool:Pong-v5"):
        assert human_normalized(env_id, -20.7) == 0
        assert human_normalized(env_id, 14.6) == pytest.approx(1)
    assert human_normalized("ALE/Breakout-v5", 401.2) == pytest.approx(13.87, abs=0.01)
    assert human_normalized("CartPole-v1", 1) is None
    assert human_normalized("ALE/Adventure-v5", 1) is None


def test_games_are_named_as_their_ids_name_them() -> None:
    roms = pytest.importorskip("ale_py.roms")
    names = {game.title().replace("_", "") for game in roms.get_all_rom_ids()}
    assert {*RANDOM_AND_HUMAN} <= names
