"""The report of a sweep: a table of trials, the settings that matter, and the best as presets."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from gossamer.record.metrics import plain
from gossamer.record.objectives import is_never, shown_value
from gossamer.sweep.statistics import importances, interval
from gossamer.sweep.trial import setting_in_words, settings_in_words
from gossamer.system.reading import number
from gossamer.system.tables import columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gossamer.sweep.file import Sweep
    from gossamer.sweep.store import SweepFolder
    from gossamer.sweep.trial import Trial
    from gossamer.sweep.trial_queue import TrialQueue

PRESET = re.compile(r"best(-\d{3,})?\.toml")
"""Names of the presets that a sweep writes."""
MOST_TRIALS = 200
"""Rows of the table."""
MOST_COLUMNS = 8
"""Settings that have a column each; of more there is a line each."""


def best_of(queue: TrialQueue) -> list[Trial]:
    """Return the best trial; with two objectives those that no other one beats, the best by the first in front."""
    done = [x for x in queue.by_number() if x.values]
    return [done[i] for i in queue.sweep.judge.best([x.values for x in done])]


def ordered(queue: TrialQueue) -> list[Trial]:
    """Return trials that are done, the best by the first objective in front, and then the others by number."""
    trials = queue.by_number()
    done = [x for x in trials if x.values]
    done.sort(key=lambda x: queue.sweep.judge.key(x.values))
    return [*done, *(x for x in trials if not x.values)]


def write_presets(folder: SweepFolder, best: Sequence[Trial]) -> list[Path]:
    """Write the best trials as presets, and return where; earlier ones that are no longer best go."""
    alone = len(folder.sweep.judge.objectives) == 1
    names = ["best.toml" if alone else f"best-{x.number:03d}.toml" for x in best]
    for name, trial in zip(names, best, strict=True):
        folder.write_settings(trial, name)
    for old in folder.path.glob("best*.toml"):  # last: a full disk, or a kill, must not leave none
        # Others in the folder are the user's.
        if PRESET.fullmatch(old.name) and old.name not in names:
            old.unlink()
    return [folder.path / name for name in names]


def results(queue: TrialQueue, best: Sequence[Trial]) -> dict[str, Any]:
    """Return the trials of a sweep and their worth, as JSON."""
    sweep, trials = queue.sweep, queue.by_number()
    goals = sweep.judge.objectives
    done = [x for x in trials if x.values]
    return {
        "file": sweep.file,
        "method": sweep.options.method,
        "objectives": list(goals),
        "trials_asked": sweep.trials,
        "seeds": sweep.options.seeds,
        "trials": [
            {
                "trial": x.number,
                "state": x.state,
                "settings": x.chosen,
                **_reached(goals, x.values),
                "of_seeds": [list(_reached(goals, one).values()) for one in x.of_seeds],
                **_spent(x),
                "runs": [str(run.folder) for run in x.runs],
                **({"reason": x.failure} if x.failure else {}),
            }
            for x in trials
        ]
        + [
            {"trial": number, "state": "refused", "settings": dict(chosen), "reason": reason}
            for number, (chosen, reason) in sorted(queue.refused.items())
        ],
        "best": [x.number for x in best],
        "importance": {
            name: importances([x.chosen for x in done], [x.values[i] for x in done], sweep.space)
            for i, name in enumerate(goals)
        },
    }


def _reached(goals: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    """Return values by objective as JSON has them; a score that some run never reached is null."""
    pairs = zip(goals, values, strict=False)
    return {name: None if is_never(name, x) else plain(x) for name, x in pairs}


def report(
    queue: TrialQueue,
    best: Sequence[Trial],
    presets: Sequence[Path],
    importance: Mapping[str, Mapping[str, float]],
) -> str:
    """Return the table of trials, the settings that matter, and the commands to type next.

    Args:
        queue: of the sweep, which has ended.
        best: its best trials.
        presets: of these.
        importance: of each setting, by objective.
    """
    lines = _table(queue.sweep, ordered(queue))
    lines += [
        f"trial {number} is left out: {reason}"
        for number, (_, reason) in sorted(queue.refused.items())
    ]
    lines += [f"trial {x.number} failed: {x.failure}" for x in queue.by_number() if x.failure]
    done = queue.count("done")
    for objective, found in importance.items() if queue.sweep.space else ():
        told = ", ".join(f"{name} {x:.2f}" for name, x in found.items())
        lines.append(
            f"importance for {objective}, of {done} trials: {told} (share of the variance of ranks that goes with a setting "
            "alone: eta squared of Kruskal-Wallis)"
            if found
            else f"importance for {objective}: too few trials to say"
        )
    lines += _best(queue.sweep, best, presets, done)
    return "\n".join(lines)


def _table(sweep: Sweep, trials: Sequence[Trial]) -> list[str]:
    if not trials:
        return []
    goals, names = sweep.judge.objectives, list(sweep.space)
    in_columns = 0 < len(names) <= MOST_COLUMNS
    heads = _short(names) if in_columns else ["settings"]
    rows = [["trial", *goals, "env steps", "seconds", "state", *heads]]
    for x in trials[:MOST_TRIALS]:
        totals = _spent(x).values()
        values = x.values or (None,) * len(goals)
        worth = [shown_value(name, y) for name, y in zip(goals, values, strict=True)]
        settings = [settings_in_words(x.chosen)]
        if in_columns:
            settings = [setting_in_words(x.chosen[y]) if y in x.chosen else "-" for y in names]
        rows.append([str(x.number), *worth, *(f"{y:,.0f}" for y in totals), x.state, *settings])
    lines = columns(rows, right=range(rows[0].index("state")))
    more = len(trials) - MOST_TRIALS
    return lines + ([f"and {more} more, in results.json"] if more > 0 else [])


def _spent(trial: Trial) -> dict[str, float]:
    """Return the env steps and seconds of a trial, over all of its runs."""
    summaries = [run.summary for run in trial.runs]
    keys = ("env_steps", "seconds")
    totals = {key: sum(number(x.get(key)) or 0 for x in summaries) for key in keys}
    return {key: round(total, 3) for key, total in totals.items()}


def _short(names: Sequence[str]) -> list[str]:
    """Return settings' names for the heads of columns: the last part where that is enough."""
    last = [name.rpartition(".")[2] for name in names]
    return [end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)]


