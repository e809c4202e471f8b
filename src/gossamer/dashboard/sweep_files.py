"""The files of a sweep, whoever has written them: what it is to do, what its trials try, and what it has said at its end."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gossamer.dashboard.root import SWEEP
from gossamer.dashboard.values import shown, word
from gossamer.record.objectives import GREATER_IS_BETTER, Judge
from gossamer.record.readers import table_in
from gossamer.system.reading import listed, mapping, number, visible, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gossamer.dashboard.root import RunFiles
    from gossamer.record.objectives import Objective

MAX_TRIALS = 2_000
"""Trials that are told, the first ones; the page is told how many there are."""
FEW_KINDS = 6
"""So many different numbers of a setting whose range nobody has told are choices."""
WIDE = 100.0
"""Numbers that span this factor, and whose range nobody has told, are shown by their logarithms."""
_TRIAL = re.compile(r"\d{3}|[1-9]\d{3,5}", re.ASCII)
_RUN = re.compile(rf"({_TRIAL.pattern})/s\d+", re.ASCII)


@dataclass(frozen=True)
class Plan:
    """What a sweep is to do."""

    file: str
    """That was typed, as it was typed."""
    method: str
    seeds: int
    trials: int | None
    """Trials that were asked for; None: nobody has told."""
    objectives: tuple[Objective, ...]
    """By which trials are judged, one or two; what nobody knows is passed over."""
    score: float
    """That `seconds_to_score` and `steps_to_score` wait for."""
    search: dict[str, Any]
    """What is tried of each setting; empty for a list of experiments."""
    started: float
    """Unix time; of an older sweep that of the last change of its file."""

    @property
    def judge(self) -> Judge:
        """Judge of its trials."""
        return Judge(self.objectives, self.score)

    def command(self, folder: Path) -> str:
        """Return what goes on with the sweep if it is typed.

        Args:
            folder: of the sweep.
        """
        usual = (folder.parent.name, folder.name) == ("sweeps", PurePosixPath(self.file).stem)
        return visible(
            shlex.join(
                ["gossamer", "sweep", self.file, *([] if usual else ["--folder", str(folder)])]
            )
        )


def read_plan(files: RunFiles) -> Plan:
    """Return what a sweep is to do, with usual values in place of what its file does not tell; OSError without the file.

    Args:
        files: of the sweep's folder.
    """
    if (status := files.stat(SWEEP)) is None:
        raise FileNotFoundError(SWEEP)
    manifest = table_in(files, SWEEP)
    own = mapping(manifest.get("sweep"))
    goals = [x for x in listed(own.get("objective")) if isinstance(x, str)]
    known = [x for x in goals if x in GREATER_IS_BETTER]
    score, started = number(own.get("score")), number(manifest.get("started_unix"))
    file = manifest.get("file", "")
    return Plan(
        file=file if isinstance(file, str) else word(file),
        method=word(own.get("method", "experiments")),
        seeds=max(whole(own.get("seeds")) or 1, 1),
        trials=whole(manifest.get("trials")),
        objectives=tuple(cast("list[Objective]", known[:2])) or ("return",),
        score=float("inf") if score is None else float(score),
        search=dict(_leaves(mapping(own.get("search")), "")),
        started=status.st_mtime if started is None else started,
    )


def trials_there(files: RunFiles) -> list[int]:
    """Return the numbers of trials that have a folder, ascending."""
    return sorted(int(x) for x in files.names() if _TRIAL.fullmatch(x))


def trial_of(run: str) -> int | None:
    """Return the number of the trial that a run is of; None if it is of none.

    Args:
        run: path of its folder below that of the sweep.
    """
    match = _RUN.fullmatch(run)
    return int(match[1]) if match else None


class Record(NamedTuple):
    """What a trial is to try, and its file then."""

    signature: tuple[int, ...] | None
    chosen: dict[str, Any]
    """Value of each setting that varies, as the file has it."""
    told: dict[str, Any]
    """The same as the page has it."""
    pruned: bool


def read_records(
    files: RunFiles, trials: Iterable[int], known: Mapping[int, Record]
) -> dict[int, Record]:
    """Return what trials are to try, by number.

    Args:
        files: of the sweep's folder.
        trials: their numbers.
        known: what was read before; a file that has not changed since is not read again.
    """
    found: dict[int, Record] = {}
    for trial in trials:
        name = f"{trial:03d}/trial.json"
        signature = files.signature(name)
        record = known.get(trial)
        if record is None or record.signature != signature:
            held = table_in(files, name)
            chosen = mapping(held.get("chosen"))
            told = {word(x): shown(y) for x, y in chosen.items()}
            record = Record(signature, chosen, told, held.get("pruned") is True)
        found[trial] = record
    return found


def refused_trials(results: Mapping[str, Any], there: Iterable[int]) -> list[dict[str, Any]]:
    """Return trials that were left out, as their settings cannot work together: they have no folder."""
    begun, found = set(there), list[dict[str, Any]]()
    for entry in map(mapping, listed(results.get("trials"))[:MAX_TRIALS]):
        trial = whole(entry.get("trial"))
        if entry.get("state") != "refused" or trial is None or trial in begun:
            continue
        told = {word(x): shown(y) for x, y in mapping(entry.get("settings")).items()}
        nothing: dict[str, Any] = {"values": [], "shown": [], "of_seeds": [], "runs": []}
        nothing |= {"env_steps": 0, "seconds": 0, "progress": 0, "mean_return": None}
        told_of = {"trial": trial, "state": "refused", "reason": word(entry.get("reason", ""))}
        found.append({**told_of, "settings": told, **nothing})
    return found


def importances(results: Mapping[str, Any], goals: Iterable[str]) -> dict[str, Any]:
    """Return how much each setting matters, as the sweep has told at its end, and of how many trials that is."""
    told = mapping(results.get("importance"))
    found = {
        goal: {word(x): y for x, y in mapping(told.get(goal)).items() if number(y) is not None}
        for goal in goals
    }
    done = sum(mapping(x).get("state") == "done" for x in listed(results.get("trials")))
    return {"importance": found, "importance_of": done}


def axes(plan: Plan, chosen: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings that vary, in the order of the file, each with the kind of its axis.

    Args:
        plan: of the sweep.
        chosen: what its trials try, from which the axes of a list of experiments are guessed.
    """
    if plan.search:
        return [{"name": word(name), **_axis(value)} for name, value in plan.search.items()]
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
