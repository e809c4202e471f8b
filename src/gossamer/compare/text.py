"""A comparison as text for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from gossamer.compare.curves import WINDOW
from gossamer.compare.report import DECIDES
from gossamer.compare.statistics import LEVEL, STATISTICS, TITLES
from gossamer.record.metrics import plain
from gossamer.system.tables import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.compare.report import Comparison, GroupReport, Interval, Pair

_QUARTERS = (0.25, 0.5, 0.75, 1.0)
MAX_PAIRS = 15
"""Pairs that a text shows; JSON has all."""
METHOD = f"{LEVEL:.0%} intervals over seeds, widened for small n"


class Table(NamedTuple):
    """Rows of cells under a head, with a line above."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    scores_of: str = ""
    """Environment whose scores these are; empty: another table."""


class Judgement(NamedTuple):
    """What is known of two groups, and what follows from it."""

    found: str
    verdict: str
    """Which is better, or why that is open; empty where no verdict is due, as each environment has its own."""


def as_json(comparisons: Sequence[Comparison]) -> str:
    """Return everything that is known, of several comparisons in a list; what cannot be told is null."""
    told = [
        {"level": LEVEL, "method": METHOD, "decides": DECIDES, **asdict(x)} for x in comparisons
    ]
    return json.dumps(plain(told[0] if len(told) == 1 else {"comparisons": told}), indent=1)


def as_text(comparison: Comparison) -> str:
    """Return lines for a terminal."""
    parts = ["\n".join(heading(comparison))]
    for table in tables(comparison):
        drawn = columns([table.head, *table.rows])
        parts.append("\n".join([table.title, *(f"  {line}" for line in drawn)]))
    if told := _verdicts(comparison):
        parts.append("\n".join(told))
    if comparison.notes:
        parts.append("\n".join(f"note: {note}" for note in comparison.notes))
    return "\n\n".join(parts)


def as_markdown(comparison: Comparison) -> str:
    """Return the same with tables as Markdown has them."""
    parts = ["\n".join(f"{line}  " for line in heading(comparison))]
    for table in tables(comparison):
        lines = [table.head, ("---",) * len(table.head), *table.rows]
        drawn = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in x)} |" for x in lines]
        parts.append("\n".join([f"**{table.title}**", "", *drawn]))
    lines = (_verdicts(comparison), [f"Note: {note}" for note in comparison.notes])
    parts += ["\n".join(f"- {line}" for line in told) for told in lines if told]
    return "\n\n".join(parts)


def heading(comparison: Comparison) -> list[str]:
    """Return what is compared: how many runs, of which environments, by which score."""
    count = sum(len(group.runs) for group in comparison.groups)
    runs = "1 run" if count == 1 else f"{count} runs"
    groups = "1 group" if len(comparison.groups) == 1 else f"{len(comparison.groups)} groups"
    return [
        f"{runs} in {groups}",
        *comparison.protocol,
        f"score of a run: {comparison.score}",
        METHOD,
    ]


def tables(comparison: Comparison) -> list[Table]:
    """Return the tables: scores, curves at quarters, and what else was asked for."""
    found: list[Table] = []
    if len(comparison.tasks) > 1 and comparison.scale is not None:
        title = f"all environments, {comparison.scale} scores (random play 0, people 1)"
        rows = [(*_name(x), *_cells(x.statistics or {})) for x in comparison.groups]
        found.append(Table(title, (*_NAME, *TITLES.values()), rows))
    found += [_of_task(comparison, task) for task in comparison.tasks]
    found += [x for task in comparison.tasks if (x := _curves_of(comparison, task)).rows]
    if comparison.threshold is not None:
        found.append(_thresholds(comparison))
    if comparison.profile_at and len(comparison.groups) > 1:
        found.append(_profiles(comparison))
    return found


_NAME = ("group", "n")


def _name(group: GroupReport, task: str | None = None) -> tuple[str, str]:
    n = group.n if task is None else group.tasks[task].n
    return f"{group.letter} {group.label}", str(n)


def _cells(statistics: dict[str, Interval]) -> list[str]:
    return [_shown(statistics[x]) for x in STATISTICS]


def _of_task(comparison: Comparison, task: str) -> Table:
    there = [x for x in comparison.groups if task in x.tasks]
    known = any(x.tasks[task].human_normalized for x in there)
    rows: list[tuple[str, ...]] = []
    for group in there:
        found = group.tasks[task]
        human = (_shown(found.human_normalized),) if found.human_normalized else ()
        rows.append((*_name(group, task), *_cells(found.statistics), *human))
    head = (*_NAME, *TITLES.values(), *("human-normalized IQM",) * known)
    return Table(f"{task}: scores", head, rows, scores_of=task)


