"""Runs as processes of this machine: how many at once, started on their share of the cores, found again, stopped.

A run holds a lock from before its process begins to after it has ended, whatever becomes of whoever started it. So a
sweep that was killed knows which of its runs still train, and starts none of them twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gossamer.config.cores import MACHINE, PLAIN
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.files import LOCK, is_locked, take_lock
from gossamer.record.runs import is_surely_run
from gossamer.system.cores import can_pin, cpus_by_core, num_cores
from gossamer.system.gpus import visible_gpus
from gossamer.system.reading import read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.sweep.pool import PlannedRun

LINGER_SECONDS = 20.0
"""Longest wait for processes of a killed run to end."""
STOP = signal.SIGINT
"""Asks a run to save a checkpoint and stop, as Ctrl-C does."""
THREADS = ("--learner-threads", "--actor-threads", "--env-threads")


def cores_of(config: TrainConfig) -> int:
    """Return how many cores a run computes on at once: one for each of its processes."""
    if config.placement == "inline":
        return 1
    return config.num_learners * (1 + (config.actors_per_learner or 0))


class LocalSite:
    """This machine, whose cores the slots share out.

    Args:
        config: of a run.
        jobs: runs at a time; 0: as many as there are cores for, one for each GPU.
        most: more of them are not needed.
    """

    def __init__(self, config: TrainConfig, *, jobs: int = 0, most: int = sys.maxsize):
        self._gpus = visible_gpus() if config.device != "cpu" else []
        fit = max(1, num_cores() // cores_of(config))
        self.jobs = min(most, jobs or min(fit, len(self._gpus) or fit))
        # In this order the hyper-threads of a core go to the same slot.
        self._cores = list(itertools.chain(*cpus_by_core())) if can_pin() else []

    def cores(self, slot: int) -> list[int]:
        """Return the cores of a slot; all slots together have all of them. Empty: a run cannot be kept to some."""
        count, slot = len(self._cores), slot % self.jobs  # an adopted run may have another one
        own = self._cores[slot * count // self.jobs : (slot + 1) * count // self.jobs]
        return own or self._cores[slot % max(count, 1) :][:1]

    def start(self, run: PlannedRun, slot: int) -> LocalRun:
        """Begin a run, or go on with it."""
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(run.lock, fcntl.LOCK_EX, patience_seconds=LINGER_SECONDS)
        if lock is None:
            raise RunFailed(
                f"{run.folder} is still being trained by another process; stop that one first"
            )
        try:
            words = run.words(resumed=make_room(run))
            cores = self.cores(slot)
            share = len(cores) or max(1, num_cores() // self.jobs)
            if not cores:  # threads are all that can be limited
                words += [x for flag in THREADS for x in (flag, str(share))]
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
        return LocalRun(run, process)

    def _environment(self, slot: int, share: int) -> dict[str, str]:
        # Runs that are compared have what their sweep says, whatever their share of the machine.
        made = {**os.environ, "OMP_NUM_THREADS": str(share), MACHINE: PLAIN}
        if self._gpus:
            made["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        return made

    def adopt(self, run: PlannedRun) -> tuple[LocalRun, int | None] | None:
        """Return a run that an earlier sweep has begun and that still trains, and its slot, if there are still as many."""
        if not is_locked(run.lock):
            return None
        slot = _number_in(run.lock, 1)
        return LocalRun(run), slot if 0 <= slot < self.jobs else None

    def close(self) -> None:
        """Nothing is held."""


def make_room(run: PlannedRun) -> bool:
    """Remove the files of a run that was killed before it could be resumed; return whether it can be resumed."""
    from gossamer.record.checkpoint import CheckpointStore

    if run.folder.is_symlink():
        raise ConfigError(f"{run.folder} is a link; put the folder that it leads to in its place")
    try:
        is_there = is_surely_run(run.folder)
    except OSError as error:  # which must not look like absence
        raise ConfigError(f"{run.folder} cannot be read: {error.strerror or error}") from None
    resumable = is_there and bool(CheckpointStore(run.folder / "checkpoints", 0).list())
    if run.folder.exists() and not resumable:
        shutil.rmtree(run.folder)
    return resumable


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


class LocalRun:
    """A run on this machine.

    Args:
        run: which.
        process: that trains it; None: an earlier sweep has started one, and the run's lock tells which.
    """

    def __init__(self, run: PlannedRun, process: subprocess.Popen[bytes] | None = None):
        self._run, self._process = run, process

    def poll(self) -> int | None:
        """Return the exit code; None while it trains, 0 of a process that this one has not started."""
        if self._process is not None:
            return self._process.poll()
        return None if is_locked(self._run.lock) else 0

    def stop(self) -> None:
        """Ask it to save a checkpoint and stop."""
        self._signal(os.kill, STOP)

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""
        self._signal(os.killpg, signal.SIGKILL)
        give_up = time.monotonic() + LINGER_SECONDS
        while self.poll() is None and time.monotonic() < give_up:
            time.sleep(0.05)

    def _signal(self, send: Callable[[int, int], object], number: int) -> None:
        pid = self._pid()
        if pid > 1 and self.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(pid, number)

    def _pid(self) -> int:
        """Return the process, which leads a group of its own; -1: nobody knows it."""
        if self._process is not None:
            return self._process.pid
        # Its own word comes first: the sweep may have been killed before it could write down whom it had started.
        told = _number_in(self._run.folder / LOCK, 0) if is_locked(self._run.folder / LOCK) else 0
        return max(told, 0) or _number_in(self._run.lock, 0)


def _number_in(path: Path, place: int) -> int:
    """Return a number in a lock's file: first the process, then of a sweep's run its slot; -1: there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(read_plain(path, 1000).split()[place])
    return -1
