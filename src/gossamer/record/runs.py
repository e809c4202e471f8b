"""Runs on disk: finding the one that is meant, and the table behind `gossamer runs`."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError
from gossamer.record.about import read_about
from gossamer.record.exits import state_of
from gossamer.record.files import is_there
from gossamer.record.readers import FolderReader, last_session, newest_row, score_in, table_in
from gossamer.system.reading import clipped, expand, listed, mapping, number, quoted, visible, whole
from gossamer.system.tables import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gossamer.record.exits import State

VIDEOS = "videos"
"""Folder in that of a run."""


SAME_PROCESS_SECONDS = 0.1
"""Largest difference of the times at which one process is said to have begun."""
SEEDS = "seeds.json"
"""Describes the seeds in a folder of `gossamer train --seeds`."""


def find_run(run: str | os.PathLike[str], root: str = "runs") -> Path:
    """Return the run folder that is meant; ConfigError if there is none, or more than one.

    Args:
        run: Its path or one above it, "last" for the one started last, or a part of one path below
            `root`, in any letter case; a beginning or an end is preferred. A `Path`, or what
            `train` has returned, is a run's own.
        root: Where runs are kept.
    """
    given = expand(os.fspath(run))
    if run != "last" and is_run(given):
        return given
    if not isinstance(run, str):
        raise ConfigError(f"{given} is no run folder; gossamer runs lists them")
    if run == "last":
        runs = find_runs(Path(root))
        if not runs:
            raise ConfigError(f"no run below {root}; name a run folder, or train one first")
        return _last_begun(runs)
    names, fits, key = _fitting(run, given, root)
    if len(fits) == 1:
        return names[fits[0]]
    if fits:
        seeds = [x for x in (given, Path(root) / run) if (x / SEEDS).is_file()]
        if seeds:
            raise ConfigError(
                f"{seeds[0]} holds {len(fits)} runs of gossamer train --seeds: type that command again, with --run-folder "
                f"{quoted(str(seeds[0]))}, to go on with all of them, or name one, such as {Path(root) / min(fits)}"
            )
        raise ConfigError(
            f"{run!r} fits {len(fits)} runs below {root} ({'..., ' if len(fits) > 3 else ''}"
            f'{", ".join(sorted(fits)[-3:])}); type more of the path, or "last" for the newest of all runs'
        )
    near = _nearest(key, names)
    hint = f"did you mean {root}/{near}?" if near else "gossamer runs lists them"
    raise ConfigError(f"no run {run!r}, neither a run folder nor part of one below {root}; {hint}")


def select_runs(
    word: str, root: str = "runs", *, say: Callable[[str], object] | None = None
) -> list[Path]:
    """Return every run folder that a word means, sorted by path; ConfigError if there is none.

    Args:
        word: What `find_run` takes, but more than one run may fit; a folder, which means all runs below it; or a pattern
            with *, ? or [...] of paths, or of names below `root`.
        root: Where runs are kept.
        say: Is told of the folders in which there may be more, as they cannot be read.
    """
    given = expand(word)
    if word and given.is_dir():
        if found := find_runs(given, say):
            return found
        raise ConfigError(f"folder {word} holds no runs; gossamer runs lists them")
    if glob.has_magic(word):
        top = Path(given.anchor)
        try:
            folders = [path for path in top.glob(str(given.relative_to(top))) if path.is_dir()]
        except (ValueError, OSError):  # some stars mean nothing to pathlib
            folders = []
        if "**" in word:  # which names the folders below too
            folders = [path for path in folders if is_run(path)]
        below = find_runs(Path(root))
        names = {path: path.relative_to(root).as_posix() for path in below}
        fitting = [x for x, name in names.items() if _fits_pattern(name, word)]
        found = {*fitting, *(run for folder in folders for run in find_runs(folder, say))}
        if not found:
            raise ConfigError(
                f"no run fits {word!r}, here or below {root}; gossamer runs lists them"
            )
        return sorted(found)
    if word == "last":
        return [find_run(word, root)]
    names_below, fits, _ = _fitting(word, given, root)
    return sorted(names_below[name] for name in fits) or [find_run(word, root)]


def is_run(path: Path) -> bool:
    """Whether a folder is a run's; False too where it may not be looked into."""
    try:
        return is_surely_run(path)
    except (OSError, ValueError):  # a word that is no path
        return False


