"""Environments that go wrong in one way each."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RELEASED = threading.Event()
"""Set by a test that has seen enough of `Stuck`."""


class Plain(gymnasium.Env[Any, Any]):
    """Twenty steps of random numbers, paid 1 each."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), self.reward(), self.steps == 20, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reward(self) -> float:
        return 1.0


class Raises(Plain):
    """Fails in the middle of its first episode."""

    def reward(self) -> float:
        if self.steps == 15:
            _ignite_motor()
        return 1.0


def _ignite_motor() -> None:
    raise ValueError("the motor is on fire")


class Kills(Plain):
    """Takes its process with it when it is stepped for the tenth time."""

    def reward(self) -> float:
        if self.steps == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0


class NanReward(Plain):
    def reward(self) -> float:
        return float("nan") if self.steps > 1 else 1.0


class NanOnce(Plain):
    """One reward of the whole process is not a number."""

    spoilt = False

    def reward(self) -> float:
        if not NanOnce.spoilt and self.steps == 12:
            NanOnce.spoilt = True
            return float("nan")
        return 1.0


class NanObs(Plain):
    def observe(self) -> Any:
        return np.full(3, np.nan if self.steps > 1 else 0.0, np.float32)


class Stuck(Plain):
    """Never returns from a step."""

    def reward(self) -> float:
        if self.steps == 15:
            RELEASED.wait(600)
        return 1.0


class Dawdles(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that pauses now and then, when and for how long no seed tells."""

    chance = random.SystemRandom()

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        if self.chance.random() < 0.1:
            time.sleep(self.chance.uniform(0.0, 0.003))
        return super().step(action)


class Unseeded(Plain):
    """Registered as one that cannot be brought back."""

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode


gymnasium.register("Unseeded-v0", entry_point=Unseeded, nondeterministic=True)


class DictObs(Plain):
    observation_space = spaces.Dict({"a": spaces.Discrete(2)})


class TupleObs(Plain):
    observation_space = spaces.Tuple([spaces.Discrete(2)])


class TextObs(Plain):
    observation_space = spaces.Text(4)


class DictAction(Plain):
    action_space = spaces.Dict({"a": spaces.Discrete(2)})


def nothing() -> None:
    """Returns no environment."""


NOT_CALLABLE = 3
