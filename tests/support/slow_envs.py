"""Environments that take long to make."""

from __future__ import annotations

import time

from gymnasium.envs.classic_control import CartPoleEnv

SECONDS = 1.1


class Slow(CartPoleEnv):
    """CartPole with a slow constructor."""

    def __init__(self) -> None:
        time.sleep(SECONDS)
        super().__init__()
