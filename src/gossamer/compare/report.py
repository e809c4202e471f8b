"""The comparison itself: groups, their scores with intervals, what may be called better, and what has to be said about it."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gossamer.compare.atari_scores import human_normalized
from gossamer.compare.curves import WINDOW, grid_of, grouped_curve, on_grid, reached
from gossamer.compare.grouping import group_by_settings, sets_apart
from gossamer.compare.protocols import refuse_mixed
from gossamer.compare.statistics import (
    LEVEL,
    STATISTICS,
    difference,
    estimate,
    probability_of_improvement,
    profile,
    spread_of,
)
from gossamer.errors import ConfigError
from gossamer.system.reading import in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gossamer.compare.curves import Axis
    from gossamer.compare.reading import ComparedRun, ScoreSource
    from gossamer.compare.statistics import Array, Scores, Spread, Statistic

Scale = Literal["return", "human-normalized"]
Verdict = Literal["better", "worse", "open"]

MIN_SEEDS = 3
"""Seeds that every group must have before one is called better."""
DECIDES: Statistic = "iqm"
"""Statistic whose difference decides."""
CURVE_POINTS = 100
"""Points of a curve."""
PROFILE_POINTS = 101
"""Thresholds of a performance profile."""
MAX_LISTED = 6
"""Names that a note lists."""
UNEVEN = 1.1
"""Groups that were trained so many times as long as others are told of."""


@dataclass(frozen=True)
class Interval:
    """A number with its interval; None where it cannot be told."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Threshold:
    """When the runs of a group reached a return, in one environment."""

    reached: int
    n: int
    env_steps: Interval
    """Median over seeds; without bounds unless all reached it, None if half did not."""
    seconds: Interval


@dataclass(frozen=True)
class CurveOf:
    """The curve of a group in one environment; lists [P], None where not all of its runs are."""

    x: list[float]
    value: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True)
class InTask:
    """A group in one environment."""

    n: int
    statistics: dict[str, Interval]
    human_normalized: Interval | None
    """IQM on that scale; None where it is not known."""
    curve: CurveOf
    threshold: Threshold | None


@dataclass(frozen=True)
class RunScore:
    """A run and its score."""

    run: str
    env: str
    seed: str
    score: float
    env_steps: float
    seconds: float
    state: str


@dataclass(frozen=True)
class GroupReport:
    """A group: runs that differ in their seeds."""

    letter: str
    label: str
    settings: dict[str, str]
    runs: list[RunScore]
    n: int
    """Seeds in the environment that has fewest."""
    tasks: dict[str, InTask]
    statistics: dict[str, Interval] | None
    """Over all environments; None where their scores have no scale in common."""
    profile: list[Interval] | None
    """Share of runs above each threshold."""


@dataclass(frozen=True)
class Pair:
    """Two groups in one environment, or in all of them."""

    first: str
    second: str
    task: str | None
    """None: all environments."""
    difference: Interval | None
    """IQM of the first above that of the second; None where scores have no scale in common."""
    improvement: Interval
    """Probability that a run of the first scores higher."""
    verdict: Verdict
    """Whether the first is better."""
    reason: str
    """Why that is open; empty: it is not."""
    decided_with: int = 0
    """Comparisons of as many seeds as a verdict needs, this one among them, which its verdict allows for; 0: it has fewer."""


@dataclass(frozen=True)
class Comparison:
    """Everything that is known of some runs together."""

    tasks: list[str]
    protocol: list[str]
    source: ScoreSource
    score: str
    """What a run's score is, in words."""
    scale: Scale | None
    """Unit of statistics over all environments; None: there is none."""
    axis: Axis
    threshold: float | None
    groups: list[GroupReport]
    pairs: list[Pair]
    profile_at: list[float]
    """Thresholds of the profiles, on the scale."""
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Group:
    letter: str
    label: str
    settings: dict[str, str]
    source: ScoreSource
    runs: dict[str, list[ComparedRun]]
    """Runs by environment; all have a score."""

    def all_runs(self) -> list[ComparedRun]:
        """Return the runs, environment by environment."""
        return [run for runs in self.runs.values() for run in runs]

    def scores(self, task: str, scale: Scale | None = "return") -> Array:
        """Return the scores [n] in an environment; on the human scale none of one where that is not known."""
        found = [run.score(self.source) for run in self.runs.get(task, [])]
        if scale == "human-normalized":
            found = [None if x is None else human_normalized(task, x) for x in found]
        return np.array([x for x in found if x is not None], float)


