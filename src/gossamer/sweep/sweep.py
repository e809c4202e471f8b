"""The verb: read a file, go on with its trials or begin them, and report their worth."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from gossamer.errors import RunFailed
from gossamer.machine import MissingExtra
from gossamer.record.objectives import shown_value
from gossamer.sweep import report
from gossamer.sweep.file import read_sweep
from gossamer.sweep.live_table import Board
from gossamer.sweep.local_site import LocalSite, cores_of
from gossamer.sweep.pool import Pool
from gossamer.sweep.store import SweepFolder
from gossamer.sweep.trial import settings_in_words, worth_in_words
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
    path = expand(folder or f"runs/sweeps/{expand(file).stem}")
    config = sweep.preset(sweep.first_choice())[1]
    if placement == "cluster" and find_spec("ray") is None:
        raise MissingExtra("--placement cluster needs Ray", "cluster")
    where = placement if placement != "local" else ""
    again = _again(file, folder=folder, trials=trials, jobs=jobs, placement=where)
    with closing(SweepFolder(path, sweep)) as held:
        held.open()
        try:
            queue = TrialQueue(held)
        except OSError as error:
            raise _cannot_write(path, error, again) from None
        board = Board(f"sweep {file}", head=partial(_head, queue), rows=partial(_rows, queue))
        with closing(board), closing(_site(placement, jobs, config)) as site:
            board.say(_introduction(queue, site, path))
            pool = Pool(site, stop_seconds=config.stop_within_seconds, board=board)
            finished = pool.run(queue)
        return _end(queue, held, finished=finished, as_json=as_json, again=again)


def _site(placement: str, jobs: int, config: TrainConfig) -> Site:
    """Return the site of the runs; all are taken to need the same of a machine."""
    if placement == "cluster":
        from gossamer.sweep.cluster_site import ClusterSite

        cores = config.cluster.cpus_per_learner * config.num_learners or cores_of(config)
        return ClusterSite(config, jobs=jobs, cores=cores)
    return LocalSite(config, jobs=jobs)


def _introduction(queue: TrialQueue, site: Site, path: Path) -> str:
    sweep = queue.sweep
    done = queue.count("done", "pruned")
    seeds = f", {sweep.options.seeds} seeds each" if sweep.options.seeds > 1 else ""
    went = f", {done} of them done before" if done else ""
    return (
        f"{sweep.trials} trials ({sweep.options.method}){seeds}{went}, {site.jobs} at a time, judged by "
        f"{' and '.join(sweep.judge.objectives)}; sweep folder {path}"
    )


def _head(queue: TrialQueue) -> str:
    told = f"{queue.count('done')} of {queue.sweep.trials} trials done"
    for word, count in (
        ("stopped early", queue.count("pruned")),
        ("failed", queue.count("failed")),
        ("left out", len(queue.refused)),
    ):
        told += f", {count} {word}" if count else ""
    if best := report.best_of(queue):
        name = queue.sweep.judge.objectives[0]
        told += f"; best {name} {shown_value(name, best[0].values[0])}, trial {best[0].number}"
    return told


def _rows(queue: TrialQueue) -> list[tuple[str, ...]]:
    judge = queue.sweep.judge
    return [
        (f"trial {x.number}", worth_in_words(judge, x.values), settings_in_words(x.chosen))
        for x in report.ordered(queue)
        if x.values
    ]


def stopped(left: str, again: str) -> int:
    """Print the trials that are left after a signal, and the command that goes on; return the exit code."""
    print(f"gossamer: stopped: {left} are left; to go on, type: {again}", file=sys.stderr)
    return 130


def _again(file: str, **typed: object) -> str:
    """Return the command that goes on with a sweep, with the flags that were typed."""
    words = [x for name, value in typed.items() if value for x in (f"--{name}", str(value))]
    return shlex.join(["gossamer", "sweep", file, *words])


def _cannot_write(path: Path, error: OSError, again: str) -> RunFailed:
    return RunFailed(
        f"cannot write into {path}: {error.strerror or error}; make room, and type: {again}"
    )


def _end(queue: TrialQueue, held: SweepFolder, *, finished: bool, as_json: bool, again: str) -> int:
    """Write and print the report of a sweep, and return the exit code."""
    best = report.best_of(queue)
    found = report.results(queue, best)
    try:
        presets = report.write_presets(held, best)
        held.write_json("results.json", found)
    except OSError as error:
        raise _cannot_write(held.path, error, again) from None
    if as_json:
        show_result(json.dumps(found, indent=1))
    else:
        print(report.report(queue, best, presets, found["importance"]))
    trials = queue.sweep.trials
    if not finished:
        left = trials - queue.count("done", "pruned") - len(queue.refused)
        return stopped(f"{left} of {trials} trials", again)
    if failed := [x for x in queue.by_number() if x.state == "failed"]:
        how = f"to try them again, type: {again}"
        if not any(x.may_go_on for x in failed):
            how = f"the last one: {failed[-1].failure}"
        raise RunFailed(f"{len(failed)} of {trials} trials failed; {how}")
    return 0
