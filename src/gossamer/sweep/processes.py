"""Runs as processes of this machine: started on their share of the cores, found again, stopped.

A run holds a lock from before its process begins to after it has ended, whatever becomes of whoever started it. So a
sweep that was killed knows which of its runs still train, and starts none of them twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gossamer.config.cores import MACHINE, PLAIN
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import visible_gpus
from gossamer.record.files import is_locked, take_lock
from gossamer.record.runs import LOCK, is_run, is_running
from gossamer.system.cores import can_pin, cpus_by_core, num_cores
from gossamer.system.reading import clipped, read_plain

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

OUTPUT_TAIL_BYTES = 65_536
LINGER_SECONDS = 20.0
"""Longest wait for what a killed run has left behind to end."""
STOP = signal.SIGINT
"""Asks a run to save a checkpoint and stop, as Ctrl-C does."""


@dataclass(frozen=True)
class Run:
    """One training run: where it is, and how it is begun."""

    name: str
    """Path below the sweep's folder, which is what it is called."""
    folder: Path
    """The run folder."""
    words: tuple[str, ...]
    """After `gossamer train`, for a run that has not begun."""
    settings: Path | None = None
    """File of settings that the words name."""

    @property
    def lock(self) -> Path:
        """File that is locked while the run's process is there."""
        return self.folder.with_name(f".{self.folder.name}.lock")

    @property
    def output(self) -> Path:
        """File of what the run prints."""
        return self.folder.with_name(f"{self.folder.name}.txt")

    def words_now(self) -> list[str]:
        """Return what to type after `gossamer train` so that the run begins, or goes on."""
        if has_checkpoint(self.folder):
            return ["--resume", str(self.folder)]
        return [*self.words, "--run-folder", str(self.folder)]

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


class Handle(Protocol):
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


class Place(Protocol):
    """Where runs train."""

    jobs: int
    """How many at a time."""

    def start(self, run: Run, slot: int) -> Handle:
        """Begin a run, or go on with it, in one of `jobs` slots."""
        ...

    def adopt(self, run: Run) -> Handle | None:
        """Return a run that an earlier sweep has begun and that still trains."""
        ...

    def slot_of(self, run: Run) -> int | None:
        """Return the slot that an adopted run is in; None: nobody knows."""
        ...

    def close(self) -> None:
        """Give up what the place holds."""
        ...


def has_checkpoint(folder: Path) -> bool:
    """Whether a run can be resumed."""
    from gossamer.record.checkpoint import CheckpointStore

    return is_run(folder) and bool(CheckpointStore(folder / "checkpoints", 0).list())


