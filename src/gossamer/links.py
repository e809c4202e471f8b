"""The three links that join roles, as protocols, and the in-memory forms that threads share."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gossamer.types import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from gossamer.types import Trajectory


class Stopped(Exception):
    """Raised inside a blocking call when the run is asked to stop."""


class TrajectoryQueue(Protocol):
    """Actors to learner, bounded: a full queue holds the actors back."""

    def slot(self) -> Trajectory:
        """Wait for a free slot and return it to be written."""
        ...

    def put(self, trajectory: Trajectory) -> None:
        """Hand a written slot to the learner."""
        ...

    def get(self) -> Trajectory:
        """Wait for the oldest written slot."""
        ...

    def release(self, trajectory: Trajectory) -> None:
        """Give a learnt slot back to the actors."""
        ...


class ParamsBoard(Protocol):
    """Learner to actors and evaluator: the latest parameters win; versions number them."""

    def publish(self, params: list[Tensor], version: int) -> None:
        """Copy parameters and moments of `version` to the board; never waits for readers."""
        ...

    def read(self, version: int, into: list[Tensor], *, exact: bool) -> int:
        """Wait for `version` (or later unless exact), copy it into tensors, return its number."""
        ...


class StopSignal:
    """One flag that every blocking call watches, and the first error that set it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def stop(self, error: BaseException | None = None) -> None:
        """Ask every role to stop; the first error is kept."""
        with self._lock:
            if self.error is None and error is not None:
                self.error = error
        self._event.set()

    @property
    def stopped(self) -> bool:
        """Whether anyone asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep until stopped or `seconds` have passed; return whether stopped."""
        return self._event.wait(seconds)


class ThreadQueue:
    """TrajectoryQueue among threads of one process: preallocated slots, only references travel."""

    def __init__(self, slots: list[Trajectory], stop: StopSignal, *, timeout_seconds: float):
        self._free = deque(slots)
        self._full: deque[Trajectory] = deque()
        self._changed = threading.Condition()
        self._stop = stop
        self._timeout_seconds = timeout_seconds
        self.waited_seconds = {"slot": 0.0, "get": 0.0}

    def slot(self) -> Trajectory:
        """Wait for a free slot and return it to be written."""
        return self._take(self._free, "slot", "a free trajectory slot (is the learner stuck?)")

    def put(self, trajectory: Trajectory) -> None:
        """Hand a written slot to the learner."""
        with self._changed:
            self._full.append(trajectory)
            self._changed.notify_all()

    def get(self) -> Trajectory:
        """Wait for the oldest written slot."""
        return self._take(self._full, "get", "a trajectory (are the environments stuck?)")

    def release(self, trajectory: Trajectory) -> None:
        """Give a learnt slot back to the actors."""
        with self._changed:
            self._free.append(trajectory)
            self._changed.notify_all()

    def wait_full(self, count: int) -> list[Trajectory]:
        """Wait until `count` written slots lie in the queue and return them, still queued."""
        with self._changed:
            wait_until(
                self._changed,
                lambda: len(self._full) >= count,
                self._stop,
                self._timeout_seconds,
                "a trajectory (are the environments stuck?)",
            )
            return list(self._full)

    def _take(self, held: deque[Trajectory], role: str, what: str) -> Trajectory:
        began = time.perf_counter()
        with self._changed:
            wait_until(self._changed, lambda: bool(held), self._stop, self._timeout_seconds, what)
            self.waited_seconds[role] += time.perf_counter() - began
            return held.popleft()


def wait_until(
    condition: threading.Condition,
    predicate: Callable[[], bool],
    stop: StopSignal,
    timeout_seconds: float,
    what: str,
) -> None:
    """Wait, condition held, until predicate; raise Stopped on a stop, RunFailed past the timeout."""
    waited = 0.0
    while not predicate():
        if stop.stopped:
            raise Stopped
        if waited >= timeout_seconds:
            raise RunFailed(f"waited {timeout_seconds:.0f} s for {what}; giving up")
        began = time.monotonic()
        condition.wait(min(timeout_seconds - waited, 0.2))
        # A process that was suspended (Ctrl-Z) has not waited all that time.
        waited += min(time.monotonic() - began, 1.0)


class Gate:
    """An actor passes it for each trajectory; who holds it keeps the actor between two."""

    def __init__(self, stop: StopSignal, *, timeout_seconds: float):
        self._stop, self._timeout_seconds = stop, timeout_seconds
        self._changed = threading.Condition()
        self._passing = self._held = False

    @contextmanager
    def passing(self) -> Generator[None]:
        """Collect in this context; wait until nobody holds the gate."""
        with self._changed:
            self._wait(lambda: not self._held, "whoever holds the actor (is a checkpoint stuck?)")
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
                self._wait(lambda: not self._passing, "the actor (are the environments stuck?)")
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    def _wait(self, predicate: Callable[[], bool], what: str) -> None:
        wait_until(self._changed, predicate, self._stop, self._timeout_seconds, what)


class ThreadBoard:
    """ParamsBoard among threads: the two newest versions are kept, so lag 1 can ask exactly."""

    def __init__(self, like: list[Tensor], stop: StopSignal, *, timeout_seconds: float):
        import torch

        self._held = [[torch.empty_like(x) for x in like] for _ in range(2)]
        self._versions = [-1, -1]
        self._changed = threading.Condition()
        self._stop = stop
        self._timeout_seconds = timeout_seconds
        self.waited_seconds = 0.0

    @property
    def newest(self) -> int:
        """Number of the newest version; -1 before the first."""
        return max(self._versions)

    def publish(self, params: list[Tensor], version: int) -> None:
        """Copy parameters and moments of `version` to the board; never waits for readers."""
        import torch

        with self._changed:
            place = version % 2
            with torch.no_grad():
                for held, x in zip(self._held[place], params, strict=True):
                    held.copy_(x)
            self._versions[place] = version
            self._changed.notify_all()

    def read(self, version: int, into: list[Tensor], *, exact: bool) -> int:
        """Wait for `version` (or later unless exact), copy it into tensors, return its number."""
        import torch

        began = time.perf_counter()
        with self._changed:
            what = f"version {version} of the parameters (is the learner stuck?)"
            wait_until(
                self._changed,
                lambda: self.newest >= version,
                self._stop,
                self._timeout_seconds,
                what,
            )
            self.waited_seconds += time.perf_counter() - began
            found = version if exact else self.newest
            place = found % 2
            assert self._versions[place] == found, (self._versions, version)
            with torch.no_grad():
                for target, x in zip(into, self._held[place], strict=True):
                    target.copy_(x)
            return found