def is_surely_run(path: Path) -> bool:
    """Whether a folder is a run's; OSError where it cannot be looked into, as on a network disk that is away."""
    others = ("meta.json", "metrics.jsonl", "checkpoints")
    config = path / "config.json"
    if not is_there(config) or not stat.S_ISREG(config.stat().st_mode):
        return False
    return any(is_there(path / name) for name in others)


def find_runs(root: Path, say: Callable[[str], object] | None = None) -> list[Path]:
    """Every run folder below `root`, sorted by path; links are not followed, and folders that cannot be read are told of."""
    return sorted(_walk(root, 6, say))


def _walk(folder: Path, depth: int, say: Callable[[str], object] | None) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif depth:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        yield from _walk(Path(entry.path), depth - 1, say)
        except PermissionError as error:
            if say is not None:
                say(f"left out: {folder} cannot be read: {error.strerror}")
        except OSError:  # it is gone
            pass


def _last_begun(runs: list[Path]) -> Path:
    """Return the run whose last session began last; of its copies, which tell of the same session, the one written first."""
    written = {x: _written(x) for x in runs}
    began: dict[Path, float] = {}
    told: set[str] = set()
    for run in sorted(runs, key=lambda x: (written[x], len(str(x)))):
        session = last_session(table_in(FolderReader(run), "meta.json"))
        if not session or str(session) not in told:  # else it is a copy
            told.add(str(session))
            began[run] = number(session.get("time_unix")) or written[run]
    # A session's time is that of its process, of which a program may begin several, reckoned each time.
    newest = max(began.values()) - SAME_PROCESS_SECONDS
    return max((x for x in began if began[x] >= newest), key=lambda x: (written[x], x.name))


def _written(path: Path) -> float:
    # Every session writes config.json once, when it begins.
    try:
        return (path / "config.json").stat().st_mtime
    except OSError:
        return 0.0


def _fitting(run: str, given: Path, root: str) -> tuple[dict[str, Path], list[str], str]:
    """Return all runs by name, the names that a word fits, and what of the word was looked for."""
    names = {path.relative_to(root).as_posix(): path for path in find_runs(Path(root))}
    if run.startswith(("/", "./", "../", "~", f"{root.rstrip('/')}/")):
        # Who types a path does not mean some run in whose name a piece of it occurs.
        path = os.path.realpath(given)
        key = os.path.relpath(path, os.path.realpath(root)).lower()
        return names, [name for name in names if f"{name.lower()}/".startswith(f"{key}/")], key
    key = run.strip("./").lower()
    fits = [name for name in names if key and _fits(name.lower(), key)]
    return names, fits or [name for name in names if key and key in name.lower()], key


def _fits_pattern(name: str, pattern: str) -> bool:
    # A part of a name may be meant: that of the last folder, or the beginning.
    patterns = (pattern, f"*/{pattern}", f"{pattern}/*")
    return any(fnmatch.fnmatchcase(name.lower(), x.lower()) for x in patterns)


def _nearest(key: str, names: Iterable[str]) -> str | None:
    """Return the name of which some part, or the whole, is spelt like the word; None: none is."""
    spelt = {part.lower(): name for name in names for part in (*name.split("/"), name)}
    near = difflib.get_close_matches(key, spelt, n=1, cutoff=0.6)
    return spelt[near[0]] if near else None


