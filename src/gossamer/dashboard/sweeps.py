"""Sweeps below the watched folder: their trials as they stand, while they run and afterwards."""

from __future__ import annotations

import json
import re
import shlex
import threading
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gossamer.dashboard.root import HERE, SWEEP
from gossamer.dashboard.values import listed, mapping, number, shown, whole, word
from gossamer.record.objectives import GREATER_IS_BETTER, NEVER, Judge, shown_value
from gossamer.system.reading import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gossamer.dashboard.listing import Listing, Run
    from gossamer.dashboard.root import Root, RunFiles
    from gossamer.record.objectives import Objective

MAX_TRIALS = 2_000
"""Trials that are told, the first ones; the page is told how many there are."""
FEW_KINDS = 6
"""So many different numbers of a setting whose range nobody has told are choices."""
WIDE = 100.0
"""Numbers that span this factor, and whose range nobody has told, are shown by their logarithms."""
_TRIAL = re.compile(r"\d{3}|[1-9]\d{3,5}", re.ASCII)
_RUN = re.compile(rf"({_TRIAL.pattern})/s\d+", re.ASCII)


class _Worth(NamedTuple):
    """What a run is worth, and when it was last changed."""

    changed: float
    values: list[float | None]


class Sweeps:
    """All sweeps below a root, safe to ask from several threads; what a run is worth is computed once.

    Args:
        root: the folder.
        listing: knows the runs of trials.
    """

    def __init__(self, root: Root, listing: Listing):
        self._root, self._listing = root, listing
        self._worth: dict[tuple[str, str], _Worth] = {}
        self._lock = threading.Lock()

    def all(self) -> list[dict[str, Any]]:
        """Return all sweeps, the one that was begun last at first."""
        found: list[tuple[float, dict[str, Any]]] = []
        for sweep in self._root.find_sweeps():
            try:
                with self._root.run(sweep) as files:
                    status = files.stat(SWEEP)
                    begun = status.st_mtime if status else 0.0
                    told = {"id": sweep, **_head(files, sweep, self._root), "live": files.running}
            except OSError:  # it went meanwhile
                continue
            found.append((begun, told))
        return [told for _, told in sorted(found, key=lambda x: -x[0])]

    def sweep(self, sweep: str) -> dict[str, Any]:
        """Return a sweep with its trials; OSError if there is none, or no longer."""
        with self._lock, self._root.run(sweep) as files:
            if files.stat(SWEEP) is None:
                raise FileNotFoundError(sweep)
            manifest, results = files.json(SWEEP), files.json("results.json")
            goals = _objectives(manifest)
            records = _records(files)
            chosen = [mapping(record.get("chosen")) for _, record in records]
            live = files.running
            runs = self._runs_of(sweep)
            judge = Judge(goals, _score(manifest))
            trials = [
                self._trial(no, record, runs.get(no, []), judge, _seeds(manifest), live=live)
                for no, record in records[:MAX_TRIALS]
            ]
            there = {no for no, _ in records}
            trials += _refused(results, there)
            return {
                "id": sweep,
                **_head(files, sweep, self._root),
                "live": live,
                "objectives": [{"name": x, "greater": GREATER_IS_BETTER[x]} for x in goals],
                "settings": _settings(manifest, chosen),
                "trials": trials,
                "more": max(len(records) - MAX_TRIALS, 0),
                "best": _best(trials, judge),
                **_importance(results, goals),
                "again": _again(manifest, sweep, self._root),
            }

    def _runs_of(self, sweep: str) -> dict[int, list[Run]]:
        """Return the runs of each trial, by number, ordered by seed."""
        beginning = "" if sweep == HERE else f"{sweep}/"
        found: dict[int, list[Run]] = {}
        for run in self._listing.runs():
            if not run["id"].startswith(beginning):
                continue
            if match := _RUN.fullmatch(run["id"].removeprefix(beginning)):
                found.setdefault(int(match[1]), []).append(run)
        for runs in found.values():
            runs.sort(key=lambda run: (run["seed"] or 0, run["id"]))
        return found

    def _trial(
        self,
        no: int,
        record: Mapping[str, Any],
        runs: Sequence[Run],
        judge: Judge,
        seeds: int,
        *,
        live: bool,
    ) -> dict[str, Any]:
        goals = judge.objectives
        states = [run["state"] for run in runs]
        worth = [self._worth_of(run, judge) for run in runs if run["state"] == "done"]
        whole_trial = len(worth) >= seeds and len(worth) == len(runs)
        state, reason = "unfinished", ""
        values: list[float | None] = [None] * len(goals)
        if record.get("pruned") is True:
            state = "pruned"
        elif whole_trial:
            missing = [x for i, x in enumerate(goals) if any(own[i] is None for own in worth)]
            state = "failed" if missing else "done"
            reason = f"its runs do not tell {missing[0]}" if missing else ""
            if not missing:
                totals = zip(*cast("list[list[float]]", worth), strict=True)
                values = [sum(x) / len(x) for x in totals]
        elif "running" in states:
            state = "running"
        elif failed := [run for run in runs if run["state"] in ("failed", "damaged")]:
            state, reason = "failed", failed[0]["exit_reason"] or failed[0]["problem"] or ""
        elif live:
            state = "waiting"
        return {
            "trial": no,
            "state": state,
            "reason": reason,
            "settings": {word(x): shown(y) for x, y in mapping(record.get("chosen")).items()},
            "values": _reached(values, goals),
            "shown": [shown_value(x, y) for x, y in zip(goals, values, strict=True)],
            "of_seeds": [_reached(own, goals) for own in worth],
            "runs": [{x: run[x] for x in ("id", "seed", "state")} for run in runs],
            "env_steps": sum(run["env_steps"] or 0 for run in runs),
            "seconds": sum(run["seconds"] or 0 for run in runs),
            "progress": sum(run["progress"] or 0 for run in runs) / max(seeds, len(runs), 1),
            "mean_return": _mean([run["mean_return"] for run in runs]),
        }

    def _worth_of(self, run: Run, judge: Judge) -> list[float | None]:
        """Return what a run that is done is worth by each objective."""
        key = (run["id"], repr(judge))
        known = self._worth.get(key)
        if known is None or known.changed != run["changed"]:
            values: list[float | None] = [None] * len(judge.objectives)
            with suppress(OSError), self._root.run(run["id"]) as files:  # it may go meanwhile
                values = judge.of_run(
                    files,
                    total_env_steps=whole(run["total_env_steps"]) or 0,
                    num_learners=run["num_learners"],
                )
            known = self._worth[key] = _Worth(run["changed"], values)
        return known.values


