"""The list of runs: what each says of itself, read again only when its files have changed."""

from __future__ import annotations

import platform
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gossamer.dashboard.root import HERE, signature_of
from gossamer.dashboard.values import flat, shown, word
from gossamer.record.about import ABOUT, read_about
from gossamer.record.exits import exit_of, state_of
from gossamer.record.files import LOCK
from gossamer.record.objectives import last_score
from gossamer.record.readers import last_rows, last_session, newest_row, score_in, table_in
from gossamer.record.window import WINDOW
from gossamer.system.reading import mapping, number, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gossamer.dashboard.root import Root, RunFiles

FILES = (
    "config.json", "meta.json", "summary.json", "metrics.jsonl", "evaluation.jsonl", "episodes.jsonl",
    "processes.json", "checkpoints", "checkpoints/best/manifest.json", ABOUT,
)  # fmt: skip
"""Files by whose times and sizes a change is noticed."""
ROW_FILES = ("metrics.jsonl", "evaluation.jsonl", "episodes.jsonl")
TAIL_BYTES = 256 << 10
"""Last bytes of a file with rows that are read: of some hundred learners' metrics, or of an evaluation of thousands of episodes."""
NEAR_BYTES = 16 << 10
"""Of evaluations, in which the last one nearly always is."""
UNTOLD = ("seed", "run_folder")
"""Settings that differ between runs of one experiment."""
_SEED = re.compile(r"s\d+", re.ASCII)
ListedRun = dict[str, Any]


@dataclass
class _Known:
    """What was read of a run, and the times and sizes of its files then."""

    signature: tuple[Any, ...]
    sizes: tuple[int, ...]
    run: ListedRun
    settings: dict[str, Any]
    shown: ListedRun = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Changes:
    """What has happened since the last look."""

    version: int
    runs: list[ListedRun]
    """Those that are new or have changed."""
    gone: list[str]
    rows: dict[str, dict[str, int]]
    """By run, the sizes in bytes of the files with rows, where there are new ones."""


class Listing:
    """All runs below a root, safe to ask from several threads.

    Args:
        root: the folder.
    """

    def __init__(self, root: Root):
        self._root = root
        self._known: dict[str, _Known] = {}
        self._told: list[str] = []  # settings that differ
        self._lock = threading.Lock()
        self.version = 0
        """Grows with every change."""
        self.on_change: Callable[[Changes], object] = lambda _: None
        """Called with every change, in their order, from the thread that has looked; it must not ask the listing."""

    def look(self) -> None:
        """Look at all runs; whoever listens is told what has changed since the last look."""
        with self._lock:
            found = list(self._root.find())
            gone = sorted(self._known.keys() - set(found))
            for run in gone:
                del self._known[run]
            rows: dict[str, dict[str, int]] = {}
            looked = {run: self._look_at(run, rows) for run in found}
            gone += [run for run, what in looked.items() if what == "gone"]
            if gone or "settings" in looked.values():
                self._told = differing([known.settings for known in self._known.values()])
                looked = dict.fromkeys(self._known, "settings")
            changed = [run for run, what in looked.items() if what and self._show(run)]
            if not (changed or gone or rows):
                return
            self.version += 1
            told = Changes(self.version, [self._known[run].shown for run in changed], gone, rows)
            # Under the lock: a page drops what reaches it after a later change.
            self.on_change(told)

    def runs(self) -> list[ListedRun]:
        """Return all runs as they were at the last look, the one that began last at first."""
        with self._lock:
            return sorted(
                (known.shown for known in self._known.values()),
                key=lambda run: (-(run["started"] or 0.0), run["id"]),
            )

    def run(self, run: str) -> ListedRun:
        """Return a run as it was at the last look; KeyError if it was not there."""
        with self._lock:
            return self._known[run].shown

    def settings(self, run: str) -> dict[str, Any]:
        """Return a run's settings by dotted names; KeyError if it was not there."""
        with self._lock:
            return self._known[run].settings

    def _look_at(self, run: str, rows: dict[str, dict[str, int]]) -> str:
        """Read a run again if it has changed; return what has: "" nothing, "run", "settings" too, or it is "gone"."""
        known = self._known.get(run)
        try:
            with self._root.run(run) as files:
                stats = {name: files.stat(name) for name in FILES}
                running = files.running
                signature = (*map(signature_of, stats.values()), running)
                if known is not None and known.signature == signature:
                    return ""
                made, settings = _read(files, run, self._root.path.name, running=running)
        except OSError:  # it went meanwhile
            return "gone" if self._known.pop(run, None) else ""
        sizes = tuple(x.st_size if (x := stats[name]) else 0 for name in ROW_FILES)
        if known is not None and known.sizes != sizes:
            rows[run] = dict(zip(("metrics", "evaluations", "episodes"), sizes, strict=True))
        # A note is no change of the run.
        times = (x.st_mtime for name, x in stats.items() if x and name != ABOUT)
        made["changed"] = max(times, default=0.0)
        before = {} if known is None else known.shown
        self._known[run] = _Known(signature, sizes, made, settings, before)
        return "run" if known is not None and known.settings == settings else "settings"

    def _show(self, run: str) -> bool:
        """Give a run those of its settings that differ among all; return whether it is not as it was."""
        known = self._known.get(run)
        if known is None:
            return False
        settings = {name: known.settings[name] for name in self._told if name in known.settings}
        before, known.shown = known.shown, {**known.run, "settings": settings}
        return known.shown != before


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """Return the names of settings that not all of some runs have alike, sorted; seed and folder aside.

    A setting that only some have differs where it does among those; that a part is another kind is told by its name.
    """
    values: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for own in settings:
        for name, value in own.items():
            values.setdefault(name, set()).add(value if isinstance(value, str) else repr(value))
            counts[name] = counts.get(name, 0) + 1
    whole = sum(bool(own) for own in settings)  # of a damaged run nothing is known
    return sorted(
        name
        for name, found in values.items()
        if name not in UNTOLD
        and (len(found) > 1 or (name.endswith(".name") and counts[name] < whole))
    )