def _fits(name: str, key: str) -> bool:
    return name.startswith(key) or name.endswith(key) or name.rsplit("/", 1)[-1].startswith(key)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of the table; None where the run has not said yet."""

    run: str
    """Path of the run folder."""
    env: str
    algorithm: str
    topology: str
    replays: tuple[str, ...]
    """Kinds of replay beside the queue."""
    num_learners: int
    seed: int | None
    env_steps: int
    seconds: float
    """Wall time over all sessions."""
    steps_per_second: float | None
    mean_return_last_100: float | None
    best_evaluation: float | None
    state: State
    name: str = ""
    """What somebody calls it; empty: nothing."""
    tags: tuple[str, ...] = ()
    archived: bool = False


def list_runs(root: str = "runs") -> list[RunRow]:
    """Read every run below `root`, the one that began last at the end.

    Args:
        root: A folder of runs, a run folder, or what else `select_runs` takes. ConfigError if there is none, except for
            the default, which is absent before the first run.
    """
    folder = expand(root)
    found = find_runs(folder) if folder.is_dir() or root == "runs" else select_runs(root)
    return [_read_run(path) for path in sorted(found, key=_began)]


def runs_text(rows: list[RunRow], *, root: str = "runs", as_json: bool = False) -> str:
    """Format the table for people, or as a JSON list; `root` is where they were looked for."""
    if as_json:
        return json.dumps([asdict(row) for row in rows], indent=1)
    if not rows:
        return f"no runs in {Path(root).absolute()}; type: gossamer train CartPole-v1"
    cells = [_cells(row) for row in rows]
    # What no run has more than one of need not be told.
    told = [x for x in cells[0] if any(line[x] != _PLAIN.get(x) for line in cells)]
    lines = [told, *([line[x] for x in told] for line in cells)]
    return "\n".join(columns(lines, right=[i for i, x in enumerate(told) if x not in _TEXTS]))


def _read_run(path: Path) -> RunRow:
    files = FolderReader(path)
    config, summary = table_in(files, "config.json"), table_in(files, "summary.json")
    row = newest_row(files)
    running = files.running
    if running or number(summary.get("env_steps")) is None:  # a live summary is out of date
        names = {"env_steps": "env_steps", "time_s": "seconds", "return_mean_100": _RETURN}
        names["steps_per_second"] = "steps_per_second"
        fresh = {name: row[key] for key, name in names.items() if row.get(key) is not None}
        summary = {**summary, **fresh}
    best = number(summary.get("best_evaluation"))
    if best is None or running:
        # What has been found since stands beside its parameters.
        found = score_in(files, "best")
        best = best if found is None else found
    kind, _, topology = path.parent.name.partition("-")
    about = read_about(files)
    return RunRow(
        run=str(path),
        env=_word(config.get("env_id", path.parent.parent.name)),
        algorithm=_kind(config.get("algorithm"), kind),
        topology=_kind(config.get("topology"), topology),
        replays=tuple(
            _kind(x, "") for x in listed(config.get("replays")) if _kind(x, "") != "queue"
        ),
        num_learners=whole(config.get("num_learners")) or 1,
        seed=seed if isinstance(seed := config.get("seed"), int) else None,
        env_steps=whole(summary.get("env_steps")) or 0,
        seconds=number(summary.get("seconds")) or 0.0,
        steps_per_second=number(summary.get("steps_per_second")),
        mean_return_last_100=number(summary.get(_RETURN)),
        best_evaluation=best,
        state=state_of(summary, running=running),
        name=visible(about.name),
        tags=tuple(map(visible, about.tags)),
        archived=about.archived,
    )


_RETURN = "mean_return_last_100"


def _kind(section: Any, fallback: str) -> str:
    name = mapping(section).get("name", section)
    return _word(name) if isinstance(name, str) else fallback


def _word(value: Any) -> str:
    return visible(clipped(str(value)))


def _began(path: Path) -> tuple[float, str]:
    meta = table_in(FolderReader(path), "meta.json")
    return number(meta.get("started_unix")) or 0.0, str(path)


_TEXTS = ("env", "algorithm", "replay", "state", "name", "tags", "run")
_PLAIN = {"replay": "-", "learners": "1", "seed": "-", "name": "-", "tags": "-"}


def _cells(row: RunRow) -> dict[str, str]:
    """Return what the table tells of a run, by column."""
    return {
        "env": row.env,
        "algorithm": f"{row.algorithm}-{row.topology}" if row.topology else row.algorithm,
        "replay": "+".join(row.replays) or "-",
        "learners": f"{row.num_learners:,}",
        "seed": _show(row.seed, "d"),
        "steps": f"{row.env_steps:,}",
        "seconds": f"{row.seconds:,.0f}",
        "steps/s": _show(row.steps_per_second, ",.0f"),
        "return": _show(row.mean_return_last_100, ".4g"),
        "best eval": _show(row.best_evaluation, ".4g"),
        "state": f"{row.state}, archived" if row.archived else row.state,
        "name": clipped(row.name, 40) or "-",
        "tags": clipped(", ".join(row.tags), 40) or "-",
        "run": visible(row.run),
    }


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
