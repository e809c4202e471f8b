"""Sweeps below the watched folder: their trials as they stand, while they run and afterwards."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.dashboard.root import HERE
from gossamer.dashboard.sweep_files import (
    MAX_TRIALS,
    Record,
    axes,
    importances,
    read_plan,
    read_records,
    refused_trials,
    trial_of,
    trials_there,
)
from gossamer.dashboard.values import word
from gossamer.record.objectives import GREATER_IS_BETTER, Judge, is_never, shown_value
from gossamer.record.readers import table_in
from gossamer.system.reading import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gossamer.dashboard.listing import ListedRun, Listing
    from gossamer.dashboard.root import Root
    from gossamer.dashboard.sweep_files import Plan

MAX_SWEEPS = 8
"""Sweeps of which is remembered what their trials are and are worth, those that were asked for last."""


class _Worth(NamedTuple):
    """What a run is worth, and when it was last changed."""

    changed: float
    values: list[float | None]


@dataclass
class _Remembered:
    """What was read of a sweep when it was last asked for; whatever is gone from the disk is gone from here the next time."""

    judge: Judge
    records: dict[int, Record] = field(default_factory=dict[int, Record])
    worth: dict[str, _Worth] = field(default_factory=dict[str, _Worth])
    """By id of the run."""


class Sweeps:
    """All sweeps below a root, safe to ask from several threads; a trial and its runs are read again only when they change.

    Args:
        root: the folder.
        listing: knows the runs of trials.
    """

    def __init__(self, root: Root, listing: Listing):
        self._root, self._listing = root, listing
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def all(self) -> list[dict[str, Any]]:
        """Return all sweeps, the one that was begun last at first."""
        found: list[tuple[float, dict[str, Any]]] = []
        for sweep in self._root.find_sweeps():
            with suppress(OSError), self._root.run(sweep) as files:  # it may go meanwhile
                plan, begun = read_plan(files), len(trials_there(files))
                told = {**self._head(sweep, plan, begun), "live": files.running}
                found.append((plan.started, told))
        return [told for _, told in sorted(found, key=lambda x: -x[0])]

    def sweep(self, sweep: str) -> dict[str, Any]:
        """Return a sweep with its trials; OSError if there is none, or no longer."""
        with self._lock, self._root.run(sweep) as files:
            plan, there = read_plan(files), trials_there(files)
            results, live = table_in(files, "results.json"), files.running
            before = self._recall(sweep, plan.judge)
            now = _Remembered(before.judge, read_records(files, there[:MAX_TRIALS], before.records))
            runs = self._runs_of(sweep)
            trials: list[dict[str, Any]] = []
            for trial, record in now.records.items():
                own = runs.get(trial, [])
                done = {
                    run["id"]: self._worth_of(run, before) for run in own if run["state"] == "done"
                }
                now.worth |= done
                worth = [x.values for x in done.values()]
                trials.append(_trial(trial, record, own, worth, plan, live=live))
            self._remembered[sweep] = now
            best = _best(trials, now.judge)
            for told in trials:
                told["values"] = _reached(told["values"], plan.objectives)
            trials += refused_trials(results, there)
            return {
                **self._head(sweep, plan, len(there)),
                "live": live,
                "objectives": [
                    {"name": x, "greater": GREATER_IS_BETTER[x]} for x in plan.objectives
                ],
                "settings": axes(plan, [x.chosen for x in now.records.values()]),
                "trials": trials,
                "more": max(len(there) - MAX_TRIALS, 0),
                "best": best,
                **importances(results, plan.objectives),
                "again": plan.command(self._root.path / sweep),
            }

    def _head(self, sweep: str, plan: Plan, begun: int) -> dict[str, Any]:
        name = self._root.path.name if sweep == HERE else PurePosixPath(sweep).name
        return {
            "id": sweep,
            "name": word(name),
            "file": word(plan.file),
            "method": plan.method,
            "seeds": plan.seeds,
            "asked": plan.trials,
            "begun": begun,
        }

    def _recall(self, sweep: str, judge: Judge) -> _Remembered:
        """Return what is remembered of a sweep; nothing if it is judged by something else now."""
        found = self._remembered.pop(sweep, None)
        while len(self._remembered) >= MAX_SWEEPS:
            self._remembered.popitem(last=False)
        return _Remembered(judge) if found is None or found.judge != judge else found

    def _runs_of(self, sweep: str) -> dict[int, list[ListedRun]]:
        """Return the runs of each trial, by number, ordered by seed."""
        beginning = "" if sweep == HERE else f"{sweep}/"
        found: dict[int, list[ListedRun]] = {}
        for run in self._listing.runs():
            if not run["id"].startswith(beginning):
                continue
            if (trial := trial_of(run["id"].removeprefix(beginning))) is not None:
                found.setdefault(trial, []).append(run)
        for runs in found.values():
            runs.sort(key=lambda run: (int(run["seed"] or 0), run["id"]))
        return found

    def _worth_of(self, run: ListedRun, before: _Remembered) -> _Worth:
        """Return what a run that is done is worth by each objective."""
        known = before.worth.get(run["id"])
        if known is not None and known.changed == run["changed"]:
            return known
        values: list[float | None] = [None] * len(before.judge.objectives)
        with suppress(OSError), self._root.run(run["id"]) as files:  # it may go meanwhile
            values = before.judge.of_run(
                files,
                total_env_steps=whole(run["total_env_steps"]) or 0,
                stop_after_seconds=run["stop_after_seconds"] or 0.0,
                num_learners=run["num_learners"],
            )
        return _Worth(run["changed"], values)


def _trial(
    trial: int,
    record: Record,
    runs: Sequence[ListedRun],
    worth: Sequence[list[float | None]],
    plan: Plan,
    *,
    live: bool,
) -> dict[str, Any]:
    """Return what is told of a trial.

    Args:
        trial: its number.
        record: what it is to try.
        runs: of it, ordered by seed.
        worth: of those that are done, by each objective.
        plan: of the sweep.
        live: whether the sweep is at work.
    """
    goals = plan.objectives
    states = [run["state"] for run in runs]
    state, reason = "unfinished", ""
    values: list[float | None] = [None] * len(goals)
    if record.pruned:
        state = "pruned"
    elif len(worth) >= plan.seeds and len(worth) == len(runs):
        means, missing = plan.judge.means(worth)
        state = "failed" if missing else "done"
        reason = f"not every run has recorded the objective {missing}" if missing else ""
        values = list(means) or values
    elif "running" in states:
        state = "running"
    elif failed := [run for run in runs if run["state"] in ("failed", "damaged")]:
        state, reason = "failed", failed[0]["exit_reason"] or failed[0]["problem"] or ""
    elif live:
        state = "waiting"
    return {
        "trial": trial,
        "state": state,
        "reason": reason,
        "settings": record.told,
        "values": values,
        "shown": [shown_value(x, y) for x, y in zip(goals, values, strict=True)],
        "of_seeds": [_reached(own, goals) for own in worth],
        "runs": [{x: run[x] for x in ("id", "seed", "state")} for run in runs],
        "env_steps": sum(run["env_steps"] or 0 for run in runs),
        "seconds": sum(run["seconds"] or 0 for run in runs),
        "progress": sum(run["progress"] or 0 for run in runs) / max(plan.seeds, len(runs), 1),
        "mean_return": _mean([run["mean_return"] for run in runs]),
    }


def _best(trials: Sequence[Mapping[str, Any]], judge: Judge) -> list[int]:
    """Return the best trial; with two objectives those that no other one beats."""
    done = [x for x in trials if x["state"] == "done"]
    return [done[i]["trial"] for i in judge.best([tuple(x["values"]) for x in done])]


def _reached(values: Sequence[float | None], goals: Iterable[str]) -> list[float | None]:
    """Return values by objective as a chart has them: none for a score that was never reached."""
    return [
        None if x is None or is_never(goal, x) else x for x, goal in zip(values, goals, strict=True)
    ]


def _mean(values: Sequence[Any]) -> float | None:
    known = [x for x in map(number, values) if x is not None]
    return sum(known) / len(known) if known else None
