"""A family of tasks that tells of its episodes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Windy(gymnasium.Env[Any, Any]):
    """Pays its task; tells of it in numpy's numbers."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def set_task(self, seed: int) -> None:
        self.wind = np.float32(seed % 1000)

    @property
    def episode_info(self) -> dict[str, Any]:
        return {"wind": self.wind, "steps": np.int64(self.steps), "gust": np.float64("nan")}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), float(self.wind), self.steps == 5, False, {}


class Breaks(Windy):
    """Cannot tell of an episode that has gone on for five steps."""

    @property
    def episode_info(self) -> dict[str, Any]:
        if self.steps == 5:
            raise ArithmeticError("no wind")
        return super().episode_info