def _read(
    files: RunFiles, run: str, root_name: str, *, running: bool
) -> tuple[ListedRun, dict[str, Any]]:
    config, meta, summary = (table_in(files, f"{x}.json") for x in ("config", "meta", "summary"))
    # Until a resumed run has cut its rows back to its checkpoint, they tell of the session before.
    resuming = running and _is_resuming(files)
    row = {"env_steps": _last_saved(files)} if resuming else newest_row(files)
    path = run.split("/") if run != HERE else [root_name]
    begins = {} if running else summary  # a live run's is of the session before

    def told(of_summary: str, of_row: str) -> float | None:
        found = number(begins.get(of_summary))
        return number(row.get(of_row)) if found is None else found

    best = number(begins.get("best_evaluation"))
    if best is None:
        best = score_in(files, "best")
    ended = None if running else exit_of(summary)
    state: str = state_of(summary, running=running)
    problem = None
    if not config:
        state, problem = "damaged", _damage(files)
    elif not row and not running and ended is None:
        if (saved := _last_saved(files) or env_steps_of(files, "best")) is None:
            state, problem = "empty", "it ended before it had learnt anything, and says not why"
        else:  # a checkpoint that was downloaded and unpacked
            row = {"env_steps": saved}
    env_steps = told("env_steps", "env_steps")
    seconds, total = told("seconds", "time_s"), number(config.get("total_env_steps"))
    about, name = read_about(files), _name(run, root_name)
    made: ListedRun = {
        "id": run,
        "name": about.name or name,
        "folder_name": name,
        "tags": list(about.tags),
        "note": about.note,
        "archived": about.archived,
        "env_id": word(config.get("env_id", path[-3] if len(path) > 2 else "")),
        "algorithm": _kind(config, "algorithm", path, 0),
        "topology": _kind(config, "topology", path, 1),
        "num_learners": max(whole(config.get("num_learners")) or 1, 1),
        "placement": word(config.get("placement", "")),
        "seed": _seed_of(config),
        "state": state,
        "exit_reason": None if ended is None else word(str(ended)),
        "progress": _progress(
            config,
            env_steps,
            seconds,
            reached=ended is not None and ended.cause == "stop_at_return",
        ),
        "env_steps": env_steps,
        "total_env_steps": total,
        "stop_after_seconds": number(config.get("stop_after_seconds")),
        "mean_return": told("mean_return_last_100", "return_mean_100"),
        "mean_return_episodes": _episodes_of_mean(files, row, ended=bool(begins)),
        "best_evaluation": best,
        "last_evaluation": _last_evaluation(files, config, meta),
        "candidate_evaluation": score_in(files, "candidate"),
        "steps_per_second": told("steps_per_second", "steps_per_second"),
        "seconds": seconds,
        "where": _where(last_session(meta), row),
        "started": number(meta.get("started_unix")),
        "problem": problem,
        "acts": _acts(files, config, state, running=running),
    }
    return made, flat(config)


