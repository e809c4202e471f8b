"""CartPole that takes a twentieth of a second a step, so that 64 learners are no load for two cores."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

STEP_SECONDS = 0.05


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps before each step."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


def cartpole() -> gymnasium.Env[Any, Any]:
    """Return the environment."""
    return Paced(gymnasium.make("CartPole-v1"))
