"""Environments whose episodes do not come back: something outlives them, or no seed sets it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 40
begun = 0
"""Episodes of all instances of this process."""
seconds = 0.0
"""Time, for these environments and for whoever tries them by this clock: it passes where one says so."""


def clock() -> float:
    """Return the seconds that have passed for these environments."""
    return seconds


class Repeats(gymnasium.Env[Any, Any]):
    """Forty steps of random numbers that a seed sets."""

    observation_space = spaces.Box(-2, 2, (3,), np.float32)
    action_space = spaces.Discrete(2)
    left = 0.0
    """What earlier episodes of this instance have left behind."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 1.0, self.steps >= LENGTH, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class LeaksBetweenEpisodes(Repeats):
    """What the last other episode has left shows late in the next one, as in a physics engine that is not reset."""

    shows_after = 20

    def __init__(self) -> None:
        self.last_seed = self.this_seed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        if seed != self.this_seed:
            self.last_seed, self.this_seed = self.this_seed, seed
        return super().reset(seed=seed)

    def observe(self) -> Any:
        shift = self.last_seed / 2**31 if self.steps > self.shows_after else 0.0
        return super().observe() + np.float32(shift)


class LeaksUnseen(LeaksBetweenEpisodes):
    """The same, but only in episodes that are longer than a trial's."""

    shows_after = 150

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.steps >= 10 * LENGTH, False, info


class EndsSooner(LeaksUnseen):
    """An instance's first episode is over soon after a trial would be; stepping it further is an error."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        last = 110 if self.episodes == 1 else 100_000
        assert self.steps < last, "stepped past the end"
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.steps == last, False, info


class LeaksBetweenInstances(Repeats):
    """A module's variable counts what all instances do."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        global begun
        begun += 1
        return super().reset(seed=seed)

    def observe(self) -> Any:
        return super().observe() * np.float32(1.0 / begun)


class SeedsOfAll(Repeats):
    """Every reset seeds the one stream from which all instances draw what they pay."""

    stream = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        SeedsOfAll.stream = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, _, over, cut, info = super().step(action)
        return obs, float(SeedsOfAll.stream.uniform()), over, cut, info


class OnlyOne(Repeats):
    """Bears no other instance beside it."""

    opened = 0

    def __init__(self) -> None:
        if OnlyOne.opened:
            raise OSError("the port is taken")
        OnlyOne.opened += 1

    def close(self) -> None:
        OnlyOne.opened -= 1


class Unseeded(Repeats):
    """Takes its seed, and draws from another stream."""

    def observe(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)


class SlowToReset(Repeats):
    """Resets in more time than a trial has for steps, and is unseeded from its third step on."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        global seconds
        seconds += 0.3
        return super().reset(seed=seed)

    def observe(self) -> Any:
        if self.steps < 3:
            return super().observe()
        return np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)


class UnseededReward(Repeats):
    """Only what it pays is not repeated."""

    def step(self, action: Any) -> Any:
        obs, _, over, cut, info = super().step(action)
        return obs, float(np.random.default_rng().uniform()), over, cut, info


class Unpaid(Repeats):
    """Pays nothing."""

    def step(self, action: Any) -> Any:
        obs, _, over, cut, info = super().step(action)
        return obs, 0.0, over, cut, info


class NanReward(Repeats):
    """Pays what is no number, the same every time."""

    def step(self, action: Any) -> Any:
        obs, _, over, cut, info = super().step(action)
        return obs, float("nan"), over, cut, info


class Fails(Repeats):
    """Raises in its tenth step."""

    def step(self, action: Any) -> Any:
        assert self.steps < 9, "the wheel came off"
        return super().step(action)


gymnasium.register("Drifting-v0", entry_point=Unseeded, nondeterministic=True)
