"""Runs of a sweep on the machines of a Ray cluster; their files come into the sweep's folder while they train."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gossamer.config.cores import MACHINE, PLAIN
from gossamer.errors import RunFailed
from gossamer.run.placements.cluster.whole_runs import HERE, RunCluster
from gossamer.sweep.presets import write_bytes
from gossamer.sweep.processes import has_checkpoint, make_room

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.run.placements.cluster.whole_runs import News, RemoteRun
    from gossamer.sweep.processes import Handle, Run

NEWS_SECONDS = 1.0
"""Between two questions to a run."""
KILLED = -9
"""Exit code of a run whose machine is gone."""
SETTINGS = "settings.toml"


class ClusterPlace:
    """The machines of a cluster.

    Args:
        config: of a run.
        jobs: at a time; 0: as many as the cluster has cores for.
        cores: of a run.
    """

    def __init__(self, config: TrainConfig, *, jobs: int, cores: float):
        self._cluster = RunCluster(config, jobs=jobs, cores=cores)
        self._cores, self._wait_seconds = cores, config.cluster.wait_seconds
        self.jobs = self._cluster.jobs

    def start(self, run: Run, slot: int) -> Handle:
        """Begin a run, or go on with it, on some machine."""
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        make_room(run)
        assert run.settings is not None
        files = {SETTINGS: run.settings.read_bytes()}
        words = [f"{HERE}/{SETTINGS}" if x == str(run.settings) else x for x in run.words]
        where = f"{HERE}/{run.folder.name}"
        if has_checkpoint(run.folder):
            files |= _files_of(run.folder)
            # Named again, as the code that settings name was chosen here, not on that machine.
            words = ["--resume", where, "--config", f"{HERE}/{SETTINGS}"]
        else:
            words += ["--run-folder", where]
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))
        share = str(max(1, int(self._cores)))
        environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": share, MACHINE: PLAIN}
        remote = self._cluster.begin(files, words, environment)
        return ClusterHandle(run, remote, self._wait_seconds)

    def adopt(self, run: Run) -> Handle | None:
        """Return nothing: runs on a cluster end with the sweep that has begun them."""
        return None

    def slot_of(self, run: Run) -> int | None:
        """Return nothing: none is adopted."""
        return None

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()


def _files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of a run folder, by path from above it."""
    return {
        path.relative_to(folder.parent).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name not in (".lock", ".members")
    }


class ClusterHandle:
    """A run on some machine; what it writes there is written here."""

    def __init__(self, run: Run, remote: RemoteRun, wait_seconds: float):
        self._run, self._remote = run, remote
        self._began = self._asked_at = time.monotonic()
        self._wait_seconds = wait_seconds
        self._code: int | None = None
        self._is_unwanted = False

    def poll(self) -> int | None:
        """Return the exit code; None while it trains.

        Raises:
            RunFailed: it has had no place for too long.
        """
        now = time.monotonic()
        if self._code is not None or now < self._asked_at + NEWS_SECONDS:
            return self._code
        try:
            news = self._remote.news()
        except ConnectionError:
            self._code = KILLED
            return self._code
        if not self._remote.address:
            if self._is_unwanted:
                self.kill()
            elif self._wait_seconds and now >= self._began + self._wait_seconds:
                self.kill()
                raise RunFailed(
                    f"{self._run.name} has had no place on the cluster for {self._wait_seconds:.0f} s; use fewer --jobs, or "
                    "a longer cluster.wait_seconds in [settings]"
                )
        if news is not None:
            self._asked_at = now
            keep(self._run, news)
            if news.code is not None:
                self._code = news.code
                self._remote.end()
        return self._code

    def stop(self) -> None:
        """Ask it to save a checkpoint and stop."""
        self._is_unwanted = True
        self._remote.stop()

    def kill(self) -> None:
        """End it at once."""
        self._remote.end()
        self._code = KILLED


def keep(run: Run, news: News) -> None:
    """Write down here what a run has written elsewhere.

    A checkpoint's manifest comes last, by which a checkpoint that was cut off is known.
    """
    top = run.folder.parent
    for name in sorted(news.changed, key=lambda x: (x.endswith("manifest.json"), x)):
        target = _place_of(top, run, name)
        if target is None:
            continue
        change = news.changed[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        if change.offset < 0:
            write_bytes(target, change.content)
            continue
        with target.open("rb+" if target.exists() else "wb") as file:
            file.truncate(change.offset)
            file.seek(change.offset)
            file.write(change.content)
    for name in news.gone:
        target = _place_of(top, run, name)
        if target is not None:
            target.unlink(missing_ok=True)
            if target.parent.parent.name == "checkpoints" and not any(target.parent.iterdir()):
                shutil.rmtree(target.parent, ignore_errors=True)


def _place_of(top: Path, run: Run, name: str) -> Path | None:
    """Return where a file of a run belongs here; None for one that is not the run's."""
    path = PurePosixPath(name)
    if name == "output.txt":
        return run.output
    if path.is_absolute() or ".." in path.parts or path.parts[0] != run.folder.name:
        return None
    return top / path
