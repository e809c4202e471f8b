"""Whole runs on the machines of a Ray cluster: each an actor that trains in a folder of its own and sends what is new."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import ray
from ray.exceptions import RayError

from gossamer.errors import RunFailed
from gossamer.record.folder import MEMBERS
from gossamer.record.runs import LOCK
from gossamer.run.placements.cluster.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gossamer.config import TrainConfig

HERE = "{here}"
"""Stands in words for the folder in which a run trains."""
LOOK_SECONDS = 1.0
"""Seconds between two questions to a run."""
KILLED = -9
"""Exit code of a run whose machine is gone."""
_LOGS = (".jsonl", ".csv", ".txt")
"""Files that only grow."""


class Change(NamedTuple):
    """New content of a file."""

    offset: int
    """Where it begins; what was behind it is no longer there. -1: it replaces the whole file."""
    content: bytes


class Changes(NamedTuple):
    """Changes of the files of a run since it was last asked."""

    code: int | None
    """Exit code; None while it trains."""
    changed: dict[str, Change]
    """By path below the folder."""
    gone: list[str]


class Trainer:
    """Trains one run on the machine that it is on; a Ray actor."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gossamer-run-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: dict[str, tuple[int, int, int]] = {}

    def begin(
        self,
        files: Mapping[str, bytes],
        words: Sequence[str],
        environment: Mapping[str, str],
        output: str,
    ) -> None:
        """Begin a run, or go on with it.

        Args:
            files: content of the files that lie in the folder, by path.
            words: after `gossamer train`.
            environment: variables that the run has besides this machine's own.
            output: file for what the run prints.
        """
        for name, content in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        # What was sent here is known there.
        self._sent = {name: _mark(self._folder / name) for name in files}
        typed = [word.replace(HERE, str(self._folder)) for word in words]
        # Threads are limited to the cores that Ray gives.
        watcher = "gossamer.run.placements.cluster.run_watcher"
        with (self._folder / output).open("ab") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-m", watcher, str(self._folder), str(os.getpid()), *typed],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def changes(self) -> Changes:
        """Return the changes since the last question; once the run has ended, all that were left."""
        code = None if self._process is None else self._process.poll()
        changed: dict[str, Change] = {}
        seen: set[str] = set()
        for name, path in files_below(self._folder):
            with suppress(OSError):  # it has been replaced meanwhile
                seen.add(name)
                mark, before = _mark(path), self._sent.get(name)
                if mark == before:
                    continue
                changed[name] = _change(path, mark, before)
                self._sent[name] = mark
        gone = sorted(set(self._sent) - seen)
        for name in gone:
            del self._sent[name]
        return Changes(code, changed, gone)

    def stop(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def clear(self) -> None:
        """End the run at once if it still trains, and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the plain files of a folder, but for locks and those that are being written, by their paths from it."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        passing = any(x.endswith((".partial", ".old")) for x in name.parts)
        if path.is_file() and not (path.is_symlink() or passing or name.name in (LOCK, MEMBERS)):
            yield name.as_posix(), path


def _mark(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _change(path: Path, mark: tuple[int, int, int], before: tuple[int, int, int] | None) -> Change:
    """Return a file's content; of a log that has grown what is new, of its size when it was looked at."""
    grown = before is not None and mark[0] == before[0] and mark[1] >= before[1]
    with path.open("rb") as file:
        if not (grown and path.name.endswith(_LOGS)):
            return Change(-1, file.read(mark[1]))
        assert before is not None
        file.seek(before[1])
        return Change(before[1], file.read(mark[1] - before[1]))


class RunCluster:
    """A cluster on which whole runs train.

    Args:
        config: of a run; says where the cluster is.
        jobs: runs at a time that are asked for; 0: as many as it has cores for.
        cores: of a run.

    Raises:
        ConfigError: there is no such cluster, or too little in it.
    """

    def __init__(self, config: TrainConfig, *, jobs: int, cores: float):
        size = config.num_learners
        self._session = Session(config, max(jobs, 1), 1, cores, size)
        self._wait_seconds = config.cluster.wait_seconds
        gpus = size * config.cluster.gpus_per_learner
        self._options: dict[str, Any] = {
            "num_cpus": cores,
            "num_gpus": math.ceil(gpus) if gpus > 1 else gpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
        }
        there = cast("dict[str, float]", ray.cluster_resources()).get("CPU", 1.0)
        self.jobs = jobs or max(1, int(there // cores))
        """Runs at a time."""

    def begin(
        self,
        name: str,
        files: Mapping[str, bytes],
        words: Sequence[str],
        environment: Mapping[str, str],
        output: str,
        keep: Callable[[Changes], object],
    ) -> RemoteRun:
        """Begin a run on some machine, and return at once.

        Args:
            name: of the run, for errors.
            files: as `Trainer.begin` has it, as are the next three.
            words: likewise.
            environment: likewise.
            output: likewise.
            keep: called with the changes of its files.
        """
        actor = cast("Any", ray.remote(**self._options)(Trainer)).remote()
        begun = actor.begin.remote(files, words, environment, output)
        return RemoteRun(name, actor, begun, keep, self._wait_seconds)

    def close(self) -> None:
        """Leave the cluster; end it, if it was started here."""
        self._session.close()


class RemoteRun:
    """A run on some machine, as the process that has begun it sees it; nothing here waits for Ray."""

    def __init__(
        self,
        name: str,
        actor: Any,
        begun: Any,
        keep: Callable[[Changes], object],
        wait_seconds: float,
    ):
        self._name, self._actor, self._begun, self._keep = name, actor, begun, keep
        self._wait_seconds = wait_seconds
        self._asked: Any = None
        self._ask_at = time.monotonic()
        self._give_up = self._ask_at + wait_seconds if wait_seconds else math.inf
        self._has_place = self._is_unwanted = self._was_told = False
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it trains.

        Raises:
            RunFailed: it has had no place for too long.
        """
        if self._code is None:
            try:
                self._code = self._look()
            except RayError:
                self._code = KILLED
        return self._code

    def _look(self) -> int | None:
        now = time.monotonic()
        if not self._has_place and ray.wait([self._begun], timeout=0)[0]:
            ray.get(self._begun)
            self._has_place = True
        if not self._has_place:
            if self._is_unwanted or now >= self._give_up:
                self.kill()
            if now >= self._give_up:
                raise RunFailed(
                    f"{self._name} has had no place on the cluster for {self._wait_seconds:.0f} s; use fewer --jobs, or "
                    "a longer cluster.wait_seconds in [settings]"
                )
            return self._code
        if self._is_unwanted and not self._was_told:
            self._was_told = True
            self._actor.stop.remote()
        if self._asked is None and now >= self._ask_at:
            self._asked = self._actor.changes.remote()
        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return None
        changes = cast("Changes", ray.get(self._asked))
        self._asked, self._ask_at = None, now + LOOK_SECONDS
        self._keep(changes)
        if changes.code is not None:
            self.kill()
        return changes.code

    def stop(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        self._is_unwanted = True

    def kill(self) -> None:
        """End the run at once, and remove its folder."""
        self._code = KILLED
        with suppress(RayError):
            if self._has_place:
                ray.get(self._actor.clear.remote(), timeout=5.0)
        ray.kill(self._actor)