class _Side(NamedTuple):
    """What a group brings to each of its pairs, in one environment or in all."""

    letter: str
    scores: Scores
    spread: Spread

    @property
    def seeds(self) -> int:
        """Seeds in the environment that has fewest."""
        return min(map(len, self.scores))


def compare_runs(
    runs: Sequence[ComparedRun],
    *,
    by: Sequence[str] = (),
    axis: Axis = "env_steps",
    threshold: float | None = None,
    source: ScoreSource | None = None,
) -> Comparison:
    """Compare runs.

    Args:
        runs: at least one.
        by: settings to group by; none: those that differ.
        axis: what curves are over.
        threshold: return whose first reaching is looked for.
        source: which scores to take; None: evaluations if all runs have them, otherwise those of training.

    Raises:
        ConfigError: the runs cannot be compared; it says why.
    """
    notes: list[str] = []
    source, runs = _scored(runs, source, notes)
    refuse_mixed(runs, evaluated=source == "evaluation")
    runs = sorted(runs, key=lambda run: (run.env_id, len(run.seed), run.seed, run.name))
    groups = _grouped(runs, source, by, notes)
    tasks = sorted({run.env_id for run in runs})
    refuse_threshold(threshold, tasks)
    groups = [_without_copies(group, notes) for group in groups]
    kept = [run for group in groups for run in group.all_runs()]
    notes += _caveats(kept, tasks, by_clock=axis == "seconds" or threshold is not None)
    shared = _shared_tasks(groups, tasks, notes)
    scale = _scale_of(tasks, notes)
    profile_at = _profile_at(groups, shared, scale)
    places = {task: [x.curve.along(axis) for x in kept if x.env_id == task] for task in tasks}
    grids = {task: grid_of(found, CURVE_POINTS) for task, found in places.items()}
    return Comparison(
        tasks=tasks,
        protocol=_protocols(runs),
        source=source,
        score=_score_in_words(runs, source),
        scale=scale,
        axis=axis,
        threshold=threshold,
        groups=[
            _report(
                group,
                {x: _in_task(group, x, axis, grids[x], threshold) for x in group.runs},
                shared,
                scale,
                profile_at,
            )
            for group in groups
        ],
        pairs=_pairs(groups, shared, scale),
        profile_at=[float(x) for x in profile_at],
        notes=notes,
    )


def comparisons_of(
    runs: Sequence[ComparedRun],
    *,
    by: Sequence[str] = (),
    axis: Axis = "env_steps",
    threshold: float | None = None,
    source: ScoreSource | None = None,
    say: Callable[[str], object],
) -> list[Comparison]:
    """Compare runs: all together where all groups have an environment in common, otherwise those of each by themselves.

    Args:
        runs: as for `compare_runs`, as are all but the last.
        by: likewise.
        axis: likewise.
        threshold: likewise.
        source: likewise.
        say: is handed a line about an environment whose runs cannot be compared.

    Raises:
        ConfigError: there is nothing that can be compared; it says why.
    """
    envs = sorted({run.env_id for run in runs})
    if not runs or len(envs) == 1 or _share_one(runs, by):
        return [compare_runs(runs, by=by, axis=axis, threshold=threshold, source=source)]
    refuse_threshold(threshold, envs)
    found: list[Comparison] = []
    mistakes: list[ConfigError] = []
    for env_id in envs:
        own = [run for run in runs if run.env_id == env_id]
        try:
            found.append(compare_runs(own, by=by, axis=axis, source=source))
        except ConfigError as error:
            mistakes.append(error)
            say(f"{env_id} is left out: {error}")
    if not found:
        raise mistakes[0]
    return found


def refuse_threshold(threshold: float | None, envs: Sequence[str]) -> None:
    """Refuse a return to be reached where it means something else in each environment."""
    if threshold is not None and len(envs) > 1:
        raise ConfigError(
            f"--threshold {threshold:g} is a return of one environment, and these runs are of {', '.join(envs)}; name runs of one"
        )


