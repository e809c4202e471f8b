"""`gossamer train --seeds N`: ordinary runs that differ in their seed alone, and one summary of them."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gossamer.compare.command import compare
from gossamer.config import to_dict
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import plain
from gossamer.record.objectives import is_done, measure, read_summary, shown_value
from gossamer.record.runs import find_runs, is_run
from gossamer.sweep.board import Board
from gossamer.sweep.pool import Outcome, Pool
from gossamer.sweep.presets import as_preset, write_text
from gossamer.sweep.processes import LocalPlace, Run, jobs_that_fit
from gossamer.sweep.sweep import cores_of
from gossamer.system.reading import expand, parse_json, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gossamer.config import TrainConfig

MANIFEST = "seeds.json"
SETTINGS = "settings.toml"
MOST_SEEDS = 1000
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

    Runs that the folder holds already are gone on with, and those that are done are left as they are. Without a folder it is
    the newest one that holds seeds of these very settings, or a new one.

    Args:
        config: every setting.
        origin: which layer set each of them.
        count: how many seeds.
        words: after `gossamer train`, as they were typed.
        watched: waits for the dashboard beside the runs and says where it is; None: there is none.

    Raises:
        ConfigError: the folder holds something else.
        RunFailed: a run failed; the others were trained to their end.
    """
    identity = plain(json.loads(json.dumps(to_dict(replace(config, run_folder="", seed=0)))))
    folder = expand(config.run_folder) if config.run_folder else _folder_of(config, identity)
    _refuse_another(folder, identity)
    seeds = range(config.seed, config.seed + count)
    settings = folder / SETTINGS
    runs = [
        Run(f"seed {x}", folder / f"s{x}", ("--config", str(settings), "--seed", str(x)))
        for x in seeds
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            # First what says whose folder it is: one that holds anything else is refused.
            (MANIFEST, json.dumps(identity, indent=1) + "\n"),
            (SETTINGS, as_preset(config, origin)),
        ):
            write_text(folder / name, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write run folder {folder}: {error.strerror}; choose another with --run-folder PATH"
        ) from None
    jobs = min(jobs_that_fit(cores_of(config), device=config.device), count)
    jobs = 1 if config.placement == "cluster" else jobs
    source = _Seeds(runs)
    board = Board(f"{config.env_id}  {config.algorithm.name}  {count} seeds", head=source.head)
    source.say = board.say
    try:
        board.say(f"{config.env_id}: {count} seeds, {jobs} at a time; folder {folder}")
        if done := sum(is_done(run.folder) for run in runs):
            anew = "" if config.run_folder else "; to train them anew, name a new --run-folder"
            board.say(f"{done} of {count} seeds are done already{anew}")
        if watched is not None:
            board.say(watched())
        place = LocalPlace(jobs, device=config.device)
        pool = Pool(place, stop_seconds=config.stop_within_seconds, say=board.say, draw=board.draw)
        source.adopted(pool.adopt(runs))
        finished = pool.run(source)
    finally:
        board.close()
    print("\n".join(summary(runs, folder, config)))
    again = "gossamer train " + shlex.join(_again(words, folder))
    if not finished:
        left = sum(not is_done(x.folder) for x in runs)
        print(
            f"gossamer: stopped: {left} of {count} seeds are left; to go on, type: {again}",
            file=sys.stderr,
        )
        return 130
    if source.failures:
        name, reason = next(iter(source.failures.items()))
        raise RunFailed(
            f"{len(source.failures)} of {count} seeds failed, {name}: {reason}; to go on, type: {again}"
        )
    return 0


def _folder_of(config: TrainConfig, identity: Any) -> Path:
    """Return the newest folder of seeds of these settings, or that of new ones."""
    made = RunFolder.path_of(config.env_id, config.algorithm.name, config.topology.name)
    for path in sorted(made.glob("*-seeds*"), reverse=True):
        try:
            held: Any = parse_json(read_plain(path / MANIFEST))
        except (OSError, ValueError):
            continue
        if held == identity:
            return path
    return _new_folder(config)


def _new_folder(config: TrainConfig) -> Path:
    made = RunFolder.path_of(config.env_id, config.algorithm.name, config.topology.name)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number, path = 1, made / f"{stamp}-seeds"
    while path.exists():
        number += 1
        path = made / f"{stamp}-seeds-{number}"
    return path