def jobs_that_fit(cores_of_a_run: int, *, device: str = "auto") -> int:
    """Return how many runs train at a time on this machine: as many as there are cores for, one for each GPU.

    Args:
        cores_of_a_run: processes that compute in it.
        device: its setting.
    """
    jobs = max(1, num_cores() // cores_of_a_run)
    count = len(visible_gpus()) if device != "cpu" else 0
    return min(jobs, count) if count else jobs


class LocalPlace:
    """This machine, whose cores the slots share out.

    Args:
        jobs: runs at a time.
        device: the runs' setting; "cpu" leaves GPUs alone.
    """

    def __init__(self, jobs: int, *, device: str = "auto"):
        self.jobs = jobs
        self._gpus = visible_gpus() if device != "cpu" else []
        # In this order the hyper-threads of a core go to the same slot.
        self._cores = list(itertools.chain(*cpus_by_core())) if can_pin() else []

    def cores(self, slot: int) -> list[int]:
        """Return the cores of a slot; all slots together have all of them. Empty: a run cannot be kept to some."""
        if not self._cores:
            return []
        if self.jobs >= len(self._cores):
            return [self._cores[slot % len(self._cores)]]
        size, more = divmod(len(self._cores), self.jobs)
        begin = slot * size + min(slot, more)
        return self._cores[begin : begin + size + (slot < more)]

    def start(self, run: Run, slot: int) -> Handle:
        """Begin a run, or go on with it."""
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(run.lock, fcntl.LOCK_EX, patience_seconds=LINGER_SECONDS)
        if lock is None:
            raise RunFailed(
                f"{run.folder} is still being trained by another process; stop that one first"
            )
        try:
            make_room(run)
            cores = self.cores(slot)
            share = len(cores) or max(1, num_cores() // self.jobs)
            words = run.words_now()
            if not cores:  # threads are all that can be limited
                words += _thread_limits(words, share)
            with run.output.open("ab") as output, on_cores(cores):
                # A session of its own: Ctrl-C is passed on, and comes once.
                process = subprocess.Popen(
                    [sys.executable, "-m", "gossamer", "train", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment(slot, share),
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            with contextlib.suppress(OSError):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{process.pid} {slot}\n".encode(), 0)
        except OSError as error:
            raise RunFailed(f"{run.folder} cannot be trained: {error.strerror or error}") from error
        finally:
            os.close(lock)  # the process has it
        return LocalHandle(process)

    def _environment(self, slot: int, share: int) -> dict[str, str]:
        # Runs that are compared have what their sweep says, whatever their share of the machine.
        made = {**os.environ, "OMP_NUM_THREADS": str(share), MACHINE: PLAIN}
        if self._gpus:
            made["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        return made

    def adopt(self, run: Run) -> Handle | None:
        """Return a run that an earlier sweep has begun and that still trains."""
        return Adopted(run) if is_locked(run.lock) else None

    def slot_of(self, run: Run) -> int | None:
        """Return the slot that a run was begun in, if there are still as many."""
        slot = number_in(run.lock, 1)
        return slot if 0 <= slot < self.jobs else None

    def close(self) -> None:
        """Nothing is held."""


def _thread_limits(words: Sequence[str], share: int) -> list[str]:
    flags = ("--learner-threads", "--actor-threads", "--env-threads")
    return [x for flag in flags if flag not in words for x in (flag, str(share))]


def make_room(run: Run) -> None:
    """Remove what a run has left that was killed before it could be resumed."""
    import shutil

    if run.folder.is_symlink():
        raise ConfigError(f"{run.folder} is a link; put the folder that it leads to in its place")
    if run.folder.exists() and not has_checkpoint(run.folder):
        shutil.rmtree(run.folder)


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Generator[None]:
    """Context whose new processes run on some cores; none: on those that this thread runs on."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class LocalHandle:
    """A run that this process has started."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._process = process

    def poll(self) -> int | None:
        """Return the exit code; None while it trains."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask it to save a checkpoint and stop."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(STOP)

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LINGER_SECONDS)


class Adopted:
    """A run that an earlier sweep has started: its process is known by its lock alone."""

    def __init__(self, run: Run):
        self._run = run

    def poll(self) -> int | None:
        """Return 0 once it has ended; how, its files say."""
        return None if is_locked(self._run.lock) else 0

    def stop(self) -> None:
        """Ask it to save a checkpoint and stop."""
        self._signal(STOP)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)
        give_up = time.monotonic() + LINGER_SECONDS
        while is_locked(self._run.lock) and time.monotonic() < give_up:
            time.sleep(0.05)

    def _signal(self, number: int) -> None:
        # Its own word comes first: the sweep may have been killed before it could write down whom it had started.
        found = number_in(self._run.folder / LOCK, 0) if is_running(self._run.folder) else 0
        pid = max(found, 0) or number_in(self._run.lock, 0)
        if pid > 1 and is_locked(self._run.lock):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if number == signal.SIGKILL:
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)


def number_in(path: Path, place: int) -> int:
    """Return what a lock's file holds: first the process, then of a sweep's run its slot; -1: nothing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(read_plain(path, 1000).split()[place])
    return -1
