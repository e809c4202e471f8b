"""Runs trained side by side: as many at a time as have room, watched, stopped together, none of them twice."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from gossamer.errors import ConfigError, RunFailed
from gossamer.record.exits import exit_of
from gossamer.record.objectives import is_done, read_summary
from gossamer.system.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.sweep.processes import Handle, Place, Run

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""Between two looks at what runs have written."""
MOST_KILLS = 3
"""So often a run that something has killed is resumed."""
KILL_SECONDS = 60.0
"""After the time that a run has to stop: one that is still there is killed."""


@dataclass(frozen=True)
class Outcome:
    """How a run has ended."""

    state: Literal["done", "stopped", "failed"]
    reason: str = ""


class Source(Protocol):
    """What there is to train."""

    def next(self) -> Run | None:
        """Return a run to begin or to go on with; None: there is none for now."""
        ...

    def ended(self, run: Run, outcome: Outcome) -> None:
        """Take notice that a run has ended."""
        ...

    def look(self, running: Sequence[Run]) -> Sequence[Run]:
        """Look at runs that train, about once a second; return those to be stopped for good."""
        ...


@dataclass
class _Running:
    run: Run
    handle: Handle
    slot: int
    give_up: float = float("inf")
    """When it is killed, by the monotonic clock; it was asked to stop."""


class Pool:
    """Trains the runs of a source.

    Args:
        place: where.
        stop_seconds: that a run has to stop, before it is killed.
        say: shows a line.
        draw: shows what is being trained.
    """

    def __init__(
        self,
        place: Place,
        *,
        stop_seconds: float,
        say: Callable[[str], None],
        draw: Callable[[Sequence[Run]], None],
    ):
        self._place, self._say, self._draw = place, say, draw
        self._stop_seconds = stop_seconds
        self._running: list[_Running] = []
        self._kills: dict[str, int] = {}
        self._stopping = False
        self._signals = 0  # that have come while runs train

    def adopt(self, runs: Sequence[Run]) -> list[Run]:
        """Take over those of some runs that an earlier command has begun and that still train; return them."""
        for run in runs:
            handle = self._place.adopt(run)
            if handle is not None:
                self._say(f"{run.name} still trains; waiting for it")
                slot = self._place.slot_of(run)
                if slot is None or any(x.slot == slot for x in self._running):
                    slot = self._free_slot()
                self._running.append(_Running(run, handle, slot))
        return [x.run for x in self._running]

    def run(self, source: Source) -> bool:
        """Train until there is nothing left; return False if a signal came before.

        Raises:
            RunFailed: the source gave up, or a run could not be started; the others were stopped.
        """
        looked_at = time.monotonic()
        with Signals(self._on_signal):
            try:
                while True:
                    self._collect(source)
                    if self._signals and not self._stopping:
                        self._say(
                            f"Stopping {len(self._running)} runs, which save a checkpoint. Press Ctrl-C again to end "
                            "them without saving."
                        )
                        self._stop_all()
                    if self._signals > 1:
                        return False
                    if not self._stopping:
                        self._fill(source)
                    if not self._running:
                        return not self._signals
                    if time.monotonic() >= looked_at + LOOK_SECONDS:
                        looked_at = time.monotonic()
                        self._look(source)
                    time.sleep(POLL_SECONDS)
            except (ConfigError, RunFailed):
                self._wait_for_all(source)
                raise
            except OSError as error:  # a full disk
                with suppress(OSError):  # what is done is seen again by whoever goes on
                    self._wait_for_all(source)
                raise RunFailed(f"cannot write down what was done: {error}") from error
            finally:
                for one in self._running:
                    one.handle.kill()
                self._running.clear()

    def _on_signal(self, number: int) -> None:
        # A terminal that is closed says so more than once.
        if not (self._signals and number == signal.SIGHUP):
            self._signals += 1

    def _wait_for_all(self, source: Source) -> None:
        """Stop all runs, and wait until they have ended or a second signal has come."""
        self._stop_all()
        while self._running and self._signals < 2:
            self._collect(source)
            time.sleep(POLL_SECONDS)

    def _fill(self, source: Source) -> None:
        while len(self._running) < self._place.jobs:
            run = source.next()
            if run is None:
                return
            self._start(run, self._free_slot())

    def _start(self, run: Run, slot: int) -> None:
        self._running.append(_Running(run, self._place.start(run, slot), slot))

    def _free_slot(self) -> int:
        used = {one.slot for one in self._running}
        return next(i for i in range(len(used) + 1) if i not in used)

    def _stop(self, one: _Running) -> None:
        if one.give_up == float("inf"):
            one.give_up = time.monotonic() + self._stop_seconds + KILL_SECONDS
            one.handle.stop()

    def _stop_all(self) -> None:
        self._stopping = True
        for one in self._running:
            self._stop(one)

    def _look(self, source: Source) -> None:
        running = [one.run for one in self._running]
        unwanted = source.look(running) if not self._stopping else ()
        for one in self._running:
            if one.run in unwanted:
                self._stop(one)
        self._draw(running)

    def _collect(self, source: Source) -> None:
        """Take notice of runs that have ended; what something has killed is resumed."""
        for one in list(self._running):
            code = one.handle.poll()
            if code is None:
                if time.monotonic() >= one.give_up:
                    one.handle.kill()
                continue
            self._running.remove(one)
            was_asked = one.give_up < float("inf")
            outcome = outcome_of(one.run, code, was_asked=was_asked)
            if outcome is None:
                kills = self._kills[one.run.name] = self._kills.get(one.run.name, 0) + 1
                if kills <= MOST_KILLS:
                    self._say(f"{one.run.name} was killed; it goes on from its last checkpoint")
                    self._start(one.run, one.slot)
                    continue
                outcome = Outcome(
                    "failed", f"it was killed {kills} times, as by a system short of memory"
                )
            source.ended(one.run, outcome)


def outcome_of(run: Run, code: int, *, was_asked: bool) -> Outcome | None:
    """Return how a run has ended; None: something has killed it, and it can go on.

    Args:
        run: which.
        code: of its process; 0 too where nobody knows.
        was_asked: to stop.
    """
    if code == 0 and is_done(run.folder):
        return Outcome("done")
    if was_asked:
        return Outcome("stopped")
    if code < 0 or code == 137:
        return None
    ended = exit_of(read_summary(run.folder))
    if code == 0 and ended is None:
        return None
    if code == 0 and ended is not None and ended.kind == "stopped":
        return Outcome("failed", f"it was {ended}, from outside")
    told = run.last_words() or (str(ended) if ended is not None else "")
    return Outcome("failed", told or f"it ended with exit code {code}")