def _share_one(runs: Sequence[ComparedRun], by: Sequence[str]) -> bool:
    """Whether an environment is in all groups."""
    found = group_by_settings([run.settings for run in runs], by)
    return bool(
        set[str].intersection(*({runs[i].env_id for i in members} for members in found.members))
    )


def _scored(
    runs: Sequence[ComparedRun], source: ScoreSource | None, notes: list[str]
) -> tuple[ScoreSource, list[ComparedRun]]:
    """Return where scores are taken from, and the runs that have one of this kind."""
    if source is None:
        bare = [run.name for run in runs if run.evaluation is None]
        source = "training" if bare else "evaluation"
        if bare and len(bare) < len(runs):
            notes.append(
                f"training returns are compared, as there is no evaluation of the last policy of {len(bare)} of {len(runs)} runs "
                f"({in_a_line(bare, MAX_LISTED)}); --score evaluation leaves these runs out"
            )
    kept = [run for run in runs if run.score(source) is not None]
    if not kept:
        hint = "--score training needs none" if source == "evaluation" else "train them for longer"
        raise ConfigError(
            f"none of the {len(runs)} runs has a score yet: no {_KINDS[source]}; {hint}"
        )
    if len(kept) < len(runs):
        gone = [run.name for run in runs if run.score(source) is None]
        notes.append(f"left out, as there is no {_KINDS[source]}: {in_a_line(gone, MAX_LISTED)}")
    return source, kept


_KINDS: dict[ScoreSource, str] = {
    "evaluation": "evaluation of the last policy",
    "training": "mean return of a run's last training episodes",
}


def _score_in_words(runs: Sequence[ComparedRun], source: ScoreSource) -> str:
    if source == "training":
        return f"mean return of its last {WINDOW} training episodes"
    counts = sorted({run.evaluation.episodes for run in runs if run.evaluation is not None})
    episodes = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    rule = "likeliest" if runs[0].protocol.get("greedy") == "yes" else "sampled"
    return f"mean return of the last evaluation of its last policy ({episodes} episodes, {rule} actions)"


def _protocols(runs: Sequence[ComparedRun]) -> list[str]:
    """Return in words how each environment was set up, as far as it is known."""
    told: list[str] = []
    for env_id in dict.fromkeys(run.env_id for run in runs):
        found = next((run.described for run in runs if run.env_id == env_id and run.described), "")
        told.append(found or env_id)
    return told


def _grouped(
    runs: Sequence[ComparedRun], source: ScoreSource, by: Sequence[str], notes: list[str]
) -> list[_Group]:
    chosen = frozenset[str]().union(*(run.chosen for run in runs))
    found = group_by_settings([run.settings for run in runs], by, chosen=chosen)
    if found.also:
        what = "runs within groups may differ" if by else "groups also differ"
        notes.append(f"{what} in {in_a_line(found.also, MAX_LISTED)}")
    groups: list[_Group] = []
    for number, members in enumerate(found.members):
        by_env: dict[str, list[ComparedRun]] = {}
        for i in members:
            by_env.setdefault(runs[i].env_id, []).append(runs[i])
        label, values = found.labels[number], found.values[number]
        groups.append(_Group(_letter(number), label, values, source, by_env))
    return groups


def _letter(number: int) -> str:
    """Return A to Z, AA, AB and so on."""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("A") + last)


def _without_copies(group: _Group, notes: list[str]) -> _Group:
    """Drop runs that are the same experiment again: they would pass for further seeds."""
    kept: dict[str, list[ComparedRun]] = {}
    for env_id, runs in group.runs.items():
        seen: dict[tuple[Any, ...], ComparedRun] = {}
        for run in runs:
            settings = {x: y for x, y in run.settings.items() if sets_apart(x)}
            told = json.dumps(settings, sort_keys=True)
            key = (run.seed, run.score(group.source), run.env_steps, told)
            if run.seed == "-":  # nobody knows whether it is the same one
                key = (run.name,)
            elif key in seen:
                notes.append(
                    f"{run.name} is the same experiment as {seen[key].name} (seed {run.seed}, equal results); it counts once"
                )
            seen.setdefault(key, run)
        kept[env_id] = [run for run in runs if run in seen.values()]
        seeds = [run.seed for run in kept[env_id] if run.seed != "-"]
        if twice := sorted({x for x in seeds if seeds.count(x) > 1}):
            notes.append(
                f"{group.letter}: several runs of {env_id} have seed {in_a_line(twice, MAX_LISTED)}, with different results; each counts"
            )
    return replace(group, runs=kept)