def _head(files: RunFiles, sweep: str, root: Root) -> dict[str, Any]:
    manifest = files.json(SWEEP)
    own = mapping(manifest.get("sweep"))
    name = root.path.name if sweep == HERE else PurePosixPath(sweep).name
    return {
        "name": word(name),
        "file": word(manifest.get("file", "")),
        "method": word(own.get("method", "experiments")),
        "seeds": _seeds(manifest),
        "asked": whole(manifest.get("trials")),
        "begun": len(_numbers(files)),
    }


def _seeds(manifest: Mapping[str, Any]) -> int:
    return max(whole(mapping(manifest.get("sweep")).get("seeds")) or 1, 1)


def _score(manifest: Mapping[str, Any]) -> float:
    found = number(mapping(manifest.get("sweep")).get("score"))
    return float("inf") if found is None else float(found)


def _objectives(manifest: Mapping[str, Any]) -> tuple[Objective, ...]:
    """Return what trials are judged by; what nobody knows is passed over."""
    found = listed(mapping(manifest.get("sweep")).get("objective"))
    known = [x for x in found if isinstance(x, str) and x in GREATER_IS_BETTER]
    return tuple(cast("list[Objective]", known[:2])) or ("return",)


def _records(files: RunFiles) -> list[tuple[int, dict[str, Any]]]:
    """Return what trials are to try, by number."""
    return [(no, files.json(f"{no:03d}/trial.json")) for no in _numbers(files)]


def _numbers(files: RunFiles) -> list[int]:
    """Return the numbers of trials that have a folder, ascending."""
    return sorted(int(x) for x in files.names() if _TRIAL.fullmatch(x))


