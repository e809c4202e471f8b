"""Environments whose actions hold several, of different kinds; they raise where one is not of their space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 5


def numbers(rng: np.random.Generator) -> Any:
    """Draw three numbers, none of which is nearly as large as another, or nearly 0."""
    far = rng.permutation(np.float32([-0.7, 0.2, 0.9]))
    return (far + rng.uniform(-0.1, 0.1, 3)).astype(np.float32)


class Many(gymnasium.Env[Any, Any]):
    """Twenty choices at once, each of which is to be the sign of a number."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (20,), np.float32)
    action_space: Any = spaces.Dict({f"part{i:02d}": spaces.Discrete(2) for i in range(20)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.numbers = 0, self.np_random.uniform(-1, 1, 20).astype(np.float32)
        return self.numbers, {}

    def step(self, action: Any) -> Any:
        right = [action[f"part{i:02d}"] == (x > 0) for i, x in enumerate(self.numbers)]
        self.steps += 1
        self.numbers = self.np_random.uniform(-1, 1, 20).astype(np.float32)
        return self.numbers, float(np.mean(right)), False, self.steps == 10, {}


class Joint(gymnasium.Env[Any, Any]):
    """Move to the largest of three numbers, and aim, gun by gun, at the first two: 1 a step at best."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Dict(
        {
            "aim": spaces.Box(-2.0, 2.0, (2,), np.float32),
            "legs": spaces.Dict({"move": spaces.Discrete(3, start=1)}),
            "switches": spaces.MultiBinary(2),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise RuntimeError(f"{action} is no action")
        right = int(action["legs"]["move"]) == 1 + self.obs.argmax()
        missed = float(np.square(action["aim"] - self.obs[:2]).mean())
        on = float((action["switches"] == (self.obs[1:] > 0)).mean())
        self.steps += 1
        paid = 0.4 * right + 0.3 * on + 0.3 * max(1.0 - missed, -1.0)
        return self.draw(), paid, self.steps == LENGTH, False, {}

    def draw(self) -> Any:
        self.obs = numbers(self.rng)
        return self.obs


class Pair(gymnasium.Env[Any, Any]):
    """A tuple of whole numbers: a choice, two choices of a MultiDiscrete, and a level between bounds."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Tuple(
        (
            spaces.Discrete(3),
            spaces.MultiDiscrete([2, 3], dtype=np.int32),
            spaces.Box(-1, 2, (1,), np.int8),
        )
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise RuntimeError(f"{action} is no action")
        largest = int(self.obs.argmax())
        right = action[0] == largest, action[1][1] == largest, action[2][0] == largest - 1
        self.steps += 1
        return self.draw(), float(np.mean(right)), self.steps == LENGTH, False, {}

    def draw(self) -> Any:
        self.obs = numbers(self.rng)
        return self.obs


class Forbidding(Joint):
    """Says which moves are allowed, in its infos; pays for the largest number among them."""

    def step(self, action: Any) -> Any:
        if not self.allowed[int(action["legs"]["move"]) - 1]:
            raise RuntimeError(f"{action} is forbidden")
        result = super().step(action)
        return (*result[:4], self.told())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, self.told()

    def told(self) -> Any:
        return {"action_mask": {"legs": {"move": self.allowed.astype(np.int8)}}}

    def draw(self) -> Any:
        obs = super().draw()
        self.allowed = self.rng.random(3) < 0.5
        self.allowed[self.rng.integers(3)] = True
        return obs


class Misspelling(Forbidding):
    """Calls the part that it masks by another name in the third step."""

    def told(self) -> Any:
        return (
            super().told() if self.steps < 3 else {"action_mask": {"legs": {"mvoe": self.allowed}}}
        )


class ObservedParts(Pair):
    """Observes the masks of its choices, part by part; the level has none."""

    observation_space: Any = spaces.Dict(
        {
            "observation": spaces.Box(-1.0, 1.0, (3,), np.float32),
            "action_mask": spaces.Tuple(
                (
                    spaces.MultiBinary(3),
                    spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(3))),
                )
            ),
        }
    )

    def step(self, action: Any) -> Any:
        chosen = (action[0], *action[1])
        for allowed, choice in zip(self.allowed, chosen, strict=True):
            if not allowed[choice]:
                raise RuntimeError(f"{action} is forbidden")
        return super().step(action)

    def draw(self) -> Any:
        obs = super().draw()
        self.allowed = [self.rng.random(n) < 0.5 for n in (3, 2, 3)]
        for part in self.allowed:
            part[self.rng.integers(len(part))] = True
        one, *two = (x.astype(np.int8) for x in self.allowed)
        return {"observation": obs, "action_mask": (one, tuple(two))}


class AllForbidden(Forbidding):
    """Forbids every move at its third step."""

    def told(self) -> Any:
        told = super().told()
        told["action_mask"]["legs"]["move"][:] *= self.steps != 2
        return told


class Wrong(Forbidding):
    """Has a mask of what cannot be masked."""

    def told(self) -> Any:
        told = super().told()
        told["action_mask"]["aim"] = np.ones(2)
        return told


class MasksReals(Pair):
    """Masks real numbers, the only part of its actions."""

    action_space: Any = spaces.Dict({"aim": spaces.Box(-1.0, 1.0, (2,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, self.told()

    def step(self, action: Any) -> Any:
        return self.draw(), 0.0, False, False, self.told()

    def told(self) -> Any:
        return {"action_mask": {"aim": np.ones(2)}}
