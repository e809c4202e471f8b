"""Environments for tests: their observations say exactly where they are."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTHS = (3, 5, 1, 4)


class Counting(gymnasium.Env[Any, Any]):
    """Observation: (seed's high half, step, seed's low half, last action); 1 to 5 steps long.

    Odd seeds end by termination, even ones by truncation.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Discrete(7)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None, "every episode is begun with its seed"
        self.seed, self.steps = seed, 0
        self.length = LENGTHS[seed % len(LENGTHS)]
        return self._obs(-1), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert self.steps < self.length, "stepped past the end"
        self.steps += 1
        over = self.steps == self.length
        odd = bool(self.seed % 2)
        return self._obs(int(action)), float(self.steps), over and odd, over and not odd, {}

    def _obs(self, action: int) -> Any:
        return np.array([self.seed // 65536, self.steps, self.seed % 65536, action], np.float64)


class Spaces(gymnasium.Env[Any, Any]):
    """Any two spaces; observations are sampled, actions are checked and echoed by `seen`."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        self.first = self.observation_space.sample()
        return self.first, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.seen.append(action)
        return self.observation_space.sample(), 1.0, False, False, {}


class Silent(gymnasium.Env[Any, Any]):
    """Never pays and never ends; observation: step of the episode."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 0.0, False, False, {}


class PaysMuch(Silent):
    """Pays numbers that float32 does not have, and takes most of them back: five in the ten steps of an episode."""

    def step(self, action: Any) -> Any:
        obs, _, _, _, info = super().step(action)
        reward = 16_777_217.0 if self.steps % 2 else -16_777_216.0
        return obs, reward, self.steps == 10, False, info


class Seven(Silent):
    """Is over after seven steps."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.steps == 7, truncated, info


class Failing(Silent):
    """Raises on its third step."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise ArithmeticError("the pole fell through the floor")
        return super().step(action)


class Sleeping(Silent):
    """Takes a hundredth of a second a step."""

    def step(self, action: Any) -> Any:
        import time

        time.sleep(0.01)
        return super().step(action)


class FirstProcess(Silent):
    """Takes a process that is not the first to make it with it."""

    def __init__(self) -> None:
        import multiprocessing
        import os
        from pathlib import Path

        if multiprocessing.parent_process() is None:
            return
        try:
            Path(os.environ["FIRST_PROCESS"]).mkdir()
        except FileExistsError:
            os._exit(3)


class MadeBy(Silent):
    """Adds the process that makes it to a file."""

    def __init__(self) -> None:
        import os
        from pathlib import Path

        with Path(os.environ["MADE_BY"]).open("a") as file:
            file.write(f"{os.getpid()}\n")


class OfItsOwn(Silent):
    """Has a simulator in a process of its own, which lives as long as a file; the one numbered SPOILT cannot be made."""

    def __init__(self) -> None:
        import os
        import uuid
        from pathlib import Path

        folder = Path(os.environ["SIMULATORS"])
        made = folder / "made"
        with made.open("a") as file:
            file.write(".")
            file.flush()
            number = file.tell()  # of its own byte, whoever writes beside
        if number == int(os.environ.get("SPOILT", "0")):
            raise RuntimeError("no port is free")
        self.simulator = folder / f"{uuid.uuid4().hex}.lives"
        self.simulator.touch()

    def close(self) -> None:
        self.simulator.unlink()


class Painted(Silent):
    """Shows a picture as bright as the step."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((4, 6, 3), self.steps, np.uint8) if self.render_mode else None


class PaintsUntil(Painted):
    """Draws no picture after so many steps as STOPS_PAINTING says, but ends the program, as one does without a screen."""

    def render(self) -> Any:
        import os
        import sys

        if self.steps >= int(os.environ["STOPS_PAINTING"]):
            sys.exit()
        return super().render()


class PaintsFractions(Painted):
    """Paints from 0, black, to 1."""

    def render(self) -> Any:
        return np.full((4, 6, 3), self.steps / 10)


class PaintsWholes(Painted):
    """Paints in another type."""

    def render(self) -> Any:
        return super().render().astype(np.float64)


class PaintsLarger(Painted):
    """Paints each picture larger than the one before."""

    def render(self) -> Any:
        return np.zeros((32 + 2 * self.steps, 32, 3), np.uint8)


def not_an_env() -> int:
    return 3


no_function = 5


def without_a_track() -> gymnasium.Env:
    """A function of a user's whose constructor fails."""
    raise ValueError("no such track")


class PlainEnv(gymnasium.Env):
    """An environment whose constructor takes nothing."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.low, 0.0, False, False, {}


class Begun(Silent):
    """Takes BEGUN_SECONDS to be made, with a simulator in a session of its own, and a file that is called as its process."""

    def __init__(self) -> None:
        import os
        import subprocess
        import time
        from pathlib import Path

        self.simulator = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.lives = Path(os.environ["SIMULATORS"]) / str(self.simulator.pid)
        self.lives.touch()
        time.sleep(float(os.environ["BEGUN_SECONDS"]))

    def close(self) -> None:
        self.simulator.kill()
        self.simulator.wait()
        self.lives.rename(self.lives.with_suffix(".ended"))