def _caveats(runs: Sequence[ComparedRun], tasks: Sequence[str], *, by_clock: bool) -> Iterator[str]:
    """Yield what has to be said of runs that are compared: those that are not done, lengths and machines that differ."""
    for state in ("running", "killed", "failed", "stopped"):
        if names := [run.name for run in runs if run.state == state]:
            yield f"{state}, with the score that it has so far: {in_a_line(names, MAX_LISTED)}"
    for task in tasks:
        steps = [run.env_steps for run in runs if run.env_id == task]
        if max(steps) > UNEVEN * min(steps):
            yield f"runs of {task} were trained for {min(steps):,.0f} to {max(steps):,.0f} env steps; scores are those at their ends"
    machines = sorted({run.machine for run in runs if run.machine})
    if by_clock and len(machines) > 1:
        told = "; ".join(machines[:MAX_LISTED])
        yield f"seconds are those of different machines, or parts of one: {told}"


def _shared_tasks(groups: Sequence[_Group], tasks: Sequence[str], notes: list[str]) -> list[str]:
    """Return the environments that all groups have, which alone say which is better."""
    shared = [task for task in tasks if all(task in group.runs for group in groups)]
    if not shared:
        raise ConfigError(
            f"These runs cover {len(tasks)} environments; compare one: {in_a_line(tasks, MAX_LISTED)}"
        )
    if len(shared) < len(tasks):
        rest = [task for task in tasks if task not in shared]
        notes.append(f"not in every group, so not in totals: {in_a_line(rest, MAX_LISTED)}")
    return shared


def _scale_of(tasks: Sequence[str], notes: list[str]) -> Scale | None:
    if len(tasks) == 1:
        return "return"
    unknown = [task for task in tasks if human_normalized(task, 0.0) is None]
    if not unknown:
        return "human-normalized"
    notes.append(
        f"no totals over environments: their returns have no scale in common (human scores are known of Atari games, not of {in_a_line(unknown, MAX_LISTED)})"
    )
    return None


def _report(
    group: _Group,
    tasks: dict[str, InTask],
    shared: Sequence[str],
    scale: Scale | None,
    profile_at: Array,
) -> GroupReport:
    together = [group.scores(task, scale) for task in shared]
    return GroupReport(
        letter=group.letter,
        label=group.label,
        settings=group.settings,
        runs=[
            RunScore(
                run.name,
                run.env_id,
                run.seed,
                run.score(group.source) or 0.0,
                run.env_steps,
                run.seconds,
                run.state,
            )
            for run in group.all_runs()
        ],
        n=min(len(group.runs[task]) for task in shared),
        tasks=tasks,
        statistics=None
        if scale is None
        else {x: _interval(estimate(together, x)) for x in STATISTICS},
        profile=None
        if scale is None
        else [_interval(x) for x in zip(*profile(together, profile_at), strict=True)],
    )


def _in_task(group: _Group, task: str, axis: Axis, grid: Array, threshold: float | None) -> InTask:
    scores, normalized = group.scores(task), group.scores(task, "human-normalized")
    curves = [run.curve for run in group.runs[task]]
    values = on_grid([x.along(axis) for x in curves], [x.value for x in curves], grid)
    found = grouped_curve(values, DECIDES)
    return InTask(
        n=len(scores),
        statistics={x: _interval(estimate([scores], x)) for x in STATISTICS},
        human_normalized=_interval(estimate([normalized], DECIDES)) if len(normalized) else None,
        curve=CurveOf([float(x) for x in grid], *([_plain(x) for x in part] for part in found)),
        threshold=None if threshold is None else _threshold(group.runs[task], threshold),
    )


