"""Environments that allow some of their actions, and raise where another is taken."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 9


class Forbids(gymnasium.Env[Any, Any]):
    """Allows actions as drawn anew at every step; pays for the last allowed one; its mask is in the infos."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Discrete(5)
    sizes: tuple[int, ...] = (5,)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self._next()

    def step(self, action: Any) -> Any:
        choices = np.reshape(action, -1)
        for allowed, choice in zip(self.allowed, choices, strict=True):
            if not allowed[choice]:
                raise RuntimeError(f"{action} is forbidden")
        last = [int(np.flatnonzero(x)[-1]) for x in self.allowed]
        paid = float(np.mean(choices == last))
        self.steps += 1
        obs, info = self._next()
        over = self.steps == LENGTH
        return (*self._ended(obs, info, over=over)[:1], paid, over, False, info)

    def _ended(self, obs: Any, info: Any, *, over: bool) -> Any:
        """Where nothing is chosen any more, nothing is allowed."""
        if over:
            info["action_mask"] = np.zeros(sum(self.sizes), np.int8)
        return obs, info

    def _next(self) -> Any:
        self.allowed = [self.rng.random(n) < 0.4 for n in self.sizes]
        for part in self.allowed:
            part[self.rng.integers(len(part))] = True
        obs = self.rng.uniform(-1, 1, 3).astype(np.float32)
        return self.told(obs, self.mask())

    def mask(self) -> Any:
        return np.concatenate(self.allowed).astype(np.int8)

    def told(self, obs: Any, mask: Any) -> Any:
        return obs, {"action_mask": mask}


class Observed(Forbids):
    """Its mask is beside what it observes, as PettingZoo has it."""

    observation_space: Any = spaces.Dict(
        {
            "observation": spaces.Box(-1.0, 1.0, (3,), np.float32),
            "action_mask": spaces.Box(0, 1, (5,), np.int8),
        }
    )

    def told(self, obs: Any, mask: Any) -> Any:
        return {"observation": obs, "action_mask": mask}, {}

    def _ended(self, obs: Any, info: Any, *, over: bool) -> Any:
        return ({**obs, "action_mask": np.zeros(5, np.int8)} if over else obs), info


class Twice(Observed):
    """Says what it allows in its infos too."""

    def told(self, obs: Any, mask: Any) -> Any:
        return super().told(obs, mask)[0], {"action_mask": mask}


class Parts(Forbids):
    """Three choices at once, each with a mask of its own, in a tuple."""

    action_space: Any = spaces.MultiDiscrete([3, 2, 4])
    sizes = (3, 2, 4)

    def mask(self) -> Any:
        return tuple(x.astype(np.int8) for x in self.allowed)


