"""Whole runs on the machines of a Ray cluster: each an actor that trains in a folder of its own and sends what is new."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import ray
from ray.exceptions import RayError

from gossamer.run.placements.cluster.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.config import TrainConfig

HERE = "{here}"
"""Stands in words for the folder in which a run trains."""
_LOGS = (".jsonl", ".csv", "log.txt", "output.txt")
"""Files that only grow."""


class Change(NamedTuple):
    """New content of a file."""

    offset: int
    """Where it begins; what was behind it is no longer there. -1: it replaces the whole file."""
    content: bytes


class News(NamedTuple):
    """What has happened to a run since it was last asked."""

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
        self, files: Mapping[str, bytes], words: Sequence[str], environment: Mapping[str, str]
    ) -> str:
        """Begin a run, or go on with it; return the address of this machine.

        Args:
            files: by path, what lies in the folder.
            words: after `gossamer train`.
            environment: variables that the run has besides this machine's own.
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
        with (self._folder / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", watcher, str(self._folder), str(os.getpid()), *typed],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return ray.util.get_node_ip_address()

    def news(self) -> News:
        """Return what is new; once the run has ended, all that was left."""
        code = None if self._process is None else self._process.poll()
        changed: dict[str, Change] = {}
        seen: set[str] = set()
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if path.is_symlink() or not path.is_file() or _is_passing(path):
                continue
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
        return News(code, changed, gone)

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


def _is_passing(path: Path) -> bool:
    return path.name in (".lock", ".members") or any(
        x.endswith((".partial", ".old")) for x in path.parts
    )


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

    def __str__(self) -> str:
        return str(self._session)

    def begin(
        self, files: Mapping[str, bytes], words: Sequence[str], environment: Mapping[str, str]
    ) -> RemoteRun:
        """Begin a run on some machine, at once."""
        actor = cast("Any", ray.remote(**self._options)(Trainer)).remote()
        return RemoteRun(actor, actor.begin.remote(files, words, environment))

    def close(self) -> None:
        """Leave the cluster; end it, if it was started here."""
        self._session.close()


class RemoteRun:
    """A run on some machine, as the process that has begun it sees it."""

    def __init__(self, actor: Any, begun: Any):
        self._actor, self._begun = actor, begun
        self._asked: Any = None
        self.address = ""
        """Of its machine; empty: it has no place yet."""

    def has_begun(self) -> bool:
        """Whether it has a place; its death is told by `news`."""
        if not self.address and ray.wait([self._begun], timeout=0)[0]:
            self.address = cast("str", ray.get(self._begun))
        return bool(self.address)

    def news(self) -> News | None:
        """Return what is new; None: nothing yet. Never waits.

        Raises:
            ConnectionError: its machine, or what trained there, is gone.
        """
        try:
            if not self.has_begun():
                return None
            if self._asked is None:
                self._asked = self._actor.news.remote()
            if not ray.wait([self._asked], timeout=0)[0]:
                return None
            found = cast("News", ray.get(self._asked))
        except RayError as error:
            raise ConnectionError(type(error).__name__) from error
        self._asked = None
        return found

    def stop(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        if self.address:
            self._actor.stop.remote()

    def end(self) -> None:
        """End the run at once, and remove its folder."""
        with suppress(RayError):
            if self.has_begun():
                ray.get(self._actor.clear.remote(), timeout=5.0)
        ray.kill(self._actor)