def _refused(results: Mapping[str, Any], there: set[int]) -> list[dict[str, Any]]:
    """Return trials that were left out, as their settings cannot work together: they have no folder."""
    found: list[dict[str, Any]] = []
    for entry in map(mapping, listed(results.get("trials"))[:MAX_TRIALS]):
        no = whole(entry.get("trial"))
        if entry.get("state") != "refused" or no is None or no in there:
            continue
        told = {word(x): shown(y) for x, y in mapping(entry.get("settings")).items()}
        nothing: dict[str, Any] = {"values": [], "shown": [], "of_seeds": [], "runs": []}
        nothing |= {"env_steps": 0, "seconds": 0, "progress": 0, "mean_return": None}
        told_of = {"trial": no, "state": "refused", "reason": word(entry.get("reason", ""))}
        found.append({**told_of, "settings": told, **nothing})
    return found


def _best(trials: Sequence[Mapping[str, Any]], judge: Judge) -> list[int]:
    """Return the best trial; with two objectives those that no other one beats."""
    done = [x for x in trials if x["state"] == "done"]
    values = [tuple(NEVER if y is None else y for y in x["values"]) for x in done]
    if not done:
        return []
    if len(judge.objectives) > 1:
        return [done[i]["trial"] for i in judge.front(values)]
    best = min(range(len(done)), key=lambda i: (judge.key(values[i]), done[i]["trial"]))
    return [done[best]["trial"]]


def _importance(results: Mapping[str, Any], goals: Iterable[str]) -> dict[str, Any]:
    """Return how much each setting matters, as the sweep has told at its end, and of how many trials that is."""
    told = mapping(results.get("importance"))
    found = {
        goal: {word(x): y for x, y in mapping(told.get(goal)).items() if number(y) is not None}
        for goal in goals
    }
    done = sum(mapping(x).get("state") == "done" for x in listed(results.get("trials")))
    return {"importance": found, "importance_of": done}


def _settings(
    manifest: Mapping[str, Any], chosen: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the settings that vary, in the order of the file, each with the kind of its axis."""
    space = dict(_leaves(mapping(mapping(manifest.get("sweep")).get("search")), ""))
    if space:
        return [{"name": word(name), **_axis(value)} for name, value in space.items()]
    names = dict.fromkeys(name for own in chosen for name in own if name != "experiment")
    found: list[dict[str, Any]] = []
    for name in names:
        values = {json.dumps(own.get(name)): own.get(name) for own in chosen}
        if len(values) > 1 or len(chosen) < 2:
            found.append({"name": word(name), **_guessed([*values.values()])})
    return found


def _leaves(tree: Mapping[str, Any], path: str) -> Iterable[tuple[str, Any]]:
    """Yield what a table [search] has for each setting; dotted names and nested tables mean the same."""
    for name, value in tree.items():
        dotted = path + name.replace("-", "_")
        if isinstance(value, dict) and not {"min", "max"} & value.keys():
            yield from _leaves(cast("dict[str, Any]", value), f"{dotted}.")
        else:
            yield dotted, value


def _axis(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"kind": "category", "values": [shown(x) for x in cast("list[Any]", value)]}
    ends = mapping(value)
    return {"kind": "log" if ends.get("log") is True else "linear", "values": []}


def _guessed(values: Sequence[Any]) -> dict[str, Any]:
    """Return the axis of a setting of which only the values are known."""
    numbers = [x for x in map(number, values) if x is not None]
    if len(numbers) < len(values) or len(values) <= FEW_KINDS:
        return {"kind": "category", "values": [shown(x) for x in values]}
    is_log = min(numbers) > 0 and max(numbers) >= WIDE * min(numbers)
    return {"kind": "log" if is_log else "linear", "values": []}


def _again(manifest: Mapping[str, Any], sweep: str, root: Root) -> str:
    """Return the command that goes on with a sweep."""
    file = word(manifest.get("file", ""))
    folder = root.path if sweep == HERE else root.path / sweep
    usual = (folder.parent.name, folder.name) == ("sweeps", PurePosixPath(file).stem)
    words = ["gossamer", "sweep", file, *([] if usual else ["--folder", str(folder)])]
    return visible(shlex.join(words))


def _reached(values: Sequence[float | None], goals: Iterable[str]) -> list[float | None]:
    """Return values by objective as a chart has them: none for a score that was never reached."""
    return [
        None if x is None or (x >= NEVER / 1e6 and not GREATER_IS_BETTER[goal]) else x
        for x, goal in zip(values, goals, strict=True)
    ]


def _mean(values: Sequence[Any]) -> float | None:
    known = [x for x in map(number, values) if x is not None]
    return sum(known) / len(known) if known else None