class Late(gymnasium.Env[Any, Any]):
    """Says with its steps alone what is allowed."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, False, {"action_mask": np.ones(2, np.int8)}


class Elsewhere(Late):
    """Has masks where nobody reads them."""

    observation_space: Any = spaces.Dict(
        {"x": Late.observation_space, "below": spaces.Dict({"action_mask": spaces.MultiBinary(2)})}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}

    def action_masks(self) -> Any:
        raise AssertionError


class ObservedSwitches(Elsewhere):
    """Masks switches, whose masks may be read in several ways."""

    action_space: Any = spaces.MultiBinary(2)
    observation_space: Any = spaces.Dict(
        {"x": Late.observation_space, "action_mask": spaces.MultiBinary(2)}
    )


class Combined(Forbids):
    """Two choices at once, of which a mask says which combinations are allowed."""

    action_space: Any = spaces.MultiDiscrete([4, 3], start=[0, 7])
    sizes = (4, 3)

    def step(self, action: Any) -> Any:
        row, column = int(action[0]), int(action[1]) - 7
        if not self.pairs[row, column]:
            raise RuntimeError(f"{action} is forbidden")
        obs, info = self._next()
        self.steps += 1
        over = self.steps == LENGTH
        if over:
            info["action_mask"] = np.zeros((4, 3), bool)
        return obs, float(row), over, False, info

    def mask(self) -> Any:
        self.pairs = self.rng.random((4, 3)) < 0.3
        self.pairs[self.rng.integers(4), self.rng.integers(3)] = True
        return self.pairs


class Square(Forbids):
    """A mask of two choices of two: of parts or of combinations."""

    action_space: Any = spaces.MultiDiscrete([2, 2])
    sizes = (2, 2)

    def mask(self) -> Any:
        return np.stack(self.allowed).astype(np.int8)


class Cube(Forbids):
    """A mask of three choices of three, whose shape only combinations can have."""

    action_space: Any = spaces.MultiDiscrete([3, 3, 3])
    sizes = (3, 3, 3)

    def mask(self) -> Any:
        return np.ones((3, 3, 3), np.int8)


class Blocked(Forbids):
    """Forbids everything at its third step."""

    def mask(self) -> Any:
        return super().mask() * (self.steps != 3)


class Shrinks(Forbids):
    """A mask of another size than its actions at its third step."""

    def told(self, obs: Any, mask: Any) -> Any:
        return super().told(obs, mask[:3] if self.steps == 3 else mask)


class Vanishes(Forbids):
    """No mask at its third step."""

    def told(self, obs: Any, mask: Any) -> Any:
        return (obs, {}) if self.steps == 3 else super().told(obs, mask)


class ObservedShrinks(Observed):
    """The same beside what it observes."""

    def told(self, obs: Any, mask: Any) -> Any:
        return super().told(obs, mask[:3] if self.steps == 3 else mask)


class TooShort(Forbids):
    """A mask of another size than its actions."""

    def mask(self) -> Any:
        return super().mask()[:3]


class Switches(Forbids):
    """Actions of which masks have no single meaning."""

    action_space: Any = spaces.MultiBinary(5)
    sizes = (2, 2, 2, 2, 2)


class Reals(Late):
    """Masks real numbers, in all its infos."""

    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {"action_mask": np.ones(2, np.int8)}


class NoInfo(Late):
    """Returns no info."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), None


class Grid(Combined):
    """Its combinations are of a Box of whole numbers."""

    action_space: Any = spaces.Box(np.array([0, 7]), np.array([3, 9]), dtype=np.int32)


class Bandit(gymnasium.Env[Any, Any]):
    """Arms that pay what they are worth, of which some are allowed; what is observed tells nothing."""

    worth = (0.1, 0.8, 0.3, 1.0, 0.5, 0.0)
    observation_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space: Any = spaces.Discrete(len(worth))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self._next()

    def step(self, action: Any) -> Any:
        if not self.allowed[action]:
            raise RuntimeError(f"{action} is forbidden")
        # 1 for the best of what is allowed.
        paid = 1.0 + self.worth[action] - max(np.array(self.worth)[self.allowed])
        self.steps += 1
        obs, info = self._next()
        return obs, paid, self.steps == LENGTH, False, info

    def _next(self) -> Any:
        self.allowed = self.rng.random(len(self.worth)) < 0.5
        self.allowed[self.rng.integers(len(self.worth))] = True
        return np.zeros(1, np.float32), {"action_mask": self.allowed.astype(np.int8)}


class Maze(gymnasium.Env[Any, Any]):
    """A corridor that ends in a fork: the way is shown at its beginning, and walls are masked.

    1 for the right way, which only a policy with memory finds more often than not; a step costs 0.01, so that the best
    return is 1 - 0.01 (length + 1).
    """

    length = 3
    observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(4)
    best = 1.0 - 0.01 * (length + 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        rng = np.random.default_rng(seed)
        self.place, self.steps, self.way = 0, 0, int(rng.integers(2))
        return self._seen()

    def step(self, action: Any) -> Any:
        if not self._allowed()[action]:
            raise RuntimeError(f"{action} is a wall")
        self.steps += 1
        paid, over = -0.01, action >= 2
        if over:
            paid += float(action - 2 == self.way)
        else:
            self.place += 1 if action == 0 else -1
        obs, info = self._seen()
        return obs, paid, over, self.steps == 40, info

    def _allowed(self) -> Any:
        at_fork = self.place == self.length
        return np.array([not at_fork, self.place > 0, at_fork, at_fork])

    def _seen(self) -> Any:
        shown = (2.0 * self.way - 1.0) * (self.place == 0 and self.steps == 0)
        obs = np.float32([shown, self.place == self.length])
        return obs, {"action_mask": self._allowed().astype(np.int8)}
