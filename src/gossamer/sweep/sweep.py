"""The verb: read a file, go on with its trials or begin them, and report their worth."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from gossamer.errors import RunFailed
from gossamer.machine import MissingExtra
from gossamer.record.objectives import shown_value
from gossamer.sweep import report
from gossamer.sweep.board import Board
from gossamer.sweep.file import read_sweep
from gossamer.sweep.local_site import LocalSite, cores_of
from gossamer.sweep.pool import Pool
from gossamer.sweep.store import SweepFolder, default_folder
from gossamer.sweep.trial import settings_in_words
from gossamer.sweep.trial_queue import TrialQueue
from gossamer.system.reading import expand
from gossamer.system.streams import show_result

if TYPE_CHECKING:
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.sweep.pool import Site


def main(
    file: str,
    *,
    jobs: int = 0,
    placement: Literal["local", "cluster"] = "local",
    folder: str = "",
    trials: int | None = None,
    as_json: bool = False,
) -> int:
    """Run the sweep that a file describes, or go on with it; return the exit code.

    Args:
        file: a .toml file.
        jobs: runs at a time; 0: as many as fit.
        placement: local: processes of this machine; cluster: on the machines of a Ray cluster.
        folder: of the sweep; empty: runs/sweeps/NAME.
        trials: in place of the file's.
        as_json: print JSON on standard output, and nothing else there.

    Raises:
        ConfigError: a mistake in the file, or in the folder; nothing was created.
        RunFailed: no trial could be done.
    """
    sweep = read_sweep(file, trials=trials)
    path = expand(folder) if folder else default_folder(file)
    config = sweep.preset(sweep.first_choice())[1]
    if placement == "cluster" and find_spec("ray") is None:
        raise MissingExtra("--placement cluster needs Ray", "cluster")
    with closing(SweepFolder(path, sweep)) as held:
        held.open()
        queue = TrialQueue(held)
        with closing(_board(queue)) as board, closing(_site(placement, jobs, config)) as site:
            board.say(_introduction(queue, site, path))
            pool = Pool(site, stop_seconds=config.stop_within_seconds, board=board)
            finished = pool.run(queue)
        again = _again(file, folder, trials)
        return _end(queue, held, finished=finished, as_json=as_json, again=again)


def _site(placement: str, jobs: int, config: TrainConfig) -> Site:
    """Return the site of the runs; all are taken to need the same of a machine."""
    if placement == "cluster":
        from gossamer.sweep.cluster_site import ClusterSite

        cores = config.cluster.cpus_per_learner * config.num_learners or cores_of(config)
        return ClusterSite(config, jobs=jobs, cores=cores)
    return LocalSite(config, jobs=jobs)


def _board(queue: TrialQueue) -> Board:
    return Board(f"sweep {queue.sweep.file}", head=lambda: _head(queue), rows=lambda: _rows(queue))


def _introduction(queue: TrialQueue, site: Site, path: Path) -> str:
    sweep = queue.sweep
    done = sum(bool(x.values or x.pruned) for x in queue.trials.values())
    seeds = f", {sweep.options.seeds} seeds each" if sweep.options.seeds > 1 else ""
    went = f", {done} of them done before" if done else ""
    return (
        f"{sweep.trials} trials ({sweep.options.method}){seeds}{went}, {site.jobs} at a time, judged by "
        f"{' and '.join(sweep.judge.objectives)}; sweep folder {path}"
    )


def _head(queue: TrialQueue) -> str:
    trials = list(queue.trials.values())
    done = sum(bool(x.values) for x in trials)
    told = f"{done} of {queue.sweep.trials} trials done"
    for word, count in (
        ("stopped early", sum(x.pruned for x in trials)),
        ("failed", sum(bool(x.failure) for x in trials)),
        ("left out", len(queue.refused)),
    ):
        told += f", {count} {word}" if count else ""
    best = report.best_of(queue.sweep, trials)
    if best:
        name = queue.sweep.judge.objectives[0]
        told += f"; best {name} {shown_value(name, best[0].values[0])}, trial {best[0].number}"
    return told


def _rows(queue: TrialQueue) -> list[tuple[str, ...]]:
    names = queue.sweep.judge.objectives
    return [
        (
            f"trial {x.number}",
            ", ".join(f"{n} {shown_value(n, y)}" for n, y in zip(names, x.values, strict=True)),
            settings_in_words(x.chosen),
        )
        for x in report.ordered(queue.sweep, list(queue.trials.values()))
        if x.values
    ]


def stopped(left: str, again: str) -> int:
    """Print the trials that are left after a signal, and the command that goes on; return the exit code."""
    print(f"gossamer: stopped: {left} are left; to go on, type: {again}", file=sys.stderr)
    return 130


def _again(file: str, folder: str, trials: int | None) -> str:
    words = ["gossamer", "sweep", file, *(["--folder", folder] if folder else [])]
    return shlex.join([*words, *([] if trials is None else ["--trials", str(trials)])])


def _end(queue: TrialQueue, held: SweepFolder, *, finished: bool, as_json: bool, again: str) -> int:
    """Write and print the report of a sweep, and return the exit code."""
    sweep, trials = queue.sweep, list(queue.trials.values())
    try:
        presets = report.write_presets(held, report.best_of(sweep, trials))
        found = report.results(queue)
        held.write_json("results.json", found)
    except OSError as error:
        raise RunFailed(
            f"cannot write into {held.path}: {error.strerror or error}; make room, and type: {again}"
        ) from None
    if as_json:
        show_result(json.dumps(found, indent=1))
    else:
        print(report.report(queue, presets))
    failed = sum(bool(x.failure) for x in trials)
    if not finished:
        left = sweep.trials - sum(bool(x.values or x.pruned) for x in trials)
        return stopped(f"{left} of {sweep.trials} trials", again)
    if failed:
        raise RunFailed(
            f"{failed} of {sweep.trials} trials failed; to try them again, type: {again}"
        )
    return 0
