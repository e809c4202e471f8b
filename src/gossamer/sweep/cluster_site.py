"""Runs of a sweep on the machines of a Ray cluster; their files come into the sweep's folder while they train."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gossamer.config.cores import MACHINE, PLAIN
from gossamer.record.files import write_bytes
from gossamer.run.placements.cluster.remote_runs import HERE, RunCluster, WholeRun, files_below
from gossamer.sweep.local_site import make_room
from gossamer.sweep.pool import SETTINGS

if TYPE_CHECKING:
    from gossamer.run.placements.cluster.remote_runs import Changes, RemoteRun
    from gossamer.sweep.pool import PlannedRun


class ClusterSite(RunCluster):
    """The machines of a cluster."""

    def start(self, run: PlannedRun, slot: int) -> RemoteRun:
        """Begin a run, or go on with it, on some machine."""
        resumed = make_room(run)
        files = {SETTINGS: run.settings.read_bytes()}
        there = replace(run, folder=Path(HERE, run.folder.name))
        words = there.words(resumed=resumed)
        if resumed:
            files |= {
                f"{run.folder.name}/{name}": path.read_bytes()
                for name, path in files_below(run.folder)
            }
            # Settings are named again, as the code that they name was chosen here, not on that machine.
            words += ["--config", str(there.settings)]
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))
        share = str(max(1, int(self.cores)))
        environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": share, MACHINE: PLAIN}
        whole_run = WholeRun(files, words, environment, run.output.name)
        return self.begin(run.name, whole_run, partial(keep, run))

    def adopt(self, run: PlannedRun) -> None:
        """Return nothing: runs on a cluster end with the sweep that has begun them."""


def keep(run: PlannedRun, changes: Changes) -> None:
    """Copy the changes of a run's files into its folder here.

    A checkpoint's manifest comes last, by which a checkpoint that was cut off is known.
    """
    for name in sorted(changes.changed, key=lambda x: (x.endswith("manifest.json"), x)):
        if not _is_of(run, name):
            continue
        change, target = changes.changed[name], run.folder.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not change.offset:
            write_bytes(target, change.content)
            continue
        with target.open("rb+" if target.exists() else "wb") as file:
            file.truncate(change.offset)
            file.seek(change.offset)
            file.write(change.content)
    for name in changes.gone:
        if _is_of(run, name):
            target = run.folder.parent / name
            target.unlink(missing_ok=True)
            if target.parent.parent.name == "checkpoints" and not any(target.parent.iterdir()):
                shutil.rmtree(target.parent, ignore_errors=True)


def _is_of(run: PlannedRun, name: str) -> bool:
    """Whether a path below the folder that the run trains in is one of the run's files."""
    path = PurePosixPath(name)
    beside = not path.is_absolute() and ".." not in path.parts
    return beside and (path.parts[0] == run.folder.name or name == run.output.name)