def _threshold(runs: Sequence[ComparedRun], threshold: float) -> Threshold:
    found = [reached(run.climbs or run.curve, threshold) for run in runs]
    there = [x for x in found if x is not None]
    steps, seconds = (_median_of([math.inf if x is None else x[i] for x in found]) for i in (0, 1))
    return Threshold(len(there), len(runs), steps, seconds)


def _median_of(values: Sequence[float]) -> Interval:
    """Return the median of times of which some may be infinite, with an interval if none is: of logarithms, as times are."""
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    value = sum(middle) / len(middle)
    if all(0 < x < math.inf for x in values):
        _, low, high = (np.exp(x) for x in estimate([np.log(np.array(values))], "median"))
        return _interval([value, min(low, value), max(high, value)])
    return Interval(value if value < math.inf else None, None, None)


def _profile_at(groups: Sequence[_Group], shared: Sequence[str], scale: Scale | None) -> Array:
    if scale is None:
        return np.zeros(0)
    scores = np.concatenate([group.scores(task, scale) for group in groups for task in shared])
    return np.linspace(scores.min(), scores.max(), PROFILE_POINTS)


def _pairs(groups: Sequence[_Group], shared: Sequence[str], scale: Scale | None) -> list[Pair]:
    """Return every two groups, over all environments where they have a scale in common, else in each and by probability in all."""
    tasks = [None] if scale is not None else list(shared)
    sides = {
        (group.letter, task): _side(group, shared if task is None else [task], scale or "return")
        for group in groups
        for task in tasks
    }
    # What can have no verdict asks for no more of the others.
    enough = Counter(task for (_, task), side in sides.items() if side.seeds >= MIN_SEEDS)
    count = sum(math.comb(num_groups, 2) for num_groups in enough.values())
    found: list[Pair] = []
    for first, second in combinations(groups, 2):
        for task in tasks:
            one, two = sides[first.letter, task], sides[second.letter, task]
            found.append(_pair(task, one, two, count))
        if scale is None:
            one, two = ([group.scores(task) for task in shared] for group in (first, second))
            chance = _interval(probability_of_improvement(one, two))
            reason = "each environment says for itself"
            found.append(Pair(first.letter, second.letter, None, None, chance, "open", reason))
    return found


def _side(group: _Group, tasks: Sequence[str], scale: Scale) -> _Side:
    scores = [group.scores(task, scale) for task in tasks]
    return _Side(group.letter, scores, spread_of(scores, DECIDES))


def _pair(task: str | None, one: _Side, two: _Side, count: int) -> Pair:
    shown = _interval(difference(one.spread, two.spread))
    # Of many comparisons some come out by chance; together these are wrong as rarely as one.
    strict = _interval(difference(one.spread, two.spread, 1 - (1 - LEVEL) / max(count, 1)))
    verdict, reason = _verdict(shown, strict, (one, two), count)
    chance = _interval(probability_of_improvement(one.scores, two.scores))
    decided_with = count if min(one.seeds, two.seeds) >= MIN_SEEDS else 0
    return Pair(one.letter, two.letter, task, shown, chance, verdict, reason, decided_with)


def _verdict(
    shown: Interval, strict: Interval, sides: Sequence[_Side], count: int
) -> tuple[Verdict, str]:
    few = [
        f"{x.letter} has {x.seeds} seed{'s' * (x.seeds != 1)}" for x in sides if x.seeds < MIN_SEEDS
    ]
    if few:
        return "open", f"{' and '.join(few)}, {MIN_SEEDS} are needed"
    if all(np.ptp(task) == 0 for side in sides for task in side.scores):
        return "open", "no seed differs from another, so chance cannot be told"
    if strict.low is not None and strict.low > 0:
        return "better", ""
    if strict.high is not None and strict.high < 0:
        return "worse", ""
    if (shown.low or 0) > 0 or (shown.high or 0) < 0:
        low, high = (f"{x:.3g}" for x in (strict.low or 0.0, strict.high or 0.0))
        told = f"allowing for {count} comparisons the interval is [{low}, {high}], which holds 0"
        return "open", told
    return "open", "the interval holds 0"


def _interval(estimated: Iterable[Any]) -> Interval:
    """Return a value and its bounds as they are told."""
    return Interval(*map(_plain, estimated))


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
