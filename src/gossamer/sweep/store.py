"""A sweep's folder: what was asked for, a folder for each trial, and nothing that its runs could tell as well."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gossamer.errors import ConfigError
from gossamer.machine import free_disk
from gossamer.record.files import take_lock
from gossamer.record.folder import MIN_FREE_BYTES
from gossamer.record.metrics import plain
from gossamer.record.objectives import is_done
from gossamer.sweep.presets import write_text
from gossamer.sweep.processes import Run
from gossamer.sweep.space import encoded
from gossamer.system.reading import clipped, expand, parse_json, quoted, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.config import TrainConfig
    from gossamer.sweep.file import Sweep

MANIFEST = "sweep.json"
TRIAL = "trial.json"
SETTINGS = "settings.toml"
LOCK = ".lock"


@dataclass
class Trial:
    """One choice of settings, and its runs."""

    number: int
    chosen: dict[str, Any]
    folder: Path
    config: TrainConfig
    runs: list[Run] = field(default_factory=list[Run])
    study_number: int | None = None
    """Its number where Optuna counts."""
    pruned: bool = False
    """Stopped early, as others were better at that time."""
    failure: str = ""
    """Why a run of it cannot go on; not kept, so that the next sweep tries again."""
    values: tuple[float, ...] = ()
    """Its objectives, means over its runs, once all are done."""
    of_seeds: list[list[float]] = field(default_factory=list[list[float]])
    """The same of each run."""

    @property
    def state(self) -> str:
        """One word."""
        if self.values:
            return "done"
        if self.pruned:
            return "pruned"
        return "failed" if self.failure else "unfinished"


class SweepFolder:
    """The folder of one sweep, which one process works in at a time.

    Args:
        path: of the folder.
        sweep: what is to be done there.
    """

    def __init__(self, path: Path, sweep: Sweep):
        self.path, self.sweep = path, sweep
        self._lock: int | None = None

    def open(self) -> list[Trial]:
        """Lock the folder, made if it is not there, and return the trials that it holds, by number.

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
            held = _read_object(manifest) if there else {}
            content = {**self._manifest(), "started_unix": _started(held, manifest)}
            if held != content:  # it is new, or there are to be more trials
                self.write_json(MANIFEST, content)
            for left in self.path.glob("*.partial"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise ConfigError(
                f"cannot write into {self.path}: {error.strerror}; choose another --folder"
            ) from None
        return self._read_trials()

    def _was_begun(self) -> bool:
        """Whether the folder holds nothing but what a sweep makes before it writes down what it is."""
        return self.path.is_dir() and {x.name for x in self.path.iterdir()} <= {
            LOCK,
            f"{MANIFEST}.partial",
        }

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
        held = _read_object(self.path / MANIFEST).get("sweep")
        asked = self._manifest()["sweep"]
        if held == asked:
            return
        old = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
        names = [x for x in {**old, **asked} if old.get(x) != asked.get(x)]
        raise ConfigError(
            f"{self.path} holds another sweep (other: {', '.join(names) or 'everything'}); name another folder: "
            f"--folder {quoted(f'{self.path}-2')}"
        )

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file whole."""
        write_text(self.path / name, json.dumps(content, indent=1) + "\n")

    def _read_trials(self) -> list[Trial]:
        found: list[Trial] = []
        numbers = sorted(int(x.name) for x in self.path.iterdir() if x.name.isdecimal())
        for number in numbers:
            if number >= self.sweep.trials:
                continue  # of a sweep that was to have more
            trial = self._read_trial(number)
            if trial is not None:
                found.append(trial)
        return found

    def folder_of(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.path / f"{number:03d}"

    def _read_trial(self, number: int) -> Trial | None:
        folder = self.folder_of(number)
        if not (folder / TRIAL).exists():
            raise ConfigError(
                f"{folder} holds no {TRIAL}: it is damaged; remove the folder, and the trial is run anew"
            )
        held = _read_object(folder / TRIAL)
        chosen, study_number = held.get("chosen"), held.get("study_number")
        if not isinstance(chosen, dict) or not self._allows(number, cast("dict[str, Any]", chosen)):
            raise ConfigError(
                f"{folder / TRIAL} is damaged: it names settings that the sweep does not try; remove {folder}, and the "
                "trial is run anew"
            )
        trial = self._trial(number, cast("dict[str, Any]", chosen), self.sweep.preset(chosen)[1])
        trial.pruned = held.get("pruned") is True
        trial.study_number = study_number if type(study_number) is int else None
        return trial

    def _allows(self, number: int, chosen: Mapping[str, Any]) -> bool:
        """Whether a trial may have these settings: nothing is run because a file says so that was not typed."""
        if self.sweep.method == "list":
            return encoded(chosen) == encoded(self.sweep.experiments[number])
        space = self.sweep.space
        return set(chosen) == set(space) and all(space[x].holds(y) for x, y in chosen.items())

    def _trial(self, number: int, chosen: dict[str, Any], config: TrainConfig) -> Trial:
        folder = self.folder_of(number)
        settings = folder / SETTINGS
        runs = [
            Run(
                name=f"{number:03d}/s{config.seed + i}",
                folder=folder / f"s{config.seed + i}",
                words=("--config", str(settings), "--seed", str(config.seed + i)),
                settings=settings,
            )
            for i in range(self.sweep.seeds)
        ]
        return Trial(number, chosen, folder, config, runs)

    def add(self, number: int, chosen: dict[str, Any], study_number: int | None) -> Trial:
        """Write a new trial down, before anything of it is run.

        Raises:
            ConfigError: its settings cannot work together; nothing was written.
        """
        text, config = self.sweep.preset(chosen)
        trial = self._trial(number, chosen, config)
        trial.study_number = study_number
        partial = trial.folder.with_name(f"{trial.folder.name}.partial")
        partial.mkdir()
        (partial / SETTINGS).write_text(self.commented(trial) + text, encoding="utf-8")
        (partial / TRIAL).write_text(json.dumps(self._record(trial), indent=1) + "\n")
        partial.rename(trial.folder)
        return trial

    def rewrite(self, trial: Trial) -> None:
        """Write the settings of a trial again, as a run that begins reads them."""
        write_text(
            trial.folder / SETTINGS, self.commented(trial) + self.sweep.preset(trial.chosen)[0]
        )

    def commented(self, trial: Trial) -> str:
        """Return the first line of a trial's preset."""
        words = ", ".join(f"{x} {y}" for x, y in trial.chosen.items())
        return f"# Trial {trial.number} of {clipped(self.sweep.file)}: {clipped(words, 200)}\n".replace(
            "\r", " "
        )

    def _record(self, trial: Trial) -> dict[str, Any]:
        return {
            "number": trial.number,
            "chosen": trial.chosen,
            "study_number": trial.study_number,
            "pruned": trial.pruned,
        }

    def prune(self, trial: Trial) -> None:
        """Write down that a trial is stopped for good."""
        trial.pruned = True
        write_text(trial.folder / TRIAL, json.dumps(self._record(trial), indent=1) + "\n")

    def judge(self, trial: Trial) -> bool:
        """Compute what a trial is worth from its runs; whether all of them are done."""
        if not all(is_done(run.folder) for run in trial.runs):
            return False
        config, judge = trial.config, self.sweep.judge
        worth = [
            judge.of_run(
                run.folder,
                total_env_steps=config.total_env_steps,
                num_learners=config.num_learners,
            )
            for run in trial.runs
        ]
        missing = [
            name
            for one in worth
            for name, x in zip(judge.objectives, one, strict=True)
            if x is None
        ]
        if missing:
            trial.failure = f"not every run has recorded the objective {missing[0]}: " + (
                "no policy was evaluated; set evaluation.every_seconds lower"
                if missing[0] == "evaluation"
                else "no training episode ended; set total_env_steps higher"
            )
            return True
        trial.of_seeds = cast("list[list[float]]", worth)
        trial.values = tuple(sum(x) / len(x) for x in zip(*trial.of_seeds, strict=True))
        return True


def _started(held: Mapping[str, Any], manifest: Path) -> float:
    """Return when a sweep was begun: as its file tells, else when an older one's was written, or now."""
    told = held.get("started_unix")
    if isinstance(told, float) and math.isfinite(told):
        return told
    return manifest.stat().st_mtime if manifest.exists() else time.time()


def default_folder(file: str) -> Path:
    """Return where the sweep of a file is kept."""
    return Path("runs") / "sweeps" / expand(file).stem


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content: Any = parse_json(read_plain(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"{path} is damaged: {reason}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is damaged: it holds no object")
    return cast("dict[str, Any]", content)