def _best(sweep: Sweep, best: Sequence[Trial], presets: Sequence[Path], done: int) -> list[str]:
    if not best:
        return ["no trial is done"]
    lines: list[str] = []
    for trial, preset in zip(best, presets, strict=True):
        worth = ", ".join(
            _with_interval(name, trial, i) for i, name in enumerate(sweep.judge.objectives)
        )
        lines.append(f"best: trial {trial.number}, {worth} ({settings_in_words(trial.chosen)})")
        lines.append(f"use it: gossamer train --config {shlex.quote(str(preset))}")
    if done > 1:
        seed = max(x.runs[-1].seed for x in best) + 1
        lines.append(
            f"the best of {done} trials looks better than it is; measure it with new seeds: gossamer train --config "
            f"{shlex.quote(str(presets[0]))} --seeds 5 --seed {seed}"
        )
    return lines


def _with_interval(name: str, trial: Trial, at: int) -> str:
    told = f"{name} {shown_value(name, trial.values[at])}"
    own = [one[at] for one in trial.of_seeds]
    missing = sum(is_never(name, x) for x in own)
    if missing:
        return f"{told} ({missing} of {len(own)} seeds never reached it)"
    bounds = interval(own)
    if bounds is None:
        return f"{told} (1 seed)" if len(own) == 1 else f"{told} ({len(own)} seeds)"
    return f"{told} ({len(own)} seeds, 95 % interval {bounds[0]:.4g} to {bounds[1]:.4g})"