def _seed_of(config: Mapping[str, Any]) -> int | str | None:
    """Return the seed of a run; a text where a page would round the number."""
    seed = config.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        return None
    return shown(seed) if 0 <= seed < 1 << 64 else None


def _name(run: str, root_name: str) -> str:
    """Return what a run is called: its folder's name, and of a seed of many those of the trial and sweep above too."""
    path = [root_name, *run.split("/")] if run != HERE else [root_name]
    parts = 1
    if len(path) > 1 and _SEED.fullmatch(path[-1]):
        parts = 3 if path[-2].isdecimal() else 2
    return word("/".join(x for x in path[-parts:] if x))


def env_steps_of(files: RunFiles, checkpoint: str) -> int | None:
    """Return the env steps of a checkpoint, by its name; None if it tells none."""
    state = table_in(files, f"checkpoints/{checkpoint}/state.json")
    # Policies that are kept for their score have a state of a few facts, others that of every part.
    held = mapping(state.get("held"))
    # Each learner's own: what one of several knows of the others may be old.
    each = [x for name, x in held.items() if name.rpartition("/")[2] == "learner.own_env_steps"]
    if each and all(whole(x) is not None for x in each):
        return whole(sum(each))
    return whole(held.get("learner.env_steps", state.get("env_steps")))


def _is_resuming(files: RunFiles) -> bool:
    """Whether a run that holds its lock has written no row since it took it."""
    lock, rows = files.stat(LOCK), files.stat("metrics.jsonl")
    return lock is not None and rows is not None and rows.st_mtime_ns < lock.st_mtime_ns


def _last_saved(files: RunFiles) -> int | None:
    last = max((int(x) for x in files.names("checkpoints") if x.isdecimal()), default=None)
    return None if last is None else env_steps_of(files, str(last))


def _episodes_of_mean(files: RunFiles, row: dict[str, Any], *, ended: bool) -> int | None:
    """Return how many episodes a run's mean return is of, 100 at most; None where that is not known."""
    told = whole(row.get("episodes"))
    if ended and (told is None or told < WINDOW):  # some ended after the last row
        told = max(told or 0, sum(1 for _ in last_rows(files, "episodes.jsonl", TAIL_BYTES)))
    return min(told, WINDOW) if told else None


def _kind(config: dict[str, Any], section: str, path: list[str], part: int) -> str:
    """Return the name of a run's algorithm or topology, which a folder's name tells too."""
    value = config.get(section)
    name = mapping(value).get("name", value)
    if isinstance(name, str):
        return word(name)
    told = path[-2].split("-", 1) if len(path) > 1 else []
    return word(told[part]) if len(told) == 2 else ""


def _damage(files: RunFiles) -> str:
    if files.stat("config.json") is None:
        return "it holds no config.json, without which it is no whole run folder"
    return "config.json is not valid"


def _progress(
    config: dict[str, Any], env_steps: float | None, seconds: float | None, *, reached: bool
) -> float | None:
    """Return how much of what was asked for a run has done: all, if it has reached its return; of a limit of time nothing is asked."""
    total, limit = (number(config.get(x)) for x in ("total_env_steps", "stop_after_seconds"))
    if reached:
        return 1.0
    if env_steps is not None and total:
        return min(env_steps / total, 1.0)
    return min(seconds / limit, 1.0) if seconds is not None and limit else None


def _last_evaluation(
    files: RunFiles, config: dict[str, Any], meta: Mapping[str, Any]
) -> float | None:
    """Return the score of the run's policy, which the last rows say: of learners on their own those may be far apart."""
    rows = (
        row
        for size in (NEAR_BYTES, TAIL_BYTES)
        for row in last_rows(files, "evaluation.jsonl", size)
    )
    return last_score(rows, meta.get("scored_by"), config)


def _where(session: dict[str, Any], row: dict[str, Any]) -> str:
    hosts = whole(row.get("cluster/hosts"))
    if hosts is not None and hosts > 1:
        return f"{hosts} machines"
    host = mapping(session.get("machine")).get("host")
    return "this machine" if host in (None, platform.node()) else word(host)


def _acts(files: RunFiles, config: dict[str, Any], state: str, *, running: bool) -> list[str]:
    if running:
        evaluates = number(mapping(config.get("evaluation")).get("every_seconds")) != 0
        return ["stop", "checkpoint", *(["evaluate"] if evaluates else [])]
    if state in ("stopped", "failed", "killed") and any(
        map(str.isdecimal, files.names("checkpoints"))
    ):
        return ["resume"]
    return []
