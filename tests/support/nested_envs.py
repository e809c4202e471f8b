"""Environments whose observations hold several arrays; what each holds follows from the seed and the step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 7


class Vectors(gymnasium.Env[Any, Any]):
    """Two vectors and a lone number, in a Dict in a Dict; pays for the action that the first of them names."""

    observation_space: Any = spaces.Dict(
        {
            "state": spaces.Dict(
                {
                    "position": spaces.Box(-np.inf, np.inf, (3,), np.float32),
                    "speed": spaces.Box(-10.0, 10.0, (2, 2), np.float64),
                }
            ),
            "time": spaces.Box(0.0, 1.0, (), np.float32),
        }
    )
    action_space: Any = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        paid = float(action == self.wanted)
        return self._observe(), paid, self.steps == LENGTH, False, {}

    def _observe(self) -> Any:
        self.wanted = int(self.rng.integers(3))
        return self.observed()

    def observed(self) -> Any:
        position = np.eye(3, dtype=np.float32)[self.wanted]
        speed = self.rng.normal(size=(2, 2))
        return {
            "state": {"position": position, "speed": speed},
            "time": np.float32(self.steps / LENGTH),
        }


class Everything(Vectors):
    """An image, a vector, whole numbers that begin elsewhere than at 0, switches, and what no network can take."""

    observation_space: Any = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
            "mission": spaces.Text(20),
            "pair": spaces.Tuple(
                [
                    spaces.Discrete(3, start=5),
                    spaces.MultiDiscrete([4, 70], start=[0, -3]),
                    spaces.Text(3),
                ]
            ),
            "switches": spaces.MultiBinary(4),
            "type": spaces.Box(-1.0, 1.0, (2,), np.float32),
        }
    )

    def observed(self) -> Any:
        numbers = np.array([self.rng.integers(4), self.rng.integers(70) - 3])
        return {
            "image": self.rng.integers(0, 256, (40, 36, 3)).astype(np.uint8),
            "mission": "go there",
            "pair": (5 + self.wanted, numbers, "x"),
            "switches": self.rng.integers(0, 2, 4).astype(np.int8),
            "type": self.rng.uniform(-1, 1, 2).astype(np.float32),
        }


class Forgets(Vectors):
    """Its third observation lacks a key."""

    def observed(self) -> Any:
        found = super().observed()
        if self.steps == 2:
            del found["state"]["speed"]
        return found


def flat() -> Any:
    """Return `Vectors` as one array."""
    return gymnasium.wrappers.FlattenObservation(Vectors())


class Eyes(gymnasium.Env[Any, Any]):
    """Three cameras; nothing pays."""

    observation_space: Any = spaces.Dict(
        {name: spaces.Box(0, 255, (84, 84, 3), np.uint8) for name in ("left", "right", "top")}
    )
    action_space: Any = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}
