"""Environments in which nobody can be good: returns are the episodes' seeds, or the time of day."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Lottery(gymnasium.Env[Any, Any]):
    """Two steps, which pay the upper and the lower bits of the seed: float32 holds each of them exactly."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.left = [seed % 4096, seed // 4096 * 4096]
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        paid = float(self.left.pop())
        return np.zeros(1, np.float32), paid, not self.left, False, {}


class Lotteries(Lottery):
    """A family; which of its tasks is played makes no difference."""

    def set_task(self, seed: int) -> None:
        pass


class Clock(gymnasium.Env[Any, Any]):
    """Two steps; the return is when the episode ended, so that whoever plays later earns more."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 2
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        self.left -= 1
        # A float32 tells thousandths of a second apart only of small numbers.
        paid = 0.0 if self.left else time.monotonic() % 10_000
        return np.zeros(1, np.float32), paid, not self.left, False, {}
