"""MiniGrid's environments behind functions and wrappers of one's own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

DOOR_KEY = "MiniGrid-DoorKey-5x5-v0"


def door_key() -> Any:
    import minigrid  # noqa: F401 - registers the id

    return gymnasium.make(DOOR_KEY)


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says which actions are allowed, and leaves what is observed as it is."""

    def reset(self, **given: Any) -> Any:
        obs, info = self.env.reset(**given)
        return obs, {**info, "action_mask": np.ones(7, np.int8)}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "action_mask": np.ones(7, np.int8)}


def masked() -> Any:
    return Masked(door_key())


def at_once() -> Any:
    """Made without an id, and without the mission."""
    from gymnasium.wrappers import FilterObservation
    from minigrid.envs import EmptyEnv

    return FilterObservation(EmptyEnv(size=5), ["direction", "image"])


def brightened() -> Any:
    """Shows other numbers than symbols, in the same space."""

    class Brightened(gymnasium.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return {**observation, "image": 20 * observation["image"]}

    return Brightened(door_key())


class Marks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes a number that is no symbol into what it observes in its first step."""

    def step(self, action: Any) -> Any:
        obs, *others = self.env.step(action)
        obs["image"][0, 0, 0] = 255
        return (obs, *others)


def marked() -> Any:
    return Marks(door_key())


def whole() -> Any:
    from minigrid.wrappers import FullyObsWrapper

    return FullyObsWrapper(door_key())


class Inside(gymnasium.Env[Any, Any]):
    """Has one of MiniGrid's environments, and is no wrapper of it."""

    def __init__(self) -> None:
        self.env = door_key()
        self.observation_space, self.action_space = (
            self.env.observation_space,
            self.env.action_space,
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


def inside() -> Any:
    return Inside()


def declared() -> Any:
    """Says itself that its image is one of symbols."""
    env = brightened()
    held = dict(env.observation_space.spaces)
    held["image"] = spaces.MultiDiscrete(np.broadcast_to([201, 101, 61], (7, 7, 3)))
    env.observation_space = spaces.Dict(held)
    return env


def pixels() -> Any:
    from minigrid.wrappers import RGBImgPartialObsWrapper

    return RGBImgPartialObsWrapper(door_key())