def _again(words: Sequence[str], folder: Path) -> list[str]:
    named = any(x.replace("_", "-").startswith("--run-folder") for x in words)
    return [*words, *([] if named else ["--run-folder", str(folder)])]


def _refuse_another(folder: Path, identity: Any) -> None:
    """Refuse a folder that holds runs with other settings, or that is a run itself."""
    if is_run(folder):
        raise ConfigError(
            f"--run-folder {folder} holds a run; with --seeds it must be a new folder, for all of them"
        )
    if not (folder / MANIFEST).exists():
        if folder.is_dir() and (found := find_runs(folder)):
            raise ConfigError(
                f"--run-folder {folder} has runs below it, such as {found[0]}; name a new folder"
            )
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"--run-folder {folder} is not empty, and --seeds has made nothing there; name a new folder"
            )
        return
    try:
        held: Any = parse_json(read_plain(folder / MANIFEST))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / MANIFEST} is damaged: {error}; name a new --run-folder"
        ) from None
    if held != identity:
        names = [x for x in identity if not isinstance(held, dict) or held.get(x) != identity[x]]
        raise ConfigError(
            f"--run-folder {folder} holds runs with other settings ({', '.join(names)}); name a new folder"
        )


class _Seeds:
    """The runs that are left; a source of a pool."""

    def __init__(self, runs: Sequence[Run]):
        self.failures: dict[str, str] = {}
        self.say: Callable[[str], object] = print
        self._runs = runs
        self._pending = deque(run for run in runs if not is_done(run.folder))

    def head(self) -> str:
        """Return how many are done."""
        return f"{sum(is_done(x.folder) for x in self._runs)} of {len(self._runs)} seeds done"

    def adopted(self, runs: Sequence[Run]) -> None:
        """Take notice of runs that are being trained."""
        self._pending = deque(x for x in self._pending if x not in runs)

    def next(self) -> Run | None:
        """Return a run to begin or to go on with."""
        return self._pending.popleft() if self._pending else None

    def ended(self, run: Run, outcome: Outcome) -> None:
        """Take notice that a run has ended."""
        if outcome.state == "failed":
            self.failures[run.name] = outcome.reason
            self.say(f"{run.name} failed: {outcome.reason}")
            if len(self.failures) == 1 and not any(is_done(x.folder) for x in self._runs):
                self._pending.clear()  # what is wrong with the first is wrong with all
        elif outcome.state == "done":
            self.say(f"{run.name}: {_worth(read_summary(run.folder))}; {self.head()}")

    def look(self, running: Sequence[Run]) -> Sequence[Run]:
        """Return nothing: every run goes to its end."""
        return ()


def _worth(found: Mapping[str, Any]) -> str:
    known = [(name, found.get(key)) for name, key in MEASURES]
    told = [f"{name} {x:,.4g}" for name, x in known if isinstance(x, (int, float))]
    return ", ".join(told) or "no episode ended"


def summary(runs: Sequence[Run], folder: Path, config: TrainConfig) -> list[str]:
    """Return what came of the seeds: a line for each, their area, and what `gossamer compare` says of them."""
    found = {run.name: read_summary(run.folder) for run in runs}
    lines = [
        f"{run.name}: {found[run.name].get('exit_reason', 'not finished')}, {_worth(found[run.name])}, {run.folder}"
        for run in runs
        if found[run.name]
    ]
    if sum(is_done(run.folder) for run in runs) < 2:
        return lines
    steps, learners = config.total_env_steps, config.num_learners
    areas = [
        measure(x.folder, "area", total_env_steps=steps, num_learners=learners)
        for x in runs
        if is_done(x.folder)
    ]
    if told := [x for x in areas if x is not None]:  # what a sweep has judged by, most often
        mean = shown_value("area", sum(told) / len(told))
        low, high = shown_value("area", min(told)), shown_value("area", max(told))
        lines.append(
            f"area (mean return over the whole run): mean {mean} of {len(told)} seeds, {low} to {high}"
        )
    try:
        lines += ["", compare([str(folder)], say=lines.append)]
    except ConfigError as error:
        lines.append(f"no comparison: {error}")
    return lines
