"""Environments that keep a run going until a test lets it go: no kill comes after its end, however quick the machine is."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
from task_envs import Windy

VARIABLE = "RELEASED_FILE"
"""Names the file for which these environments wait; where it is not set, they wait for nothing."""
WAIT_SECONDS = 0.05
"""Of a step while the file is not there."""
STEPS_PER_SECOND = 20
"""Of a process, at most, while the file is not there."""
LONGEST_SECONDS = 300.0
"""Longest time for which a test holds a run, as pytest ends it then."""


def steps_for(num_processes: int, seconds: float = LONGEST_SECONDS) -> int:
    """Return env steps that processes cannot all have taken before they are released."""
    return int(num_processes * STEPS_PER_SECOND * seconds)


def wait_for_release() -> None:
    """Make a step slow, but not impossible: rows and checkpoints, of which some come by the clock, are still written."""
    # The trial before a run has a time in which it must have seen something.
    if threading.current_thread().name == "trial":
        return
    path = os.environ.get(VARIABLE)
    if path is not None and not Path(path).exists():
        time.sleep(WAIT_SECONDS)


class HeldCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole, slow until it is released."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        wait_for_release()
        return super().step(action)


def _stay() -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not Path(os.environ.get(VARIABLE, "")).is_file() and time.monotonic() < until:
        time.sleep(WAIT_SECONDS)


class HeldAndHelped(HeldCartPole):
    """The same, with a helper that is forked from its process and outlives it, with whatever that had open."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = multiprocessing.get_context("fork").Process(target=_stay, daemon=True)
        self.helper.start()

    def close(self) -> None:
        self.helper.kill()
        self.helper.join()
        super().close()


class HeldLater(HeldCartPole):
    """The same, but for the first steps of a process, which are as quick as they can be."""

    free_steps = 300
    taken = 0

    def step(self, action: Any) -> Any:
        HeldLater.taken += 1
        return self.env.step(action) if self.taken <= self.free_steps else super().step(action)


class HeldWindy(Windy):
    """A family of tasks, slow until it is released."""

    def step(self, action: Any) -> Any:
        wait_for_release()
        return super().step(action)
