"""The verb: read a file, go on with its trials or begin them, and say what came of it."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from gossamer.errors import RunFailed
from gossamer.machine import MissingExtra
from gossamer.record.objectives import shown_value
from gossamer.sweep import report
from gossamer.sweep.board import Board
from gossamer.sweep.file import read_sweep
from gossamer.sweep.pool import Pool
from gossamer.sweep.processes import LocalPlace, jobs_that_fit
from gossamer.sweep.search import Search, settings_in_words
from gossamer.sweep.store import SweepFolder, default_folder
from gossamer.system.reading import expand
from gossamer.system.streams import show_result

if TYPE_CHECKING:
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.sweep.file import Sweep
    from gossamer.sweep.processes import Place


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
        file: a .toml file, or experiments of the elite platform in JSON.
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
    first = sweep.preset(_first(sweep))[1]
    if placement == "cluster":
        refuse_without_ray()
    held = SweepFolder(path, sweep)
    known = held.open()
    try:
        search: Search | None = None
        board = Board(
            f"sweep {sweep.file}",
            head=lambda: _head(sweep, search),
            rows=lambda: _rows(sweep, search),
        )
        try:
            search = Search(sweep, held, known, board.say)
            for note in sweep.notes:
                board.say(note)
            place = _place(placement, jobs, first)
            board.say(_introduction(sweep, search, place, path))
            try:
                finished = _run(search, place, board, first)
            finally:
                place.close()
        finally:
            board.close()
        return _end(
            sweep,
            search,
            held,
            finished=finished,
            as_json=as_json,
            again=_again(file, folder, trials),
        )
    finally:
        held.close()


def _run(search: Search, place: Place, board: Board, config: TrainConfig) -> bool:
    pool = Pool(place, stop_seconds=config.stop_within_seconds, say=board.say, draw=board.draw)
    search.adopted(pool.adopt(search.left_over()))
    return pool.run(search)


def _first(sweep: Sweep) -> dict[str, object]:
    """Return the settings of some trial: what a run needs of a machine is taken to be the same for all."""
    if sweep.method == "list":
        return dict(sweep.experiments[0])
    return {name: domain.ends()[0] for name, domain in sweep.space.items()}


def cores_of(config: TrainConfig) -> int:
    """Return how many cores a run computes on at once: one for each of its processes."""
    if config.placement == "inline":
        return 1
    return config.num_learners * (1 + config.actors_per_learner)


def refuse_without_ray() -> None:
    """Refuse placement cluster where Ray is not installed."""
    if find_spec("ray") is None:
        raise MissingExtra("--placement cluster needs Ray", "cluster")


def _place(placement: str, jobs: int, config: TrainConfig) -> Place:
    if placement == "cluster":
        from gossamer.sweep.cluster import ClusterPlace

        cores = config.cluster.cpus_per_learner * config.num_learners or cores_of(config)
        return ClusterPlace(config, jobs=jobs, cores=cores)
    fit = jobs_that_fit(cores_of(config), device=config.device)
    return LocalPlace(jobs or fit, device=config.device)


def _introduction(sweep: Sweep, search: Search, place: Place, path: Path) -> str:
    done = sum(bool(x.values or x.pruned) for x in search.trials.values())
    seeds = f", {sweep.seeds} seeds each" if sweep.seeds > 1 else ""
    went = f", {done} of them done before" if done else ""
    return (
        f"{sweep.trials} trials ({sweep.method}){seeds}{went}, {place.jobs} at a time, judged by "
        f"{' and '.join(sweep.judge.objectives)}; sweep folder {path}"
    )


def _head(sweep: Sweep, search: Search | None) -> str:
    trials = list(search.trials.values()) if search is not None else []
    done = sum(bool(x.values) for x in trials)
    told = f"{done} of {sweep.trials} trials done"
    for word, count in (
        ("stopped early", sum(x.pruned for x in trials)),
        ("failed", sum(bool(x.failure) for x in trials)),
        ("left out", len(search.refused) if search is not None else 0),
    ):
        told += f", {count} {word}" if count else ""
    best = report.best_of(sweep, trials)
    if best:
        name = sweep.judge.objectives[0]
        told += f"; best {name} {shown_value(name, best[0].values[0])}, trial {best[0].number}"
    return told


def _rows(sweep: Sweep, search: Search | None) -> list[tuple[str, ...]]:
    trials = list(search.trials.values()) if search is not None else []
    names = sweep.judge.objectives
    return [
        (
            f"trial {x.number}",
            ", ".join(f"{n} {shown_value(n, y)}" for n, y in zip(names, x.values, strict=True)),
            settings_in_words(x.chosen),
        )
        for x in report.ordered(sweep, trials)
        if x.values
    ]


def _again(file: str, folder: str, trials: int | None) -> str:
    words = ["gossamer", "sweep", file, *(["--folder", folder] if folder else [])]
    return shlex.join([*words, *([] if trials is None else ["--trials", str(trials)])])


def _end(
    sweep: Sweep,
    search: Search,
    held: SweepFolder,
    *,
    finished: bool,
    as_json: bool,
    again: str,
) -> int:
    trials = list(search.trials.values())
    try:
        presets = report.write_presets(held, report.best_of(sweep, trials))
        found = report.results(sweep, search)
        report.write_results(held, found)
    except OSError as error:
        raise RunFailed(
            f"cannot write into {held.path}: {error.strerror or error}; make room, and type: {again}"
        ) from None
    if as_json:
        show_result(json.dumps(found, indent=1))
    else:
        print(report.report(sweep, search, presets))
    failed = sum(bool(x.failure) for x in trials)
    if not finished:
        left = sweep.trials - sum(bool(x.values or x.pruned) for x in trials)
        told = f"stopped: {left} of {sweep.trials} trials are left; to go on, type: {again}"
        print(f"gossamer: {told}", file=sys.stderr)
        return 130
    if failed:
        raise RunFailed(
            f"{failed} of {sweep.trials} trials failed; to try them again, type: {again}"
        )
    return 0
