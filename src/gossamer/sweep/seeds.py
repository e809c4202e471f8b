"""`gossamer train --seeds N`: ordinary runs that differ in their seed alone, and one summary of them."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shlex
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gossamer.compare.command import compare
from gossamer.config import as_read, to_dict
from gossamer.config.saved_settings import completed
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.exits import exit_of
from gossamer.record.files import LOCK, take_lock, write_text
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import plain
from gossamer.record.objectives import Judge, shown_value
from gossamer.record.readers import FolderReader, json_in, table_in
from gossamer.record.runs import SEEDS, find_runs, is_run
from gossamer.sweep.live_table import Board
from gossamer.sweep.local_site import LocalSite
from gossamer.sweep.pool import SETTINGS, PlannedRun, Pool, RunQueue
from gossamer.sweep.presets import as_preset, refuse_moving
from gossamer.sweep.sweep import stopped
from gossamer.system.reading import expand, mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.record.exits import Exit

MEASURES = (("return", "mean_return_last_100"), ("best evaluation", "best_evaluation"))


def train_seeds(
    config: TrainConfig,
    origin: Mapping[str, str],
    count: int,
    *,
    words: Sequence[str],
    watched: Callable[[], str] | None = None,
) -> int:
    """Train a config with several seeds, from its own on; return the exit code.

    Runs that the folder holds already are resumed, and those that are done are left as they are. Without a folder it is
    the newest one that holds seeds of these very settings, or a new one.

    Args:
        config: every setting.
        origin: which layer set each of them.
        count: how many seeds.
        words: after `gossamer train`, as they were typed.
        watched: waits for the dashboard beside the runs and says where it is; None: there is none.

    Raises:
        ConfigError: the folder holds something else, or the last seed is too large.
        RunFailed: a run failed; the others were trained to their end.
    """
    if config.init_from:
        refuse_moving(config.init_from)
    as_read(replace(config, seed=config.seed + count - 1))
    identity = plain(json.loads(json.dumps(to_dict(replace(config, run_folder="", seed=0)))))
    folder = expand(config.run_folder) if config.run_folder else _folder_of(config, identity)
    _refuse_another(folder, identity)
    seeds = range(config.seed, config.seed + count)
    runs = [PlannedRun(f"seed {x}", folder / f"s{x}", x) for x in seeds]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = take_lock(folder / LOCK, fcntl.LOCK_EX, patience_seconds=0.5)
        if lock is None:
            raise ConfigError(
                f"another gossamer train --seeds works in {folder}; wait for it, or stop it first"
            )
        # First what says whose folder it is: one that holds anything else is refused.
        write_text(folder / SEEDS, json.dumps(identity, indent=1) + "\n")
        write_text(folder / SETTINGS, as_preset(config, origin))
    except OSError as error:
        raise ConfigError(
            f"cannot write run folder {folder}: {error.strerror}; choose another with --run-folder PATH"
        ) from None
    # Runs on a cluster share it out themselves.
    site = LocalSite(config, jobs=1 if config.placement == "cluster" else 0, most=count)
    queue = Seeds(runs)
    title = f"{config.env_id}  {config.algorithm.name}  {count} seeds"
    with closing(Board(title, head=queue.head)) as board, os.fdopen(lock):
        board.say(f"{config.env_id}: {count} seeds, {site.jobs} at a time; folder {folder}")
        if done := sum(run.done for run in runs):
            anew = "" if config.run_folder else "; to train them anew, name a new --run-folder"
            board.say(f"{done} of {count} seeds are done already{anew}")
        if watched is not None:
            board.say(watched())
        finished = Pool(site, stop_seconds=config.stop_within_seconds, board=board).run(queue)
    print("\n".join(summary(runs, folder, config)))
    named = any(x.replace("_", "-").startswith("--run-folder") for x in words)
    where = [] if named else ["--run-folder", str(folder)]
    again = shlex.join(["gossamer", "train", *words, *where])
    if not finished:
        return stopped(f"{sum(not x.done for x in runs)} of {count} seeds", again)
    if queue.failures:
        name, reason = next(iter(queue.failures.items()))
        raise RunFailed(
            f"{len(queue.failures)} of {count} seeds failed, {name}: {reason}; to go on, type: {again}"
        )
    return 0


def _folder_of(config: TrainConfig, identity: Any) -> Path:
    """Return the newest folder of seeds of these settings, or that of new ones."""
    made = RunFolder.path_of(config.env_id, config.algorithm.name, config.topology.name)
    for path in sorted(made.glob("*-seeds*"), reverse=True):
        if _settings_of(table_in(FolderReader(path), SEEDS)) == identity:
            return path
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{stamp}-seeds{f'-{i}' if i > 1 else ''}" for i in itertools.count(1))
    return next(made / name for name in names if not (made / name).exists())


def _settings_of(held: Any) -> dict[str, Any]:
    """Return the settings that a folder of seeds holds; those that its version did not have are as they were before."""
    return plain(completed(mapping(held)))


def _refuse_another(folder: Path, identity: Any) -> None:
    """Refuse a folder that holds runs with other settings, or that is a run itself."""
    if is_run(folder):
        raise ConfigError(
            f"--run-folder {folder} holds a run; with --seeds it must be a new folder, for all of them"
        )
    if not (folder / SEEDS).exists():
        if folder.is_dir() and (found := find_runs(folder)):
            raise ConfigError(
                f"--run-folder {folder} has runs below it, such as {found[0]}; name a new folder"
            )
        if folder.is_dir() and any(x.name != LOCK for x in folder.iterdir()):
            raise ConfigError(
                f"--run-folder {folder} is not empty, and --seeds has made nothing there; name a new folder"
            )
        return
    try:
        held = _settings_of(json_in(FolderReader(folder), SEEDS, folder))
    except ConfigError as error:
        raise ConfigError(f"{error}; name a new --run-folder") from None
    if held != identity:
        names = [x for x in identity if held.get(x) != identity[x]]
        raise ConfigError(
            f"--run-folder {folder} holds runs with other settings ({', '.join(names)}); name a new folder"
        )


class Seeds(RunQueue):
    """The runs of a config that differ in their seed alone; every one goes to its end."""

    def __init__(self, runs: Sequence[PlannedRun]):
        super().__init__(runs)
        self.failures: dict[str, str] = {}

    def head(self) -> str:
        """Return how many are done."""
        return f"{sum(x.done for x in self.runs)} of {len(self.runs)} seeds done"

    def ended(self, run: PlannedRun, how: Exit) -> None:
        """Show the worth of a run that has ended, or why it failed."""
        if how.kind == "failed":
            self.failures[run.name] = how.cause
            self.say(f"{run.name} failed: {how.cause}")
            if len(self.failures) == 1 and not any(x.done for x in self.runs):
                self.pending.clear()  # what is wrong with the first is wrong with all
        elif how.kind == "done":
            self.say(f"{run.name}: {_worth(run.summary)}; {self.head()}")


def _worth(found: Mapping[str, Any]) -> str:
    known = [(name, found.get(key)) for name, key in MEASURES]
    told = [f"{name} {x:,.4g}" for name, x in known if isinstance(x, (int, float))]
    return ", ".join(told) or "no episode ended"


def summary(runs: Sequence[PlannedRun], folder: Path, config: TrainConfig) -> list[str]:
    """Return a line for each seed, their area, and the lines of `gossamer compare` about them."""
    lines = [
        f"{run.name}: {exit_of(found) or 'not finished'}, {_worth(found)}, {run.folder}"
        for run in runs
        if (found := run.summary)
    ]
    done = [run for run in runs if run.done]
    if len(done) < 2:
        return lines
    judge = Judge(("area",))
    areas = [
        judge.of_run(
            run.files,
            total_env_steps=config.total_env_steps,
            num_learners=config.num_learners,
            stop_after_seconds=config.stop_after_seconds,
        )[0]
        for run in done
    ]
    if told := [x for x in areas if x is not None]:  # what a sweep has judged by, most often
        mean = shown_value("area", sum(told) / len(told))
        low, high = shown_value("area", min(told)), shown_value("area", max(told))
        lines.append(
            f"area (mean return over the whole run): mean {mean} of {len(told)} seeds, {low} to {high}"
        )
    try:
        # The folder may hold runs of other seeds too.
        lines += ["", compare([str(x.folder) for x in done], say=lines.append)]
    except ConfigError as error:
        lines.append(f"no comparison: {error}")
    return lines
