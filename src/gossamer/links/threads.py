"""The links among threads of one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gossamer.links.stopping import LOOK_SECONDS, Stopped, StopSignal
from gossamer.system.devices import Mark
from gossamer.system.signs_of_life import Patience, Sign

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from gossamer.types import Trajectory


class Roles:
    """The actor and the learner of one process, as those who wait for them see them.

    Args:
        patience_seconds: longest silence of either, as `Patience` takes it.
    """

    def __init__(self, patience_seconds: float):
        self.acting, self.learning = Sign("the actor"), Sign("the learner")
        self.actor = Patience.with_sign(self.acting, patience_seconds)
        self.learner = Patience.with_sign(self.learning, patience_seconds)


class StoppableCondition(threading.Condition):
    """A condition whose waits end with a stop, too.

    Args:
        stop: ends every wait.
    """

    def __init__(self, stop: StopSignal):
        super().__init__()
        self._stop = stop

    def wait_until(self, predicate: Callable[[], bool], patience: Patience, what: str) -> None:
        """Wait, the condition held, until predicate; raise Stopped on a stop, RunFailed when patience ends."""
        if predicate():
            return
        wait = patience.wait(what)
        while not predicate():
            if self._stop.stopped:
                raise Stopped
            wait.look()
            self.wait(LOOK_SECONDS)


class ThreadQueue:
    """TrajectoryQueue among threads of one process: preallocated slots, only references travel."""

    def __init__(self, slots: list[Trajectory], stop: StopSignal, roles: Roles):
        self._free = deque(slots)
        self._full: deque[Trajectory] = deque()
        self._changed = StoppableCondition(stop)
        self._roles = roles
        self.waited_seconds = {"slot": 0.0, "get": 0.0}

    def slot(self) -> Trajectory:
        """Wait for a free slot and return it to be written."""
        return self._take(self._free, "slot", self._roles.learner, "a free trajectory slot")

    def put(self, trajectory: Trajectory) -> None:
        """Hand a written slot to the learner."""
        with self._changed:
            self._full.append(trajectory)
            self._changed.notify_all()

    def get(self) -> Trajectory:
        """Wait for the oldest written slot."""
        return self._take(self._full, "get", self._roles.actor, "a trajectory")

    def release(self, trajectory: Trajectory) -> None:
        """Give a learnt slot back to the actors."""
        with self._changed:
            self._free.append(trajectory)
            self._changed.notify_all()

    def wait_full(self, count: int) -> list[Trajectory]:
        """Wait until `count` written slots lie in the queue and return them, still queued."""
        with self._changed:
            self._changed.wait_until(
                lambda: len(self._full) >= count, self._roles.actor, "a trajectory"
            )
            return list(self._full)

    def _take(
        self, held: deque[Trajectory], role: str, patience: Patience, what: str
    ) -> Trajectory:
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_until(lambda: bool(held), patience, what)
            self.waited_seconds[role] += time.perf_counter() - began
            return held.popleft()


class Gate:
    """An actor passes it for each trajectory; who holds it keeps the actor between two."""

    def __init__(self, stop: StopSignal, roles: Roles):
        self._roles = roles
        self._changed = StoppableCondition(stop)
        self._passing = self._held = False

    @contextmanager
    def passing(self) -> Generator[None]:
        """Collect in this context; wait until nobody holds the gate."""
        with self._changed:
            self._changed.wait_until(lambda: not self._held, self._roles.learner, "a checkpoint")
            self._passing = True
        try:
            yield
        finally:
            with self._changed:
                self._passing = False
                self._changed.notify_all()

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the actor in this context; wait until it is between two trajectories."""
        with self._changed:
            self._held = True
        try:
            with self._changed:
                self._changed.wait_until(
                    lambda: not self._passing, self._roles.actor, "the end of its trajectory"
                )
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()


class ThreadBoard:
    """Learner to actor and evaluator: the two newest versions are kept, so lag 1 can ask exactly."""

    def __init__(self, like: list[Tensor], stop: StopSignal, roles: Roles):
        self._held = [[torch.empty_like(x) for x in like] for _ in range(2)]
        self._versions = [-1, -1]
        # On a GPU, where a copy has been asked for long before it is made.
        self._device = like[0].device
        self._written = [Mark(self._device) for _ in range(2)]
        self._read: list[list[Mark]] = [[], []]  # of those who copy what is held
        self._changed = StoppableCondition(stop)
        self._roles = roles
        self.waited_seconds = 0.0

    @property
    def newest(self) -> int:
        """Number of the newest version; -1 before the first."""
        return max(self._versions)

    def publish(self, params: list[Tensor], version: int) -> None:
        """Copy parameters and moments of `version` to the board; never waits for readers."""
        with self._changed:
            place = version % 2
            for mark in self._read[place]:
                mark.follow()
            self._read[place].clear()
            with torch.no_grad():
                torch._foreach_copy_(self._held[place], params)
            self._written[place].set()
            self._versions[place] = version
            self._changed.notify_all()

    def read(self, version: int, into: list[Tensor], *, exact: bool) -> int:
        """Wait for `version` (or later unless exact), copy it into tensors, return its number."""
        began = time.perf_counter()
        with self._changed:
            what = f"version {version} of the parameters"
            self._changed.wait_until(lambda: self.newest >= version, self._roles.learner, what)
            self.waited_seconds += time.perf_counter() - began
            found = version if exact else self.newest
            place = found % 2
            assert self._versions[place] == found, (self._versions, version)
            self._written[place].follow()
            with torch.no_grad():
                torch._foreach_copy_(into, self._held[place])
            mark = Mark(self._device)
            mark.set()
            self._read[place].append(mark)
            return found
