"""When a life counts as lost: in mid game, while another one is left."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.envs.atari import lost_life


@pytest.mark.parametrize(
    ("before", "now", "begun", "lost"),
    [
        (5, 4, False, True),
        (5, 5, False, False),
        (4, 5, False, False),  # won one
        (1, 0, False, False),  # the game tells whether it is over
        (0, 0, False, False),  # a game without lives
        (0, 5, True, False),
        (
            6,
            3,
            True,
            False,
        ),  # it was cut with lives that it had won; the new game has the usual ones
    ],
)
def test_a_life_is_lost_in_mid_game_alone(before: int, now: int, begun: bool, lost: bool) -> None:
    found = lost_life(np.array([before]), np.array([now]), np.array([begun]))
    assert found.tolist() == [lost]
