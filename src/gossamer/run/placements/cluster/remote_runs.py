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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import ray
from ray.exceptions import RayError

from gossamer.errors import RunFailed
from gossamer.record.files import LOCK
from gossamer.record.folder import MEMBERS
from gossamer.run.placements.cluster.actors import cause_of
from gossamer.run.placements.cluster.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gossamer.config import TrainConfig

HERE = "{here}"
"""Stands in words for the folder in which a run trains."""
LOOK_SECONDS = 1.0
"""Seconds between two questions to a run."""
KILLED = -9
"""Exit code of a run whose machine is gone."""
_LOGS = (".jsonl", ".csv", ".txt")
"""Files that only grow."""


class WholeRun(NamedTuple):
    """A run as the machine that trains it needs to know it."""

    files: dict[str, bytes]
    """Content of the files that it begins with, by path below its folder."""
    words: list[str]
    """Words after `gossamer train`."""
    environment: dict[str, str]
    """Variables that it has besides the machine's own."""
    output: str
    """File below its folder for the lines that it prints."""


class Change(NamedTuple):
    """New content of a file."""

    offset: int
    """Where it begins; what was behind it is no longer there. 0: it replaces the whole file."""
    content: bytes


class Changes(NamedTuple):
    """Changes of the files of a run since it was last asked."""

    code: int | None
    """Exit code; None while it trains."""
    changed: dict[str, Change]
    """By path below the folder."""
    gone: list[str]


class Trainer:
    """Trains a run in a folder of its own on the machine that it is on; a Ray actor.

    Args:
        run: which.
    """

    def __init__(self, run: WholeRun):
        self._folder = Path(tempfile.mkdtemp(prefix="gossamer-run-"))
        for name, content in run.files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        # What was sent here is known there.
        self._sent = {name: _mark(self._folder / name) for name in run.files}
        typed = [word.replace(HERE, str(self._folder)) for word in run.words]
        watcher = "gossamer.run.placements.cluster.run_watcher"
        with (self._folder / run.output).open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", watcher, str(self._folder), str(os.getpid()), *typed],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **run.environment},
                start_new_session=True,
            )

    def changes(self) -> Changes:
        """Return the changes since the last question; once the run has ended, all that were left."""
        code = self._process.poll()
        changed: dict[str, Change] = {}
        seen: set[str] = set()
        for name, path in files_below(self._folder):
            with suppress(OSError):  # it has been replaced meanwhile
                seen.add(name)
                mark, before = _mark(path), self._sent.get(name)
                if mark != before:
                    changed[name] = _change(path, mark, before)
                    self._sent[name] = mark
        gone = sorted(set(self._sent) - seen)
        for name in gone:
            del self._sent[name]
        return Changes(code, changed, gone)

    def stop(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        self._process.send_signal(signal.SIGINT)

    def clear(self) -> None:
        """End the run at once if it still trains, and remove its folder."""
        if self._process.poll() is None:
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
    offset = 0
    if before and mark[0] == before[0] and mark[1] >= before[1] and path.name.endswith(_LOGS):
        offset = before[1]
    with path.open("rb") as file:
        file.seek(offset)
        return Change(offset, file.read(mark[1] - offset))


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
        self.cores = cores
        """Cores of a run."""
        # The cores of a run are those of its actors too, which are no actors of Ray's.
        alone = replace(config, actors_per_learner=None)
        self._session = Session(alone, max(jobs, 1), 1, cores, config.num_learners)
        self._options = self._session.options(config.num_learners)
        self._wait_seconds = config.cluster.wait_seconds
        there = cast("dict[str, float]", ray.cluster_resources()).get("CPU", 1.0)
        self.jobs = jobs or max(1, int(there // cores))
        """Runs at a time."""

    def begin(self, name: str, run: WholeRun, keep: Callable[[Changes], object]) -> RemoteRun:
        """Begin a run on some machine, and return at once.

        Args:
            name: of the run, for errors.
            run: which.
            keep: called with the changes of its files.
        """
        actor = cast("Any", ray.remote(**self._options)(Trainer)).remote(run)
        return RemoteRun(name, actor, keep, self._wait_seconds)

    def close(self) -> None:
        """Leave the cluster; end it, if it was started here."""
        self._session.close()


class RemoteRun:
    """A run on some machine, as the process that has begun it sees it; nothing here waits for Ray."""

    def __init__(
        self, name: str, actor: Any, keep: Callable[[Changes], object], wait_seconds: float
    ):
        self._name, self._actor, self._keep = name, actor, keep
        self._wait_seconds = wait_seconds
        self._give_up = time.monotonic() + wait_seconds if wait_seconds else math.inf
        self._asked: Any = actor.changes.remote()
        self._ask_at = 0.0
        self._has_place = self._is_unwanted = self._was_told = False
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it trains.

        Raises:
            RunFailed: it has had no place for too long, or has one where no run can begin.
        """
        if self._code is None:
            try:
                self._code = self._look()
            except RayError as error:
                self._code = KILLED
                if getattr(error, "actor_init_failed", False):
                    # A machine where runs fail at once has room for every run that follows.
                    raise RunFailed(
                        f"{self._name} could not be started on the cluster: {cause_of(error)}; gossamer cluster check tells "
                        "what machines lack"
                    ) from error
        return self._code

    def _look(self) -> int | None:
        now = time.monotonic()
        if self._asked is None and now >= self._ask_at:
            self._asked = self._actor.changes.remote()
        code = None
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            changes = cast("Changes", ray.get(self._asked))
            self._has_place, self._asked, self._ask_at = True, None, now + LOOK_SECONDS
            self._keep(changes)
            code = changes.code
        if self._has_place and self._is_unwanted and not self._was_told:
            self._was_told = True
            self._actor.stop.remote()
        unplaced = not self._has_place and (self._is_unwanted or now >= self._give_up)
        if code is not None or unplaced:
            self.kill()
            code = KILLED if code is None else code
        if unplaced and not self._is_unwanted:
            raise RunFailed(
                f"{self._name} has had no place on the cluster for {self._wait_seconds:.0f} s; use fewer --jobs, or "
                "a longer cluster.wait_seconds in [settings]"
            )
        return code

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