def _curves_of(comparison: Comparison, task: str) -> Table:
    """Return what training returns were after quarters of what all groups were trained for."""
    there = [x for x in comparison.groups if task in x.tasks]
    curves = [x.tasks[task].curve for x in there]
    told = [[i for i, y in enumerate(curve.value) if y is not None] for curve in curves]
    everywhere = set(told[0]).intersection(*told) if told else set[int]()
    if not everywhere:
        return Table("", (), [])
    last = max(everywhere)
    x = curves[0].x
    at = [min(everywhere, key=lambda i: abs(x[i] - share * x[last])) for share in _QUARTERS]
    at = list({_number(x[i]): i for i in at}.values())  # of a short run quarters may be one row
    unit = " s" if comparison.axis == "seconds" else ""
    title = f"{task}: IQM of the mean return of {WINDOW} training episodes, at {comparison.axis.replace('_', ' ')}"
    rows: list[tuple[str, ...]] = []
    for group, curve in zip(there, curves, strict=True):
        cells = [_told(curve.value[i], curve.low[i], curve.high[i]) for i in at]
        rows.append((*_name(group, task), *cells))
    return Table(title, (*_NAME, *(f"{_number(x[i])}{unit}" for i in at)), rows)


def _thresholds(comparison: Comparison) -> Table:
    (task,) = comparison.tasks
    title = f"{task}: to a mean return of {comparison.threshold:g} over {WINDOW} training episodes"
    rows: list[tuple[str, ...]] = []
    for group in comparison.groups:
        found = group.tasks[task].threshold
        assert found is not None
        times = (found.env_steps, found.seconds)
        told = ["not by more than half" if x.value is None else _shown(x) for x in times]
        rows.append((*_name(group, task), f"{found.reached} of {found.n}", *told))
    head = (*_NAME, "reached by", "env steps, median", "seconds, median")
    return Table(title, head, rows)


def _profiles(comparison: Comparison) -> Table:
    """Return the share of runs above a few scores."""
    steps = len(comparison.profile_at) - 1
    at = [round(steps * share) for share in (0.0, *_QUARTERS[:3])]
    unit = " (human-normalized)" if comparison.scale == "human-normalized" else ""
    rows: list[tuple[str, ...]] = []
    for group in comparison.groups:
        profile = group.profile or []
        rows.append((*_name(group), *(_shown(profile[i]) for i in at)))
    heads = (f"above {_number(comparison.profile_at[i])}" for i in at)
    return Table(f"performance profile: share of runs above a score{unit}", (*_NAME, *heads), rows)


def _verdicts(comparison: Comparison) -> list[str]:
    judgements = (judgement_of(x, comparison) for x in comparison.pairs[:MAX_PAIRS])
    told = [". ".join(filter(None, x)) for x in judgements]
    if len(comparison.pairs) > MAX_PAIRS:
        told.append(f"{len(comparison.pairs) - MAX_PAIRS} more pairs: --json has all of them")
    return [*told, *remarks(comparison)]


def remarks(comparison: Comparison) -> list[str]:
    """Return what holds for all verdicts, or why there is none."""
    if len(comparison.groups) < 2:
        return ["one group: nothing to compare; --by SETTING groups by a setting"]
    count = max(pair.decided_with for pair in comparison.pairs)
    return [f"Verdicts are corrected for {count} comparisons"] if count > 1 else []


def judgement_of(pair: Pair, comparison: Comparison) -> Judgement:
    """Return in words what is known of two groups, and the verdict."""
    where = f"{pair.task}: " if pair.task else ""
    where = "all environments: " if pair.difference is None else where
    chance = (
        f"{pair.first} scores higher than {pair.second} with probability {_shown(pair.improvement)}"
    )
    if pair.difference is None:
        return Judgement(f"{where}{chance}", "")
    found = f"{where}{pair.first} - {pair.second}: IQM {_shown(pair.difference)}"
    if pair.improvement.low is not None:  # of a single seed it is a count of few pairs
        found += f"; {chance}"
    if pair.verdict == "open":
        return Judgement(found, f"No verdict: {pair.reason}")
    names = (pair.first, pair.second) if pair.verdict == "better" else (pair.second, pair.first)
    return Judgement(found, f"{names[0]} is better than {names[1]}")


def _shown(interval: Interval) -> str:
    return _told(interval.value, interval.low, interval.high)


def _told(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "-"
    if low is None or high is None:
        return _number(value)
    half = (high - low) / 2
    if half <= 1e-12 * abs(value):
        return f"{_number(value)} (all equal)"
    # As many digits as the interval leaves a meaning to, of small numbers four behind their zeros at most.
    zeros = max(0, -1 - math.floor(math.log10(max(abs(low), abs(high)))))
    digits = min(4 + zeros, max(0, 1 - math.floor(math.log10(half))))
    return f"{_rounded(value, digits)} [{_rounded(low, digits)}, {_rounded(high, digits)}]"


def _rounded(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _number(value: float) -> str:
    """Return a number with four digits, or with all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
