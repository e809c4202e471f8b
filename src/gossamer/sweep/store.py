"""A sweep's folder on disk: the sweep as it was asked for, a folder for each trial, and nothing that the runs could tell as well."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from gossamer.errors import ConfigError
from gossamer.machine import free_disk
from gossamer.record.files import LOCK, take_lock, write_text
from gossamer.record.folder import MIN_FREE_BYTES
from gossamer.record.metrics import plain
from gossamer.record.readers import FolderReader, object_in
from gossamer.sweep.pool import SETTINGS, PlannedRun
from gossamer.sweep.trial import Trial
from gossamer.system.reading import clipped, mapping, quoted, visible

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gossamer.sweep.file import Sweep

MANIFEST = "sweep.json"
TRIAL = "trial.json"


class SweepFolder:
    """The folder of one sweep, which one process works in at a time.

    Args:
        path: of the folder.
        sweep: whose trials it holds.
    """

    def __init__(self, path: Path, sweep: Sweep):
        self.path, self.sweep = path, sweep
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the folder, made if it is not there.

        Raises:
            ConfigError: it holds something else, another sweep works there, or it is damaged.
        """
        manifest = self.path / MANIFEST
        there = manifest.exists()
        if there:
            self._refuse_another()
        elif self.path.exists() and not self._was_begun():
            raise ConfigError(
                f"{self.path} exists and holds no sweep; name another folder: --folder {quoted(f'{self.path}-2')}"
            )
        try:
            if not there and (free := free_disk(self.path)) < MIN_FREE_BYTES:
                raise ConfigError(
                    f"only {free >> 20} MiB free at {self.path}; free some, or choose another --folder"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(self.path / LOCK, fcntl.LOCK_EX, patience_seconds=0.5)
            if self._lock is None:
                raise ConfigError(
                    f"another gossamer sweep works in {self.path}; stop that one first, or use --folder"
                )
            held = object_in(FolderReader(self.path), MANIFEST, self.path) if there else {}
            content = {**self._manifest(), "started_unix": _started(held, manifest)}
            if held != content:  # it is new, or there are to be more trials
                self.write_json(MANIFEST, content)
            for left in self.path.glob("*.partial"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise ConfigError(
                f"cannot write into {self.path}: {error.strerror}; choose another --folder"
            ) from None

    def _was_begun(self) -> bool:
        """Whether the folder holds nothing but what a sweep makes before it writes down what it is."""
        made = {LOCK, f"{MANIFEST}.partial"}
        return self.path.is_dir() and {x.name for x in self.path.iterdir()} <= made

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _manifest(self) -> dict[str, Any]:
        return {
            "file": self.sweep.file,
            "trials": self.sweep.trials,
            "sweep": plain(json.loads(json.dumps(self.sweep.identity))),
        }

    def _refuse_another(self) -> None:
        old = mapping(object_in(FolderReader(self.path), MANIFEST, self.path).get("sweep"))
        asked = self._manifest()["sweep"]
        names = [x for x in {**old, **asked} if old.get(x) != asked.get(x)]
        # A trial's number says which of these it tries, but for TPE's, and a later file wins.
        ordered = ("config",) if asked["method"] == "tpe" else ("search", "config")
        names += [x for x in ordered if x not in names and not _alike(old, asked, x)]
        if old and not names:
            return
        raise ConfigError(
            f"{self.path} holds another sweep (other: {', '.join(names) or 'everything'}); name another folder: "
            f"--folder {quoted(f'{self.path}-2')}"
        )

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file whole."""
        write_text(self.path / name, json.dumps(content, indent=1) + "\n")

    def read_trials(self) -> list[Trial]:
        """Return the trials that the folder holds, by number; ConfigError if it is damaged."""
        numbers = sorted(int(x.name) for x in self.path.iterdir() if x.name.isdecimal())
        # Others are of a sweep that was to have more.
        return [self._read_trial(x) for x in numbers if x < self.sweep.trials]

    def _read_trial(self, number: int) -> Trial:
        folder = self.path / f"{number:03d}"
        if not (folder / TRIAL).exists():
            raise ConfigError(
                f"{folder} holds no {TRIAL}: it is damaged; remove the folder, and the trial is run anew"
            )
        held = object_in(FolderReader(folder), TRIAL, folder)
        chosen = held.get("chosen")
        if not isinstance(chosen, dict) or not self.sweep.allows(number, chosen):
            raise ConfigError(
                f"{folder / TRIAL} is damaged: it names settings that the sweep does not try; remove {folder}, and the "
                "trial is run anew"
            )
        trial = self._trial(number, cast("dict[str, Any]", chosen))
        trial.pruned = held.get("pruned") is True
        judged = held.get("judged")  # older sweeps have not said
        trial.judged = judged if type(judged) is int else 0
        return trial

    def _trial(self, number: int, chosen: dict[str, Any]) -> Trial:
        name, config = f"{number:03d}", self.sweep.preset(chosen)[1]
        folder = self.path / name
        seeds = range(config.seed, config.seed + self.sweep.options.seeds)
        runs = [PlannedRun(f"{name}/s{x}", folder / f"s{x}", x) for x in seeds]
        return Trial(number, chosen, folder, config, runs)

    def add(self, number: int, chosen: dict[str, Any]) -> Trial:
        """Write a new trial down, before anything of it is run.

        Raises:
            ConfigError: its settings cannot work together; nothing was written.
        """
        trial = self._trial(number, chosen)
        partial = trial.folder.with_name(f"{trial.folder.name}.partial")
        partial.mkdir()
        write_text(partial / TRIAL, _record(trial))
        partial.rename(trial.folder)
        return trial

    def write_settings(self, trial: Trial, name: str = "") -> None:
        """Write the settings of a trial as a preset.

        Args:
            trial: which.
            name: of a file in the sweep's folder; empty: the one that the trial's runs read as they begin.
        """
        words = ", ".join(f"{x} {y}" for x, y in trial.chosen.items())
        told = f"# Trial {trial.number} of {clipped(self.sweep.file)}: {clipped(words, 200)}"
        text = f"{visible(told)}\n{self.sweep.preset(trial.chosen)[0]}"
        write_text(self.path / name if name else trial.folder / SETTINGS, text)

    def prune(self, trial: Trial) -> None:
        """Write down that a trial is stopped for good."""
        trial.pruned = True
        write_text(trial.folder / TRIAL, _record(trial))

    def let_go_on(self, trial: Trial, until: int) -> None:
        """Write down up to which moment a pruner has let a trial go on."""
        if until > trial.judged:
            trial.judged = until
            with suppress(OSError):  # of a full disk
                write_text(trial.folder / TRIAL, _record(trial))


def _record(trial: Trial) -> str:
    held = {"number": trial.number, "chosen": trial.chosen, "pruned": trial.pruned}
    if trial.judged:
        held["judged"] = trial.judged
    return json.dumps(held, indent=1) + "\n"


def _alike(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    """Whether two tables have the same keys in the same order."""
    return [*mapping(one.get(name))] == [*mapping(other.get(name))]


def _started(held: Mapping[str, Any], manifest: Path) -> float:
    """Return when a sweep was begun: as its file tells, else when an older one's was written, or now."""
    told = held.get("started_unix")
    if isinstance(told, float) and math.isfinite(told):
        return told
    return manifest.stat().st_mtime if manifest.exists() else time.time()
