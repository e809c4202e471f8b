"""Runs trained side by side: as many at a time as there are slots, stopped together, none of them twice."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import PARTIAL
from gossamer.record.exits import Exit, exit_of, state_of
from gossamer.record.readers import FolderReader, table_in
from gossamer.system.reading import clipped
from gossamer.system.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gossamer.sweep.live_table import Board

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""Seconds between two looks at the files of runs."""
MOST_KILLS = 3
"""Times that a run is resumed after something has killed it."""
INTERRUPTED = 130
"""Exit code of a run that Ctrl-C has ended before it had anything to save."""
KILL_SECONDS = 60.0
"""After the time that a run has to stop: one that is still there is killed."""
OUTPUT_TAIL_BYTES = 65_536
SETTINGS = "settings.toml"
"""Name of the file of settings that runs read as they begin, in the folder above theirs."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be trained: where it is, and how it is begun."""

    name: str
    """Name in lines for the user: in a sweep its path below the sweep's folder."""
    folder: Path
    """The run folder."""
    seed: int

    @property
    def settings(self) -> Path:
        """File of the settings that it has in common with the runs beside it."""
        return self.folder.with_name(SETTINGS)

    @property
    def files(self) -> FolderReader:
        """Reader of the run folder."""
        return FolderReader(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """Content of summary.json; empty if it is missing or damaged."""
        return table_in(self.files, "summary.json")

    @property
    def done(self) -> bool:
        """Whether it has reached its end, and nothing of it is left to do."""
        return state_of(self.summary, running=False) == "done"

    @property
    def lock(self) -> Path:
        """File that is locked while the run's process is there."""
        return self.folder.with_name(f".{self.folder.name}.lock")

    @property
    def output(self) -> Path:
        """File of the lines that the run prints."""
        return self.folder.with_name(f"{self.folder.name}.txt")

    def words(self, *, resumed: bool) -> list[str]:
        """Return the words after `gossamer train` with which the run begins, or is resumed."""
        if resumed:
            return ["--resume", str(self.folder)]
        words = ["--config", str(self.settings), "--seed", str(self.seed)]
        return [*words, "--run-folder", str(self.folder)]

    def last_words(self) -> str:
        """Return the last line of what the run printed in which gossamer speaks of itself."""
        with contextlib.suppress(OSError, ValueError), self.output.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - OUTPUT_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            told = [x for x in lines if x.startswith("gossamer: ")] or [
                x for x in lines if x.strip()
            ]
            if told:
                return clipped(told[-1].removeprefix("gossamer: "), 300)
        return ""


class RunInTraining(Protocol):
    """A run that is being trained."""

    def poll(self) -> int | None:
        """Return the exit code; None while it trains, 0 where nobody knows it."""
        ...

    def stop(self) -> None:
        """Ask it to save a checkpoint and stop."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Site(Protocol):
    """Trains runs, `jobs` at a time, each in a slot of its own."""

    jobs: int

    def start(self, run: PlannedRun, slot: int) -> RunInTraining:
        """Begin a run, or go on with it."""
        ...

    def adopt(self, run: PlannedRun) -> tuple[RunInTraining, int | None] | None:
        """Return a run that an earlier sweep has begun and that still trains, and its slot if that is known."""
        ...

    def close(self) -> None:
        """Give up the resources of the site."""
        ...


class RunQueue:
    """Runs to train, in their order.

    Args:
        runs: all that are known; those that are done are not trained again.
    """

    def __init__(self, runs: Sequence[PlannedRun] = ()):
        self.say: Callable[[str], object] = print
        """Shows a line; whoever trains the runs sets it."""
        self.runs = list(runs)
        self.pending = deque(run for run in runs if not run.done)

    def next(self) -> PlannedRun | None:
        """Return a run to begin or to go on with; None: there is none for now."""
        return self.pending.popleft() if self.pending else None

    def adopted(self, run: PlannedRun) -> None:
        """Take a run that still trains, as an earlier command has begun it, from those that are to begin."""
        if run in self.pending:
            self.pending.remove(run)

    def to_begin(self) -> int:
        """Return how many runs are still to begin, or to go on."""
        return len(self.pending)

    def ended(self, run: PlannedRun, how: Exit) -> None:
        """Record that a run has ended."""

    def unwanted(self, running: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
        """Look at runs that train, about once a second; return those to be stopped for good."""
        return ()


@dataclass
class _Running:
    run: PlannedRun
    training: RunInTraining
    give_up: float = float("inf")
    """When it is killed, by the monotonic clock; it was asked to stop."""
    adopted: bool = False
    """Whether an earlier command has begun it."""
    saving: tuple[list[str], int] = field(default_factory=lambda: ([], 0))
    """Checkpoint that it is writing and its bytes, at the last look after `give_up`."""


class Pool:
    """Trains the runs of a queue.

    Args:
        site: where.
        stop_seconds: that a run has to stop, before it is killed.
        board: shows lines, and what is being trained.
    """

    def __init__(self, site: Site, *, stop_seconds: float, board: Board):
        self._site, self._board = site, board
        self._stop_seconds = stop_seconds
        self._running: dict[int, _Running] = {}  # by slot
        self._kills: dict[
            str, tuple[int, int]
        ] = {}  # in a row, and the checkpoint that each goes on from
        self._signals = 0  # that have come while runs train

    def run(self, queue: RunQueue) -> bool:
        """Train until there is nothing left; return False if a signal came before.

        Raises:
            RunFailed: the queue gave up, or a run could not be started; the others were stopped.
        """
        queue.say = self._board.say
        self._adopt(queue)
        looked_at, stopping = time.monotonic(), False
        with Signals(self._on_signal):
            try:
                while True:
                    self._collect(queue)
                    if self._signals and not stopping:
                        stopping = True
                        self._board.say(
                            f"Stopping {len(self._running)} runs, which save a checkpoint. Press Ctrl-C again to end "
                            "them without saving."
                        )
                        self._stop(self._runs())
                    if self._signals > 1:
                        return False
                    if not stopping:
                        self._fill(queue)
                    if not self._running:
                        return not self._signals
                    if time.monotonic() >= looked_at + LOOK_SECONDS:
                        looked_at = time.monotonic()
                        self._look(queue)
                    time.sleep(POLL_SECONDS)
            except (ConfigError, RunFailed):
                self._wait_for_all(queue)
                raise
            except OSError as error:  # a full disk
                with contextlib.suppress(OSError):  # what is done is seen again by whoever goes on
                    self._wait_for_all(queue)
                raise RunFailed(f"cannot write down what was done: {error}") from error
            finally:
                for one in self._running.values():
                    one.training.kill()
                self._running.clear()

    def _adopt(self, queue: RunQueue) -> None:
        """Take over the runs that an earlier command has begun and that still train."""
        for run in queue.runs:
            found = self._site.adopt(run)
            if found is not None:
                training, slot = found
                self._board.say(f"{run.name} still trains; waiting for it")
                if slot is None or slot in self._running:
                    slot = self._free_slot()
                self._running[slot] = _Running(run, training, adopted=True)
                queue.adopted(run)

    def _on_signal(self, number: int) -> None:
        # A terminal that is closed says so more than once.
        if self._signals and number == signal.SIGHUP:
            return
        self._signals += 1
        if self._signals == 1:
            # At once, whatever goes on here: to a run that has had the same signal, as from a system that shuts down, a
            # later one would be a second Ctrl-C.
            self._stop(self._runs())

    def _wait_for_all(self, queue: RunQueue) -> None:
        """Stop all runs, and wait until they have ended or a second signal has come."""
        self._stop(self._runs())
        while self._running and self._signals < 2:
            self._collect(queue)
            time.sleep(POLL_SECONDS)

    def _fill(self, queue: RunQueue) -> None:
        while len(self._running) < self._site.jobs:
            run = queue.next()
            if run is None:
                return
            self._start(run, self._free_slot())

    def _start(self, run: PlannedRun, slot: int) -> None:
        self._running[slot] = _Running(run, self._site.start(run, slot))

    def _free_slot(self) -> int:
        return next(i for i in range(len(self._running) + 1) if i not in self._running)

    def _runs(self) -> list[PlannedRun]:
        return [one.run for one in self._running.values()]

    def _stop(self, runs: Sequence[PlannedRun]) -> None:
        """Ask runs to stop, and give them a time for it; those that were asked before keep theirs."""
        for one in self._running.values():
            if one.run in runs and one.give_up == float("inf"):
                one.give_up = time.monotonic() + self._stop_seconds + KILL_SECONDS
                one.training.stop()

    def _look(self, queue: RunQueue) -> None:
        if not self._signals:
            self._stop(queue.unwanted(self._runs()))
        to_begin = 0 if self._signals else queue.to_begin()
        self._board.draw(self._runs(), to_begin=to_begin, jobs=self._site.jobs)

    def _collect(self, queue: RunQueue) -> None:
        """Tell the queue of runs that have ended; resume those that something has killed."""
        for slot, one in list(self._running.items()):
            code = one.training.poll()
            if code is None:
                if time.monotonic() >= one.give_up:
                    self._give_up(one)
                continue
            del self._running[slot]
            asked = one.give_up < float("inf")
            how = exit_of_run(one.run, code, was_asked=asked, adopted=one.adopted)
            if how is None:
                kills = self._count_kill(one.run)
                if kills <= MOST_KILLS:
                    self._board.say(
                        f"{one.run.name} was {'stopped' if code == 0 else 'killed'}; it goes on from its last checkpoint"
                    )
                    self._start(one.run, slot)
                    continue
                how = Exit("failed", f"it was killed {kills} times, as by a system short of memory")
            queue.ended(one.run, how)

    def _give_up(self, one: _Running) -> None:
        """Kill a run whose time to stop is over, unless it writes a checkpoint on a slow disk."""
        saving = _being_saved(one.run.folder)
        if saving[1] and saving != one.saving:
            one.saving, one.give_up = saving, time.monotonic() + KILL_SECONDS
        else:
            one.training.kill()

    def _count_kill(self, run: PlannedRun) -> int:
        """Return how often a run has been killed in a row, without a new checkpoint in between."""
        kills, before = self._kills.get(run.name, (0, -1))
        names = [x.name for x in (run.folder / "checkpoints").glob("*")]
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        kills = kills + 1 if newest <= before else 1
        self._kills[run.name] = kills, newest
        return kills


def _being_saved(folder: Path) -> tuple[list[str], int]:
    """Return the name of the checkpoint that a run is writing, and its bytes; 0 where it writes none."""
    try:
        partial = list((folder / "checkpoints").glob(f"*{PARTIAL}"))
        return [x.name for x in partial], sum(
            y.stat().st_size for x in partial for y in x.iterdir()
        )
    except OSError:  # it is done
        return [], 0


def exit_of_run(
    run: PlannedRun, code: int, *, was_asked: bool, adopted: bool = False
) -> Exit | None:
    """Return how a run has ended; None: something has killed it, and it can go on.

    Args:
        run: which.
        code: of its process; 0 too where nobody knows.
        was_asked: to stop.
        adopted: an earlier command has begun it, and may have asked it to stop before it was killed itself.
    """
    ended = exit_of(run.summary)
    if code == 0 and ended is not None and ended.kind == "done":
        return ended
    killed = code < 0 or code == 137
    failed = ended is not None and ended.kind == "failed"
    # Asked to stop, it may have failed to save.
    if was_asked and (killed or code == INTERRUPTED or (code == 0 and not failed)):
        return Exit("stopped", "request")
    if killed or (code == 0 and ended is None):
        return None
    if code == 0 and ended is not None and ended.kind == "stopped":
        if adopted and ended.cause != "request":
            return None
        return Exit("failed", f"it was {ended}, from outside")
    told = run.last_words() or (str(ended) if ended is not None else "")
    return Exit("failed", told or f"it ended with exit code {code}")
