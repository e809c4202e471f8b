"""A comparison as a picture: curves, scores with intervals, performance profile."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.compare.atari_scores import human_normalized
from gossamer.compare.curves import WINDOW
from gossamer.compare.report import DECIDES
from gossamer.compare.statistics import TITLES
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.files import write_whole
from gossamer.system.reading import expand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from gossamer.compare.report import Comparison, CurveOf, GroupReport, Interval
    from gossamer.compare.statistics import Statistic

KINDS = (".png", ".svg", ".pdf")
"""Ends of names of files that can be drawn."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's, which colour-blind people tell apart."""
_STYLES = ("-", "--", ":", "-.")
MAX_COLUMNS = 3
FEWEST_FOR_BANDS = 5
"""Seeds of a group whose profile gets a band: of fewer it covers most of the panel, and the profiles of others with it."""


def check_target(name: str) -> Path:
    """Return the file to draw; ConfigError if that cannot be."""
    target = expand(name, "; name a file: --plot comparison.png")
    if target.suffix.lower() not in KINDS:
        raise ConfigError(
            f"--plot {name}: its name must end in {', '.join(KINDS)}; type --plot {target.stem or 'comparison'}.png"
        )
    if target.is_dir():
        raise ConfigError(
            f"--plot {name} is a folder; name a file in it: --plot {name}/comparison.png"
        )
    if not target.parent.is_dir():
        raise ConfigError(
            f"--plot {name}: there is no folder {target.parent}; make it, or name another"
        )
    return target


def draw(comparison: Comparison, target: Path) -> None:
    """Write the picture whole; its kind is told by the end of its name. RunFailed if it cannot be written."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "gossamer"  # the same comparison draws the same file
    figure = picture_of(comparison)
    # A picture that is drawn tomorrow has the same bytes.
    kind = target.suffix.lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind)
    try:
        write_whole(
            target, lambda file: figure.savefig(file, format=kind[1:], dpi=150, metadata=metadata)
        )
    except OSError as error:
        raise RunFailed(f"--plot {target} cannot be written: {error.strerror or error}") from None


def picture_of(comparison: Comparison) -> Figure:
    """Return the picture: a panel of curves for each environment, the scores with their seeds, and the profile if there is one."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = len(comparison.tasks) + 1 + (comparison.scale is not None)
    columns = min(panels, MAX_COLUMNS)
    rows = -(-panels // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows + 0.5), layout="constrained")
    axes: list[Any] = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axis, task in zip(axes, comparison.tasks, strict=False):
        _draw_curves(axis, comparison, task)
    rest = axes[len(comparison.tasks) :]
    _draw_scores(rest[0], comparison)
    if comparison.scale is not None:
        _draw_profiles(rest[1], comparison)
    for axis in axes[:panels]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    for axis in axes[panels:]:
        axis.set_visible(False)
    handles = [
        Line2D([], [], **_look(i), label=f"{x.letter} {x.label} (n = {x.n})")
        for i, x in enumerate(comparison.groups)
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        frameon=False,
        fontsize=8,
        ncols=min(len(handles), 2),
    )
    return figure


def _look(number: int) -> dict[str, Any]:
    style = _STYLES[number // len(COLORS) % len(_STYLES)]
    return {"color": COLORS[number % len(COLORS)], "linestyle": style, "linewidth": 1.8}


def _draw_curves(axis: Any, comparison: Comparison, task: str) -> None:
    for number, group in enumerate(comparison.groups):
        if task in group.tasks:
            curve, look = group.tasks[task].curve, _look(number)
            value, low, high = (np.array(x, float) for x in (curve.value, curve.low, curve.high))
            axis.plot(curve.x, value, **look)
            axis.fill_between(curve.x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    # An interval of few seeds may leave the picture; what was scored stays large enough to be seen.
    _fit_to_lines(axis, [x.tasks[task].curve for x in comparison.groups if task in x.tasks])
    if comparison.threshold is not None:
        axis.axhline(comparison.threshold, color="#555555", linewidth=0.8, linestyle=":")
    axis.set_title(task, fontsize=10)
    axis.set_xlabel("seconds" if comparison.axis == "seconds" else "env steps")
    axis.locator_params(axis="x", nbins=6)  # with more, millions of env steps run into each other
    axis.set_ylabel(
        f"mean return of {WINDOW} training episodes\n{TITLES[DECIDES]} over seeds", fontsize=8
    )


def _fit_to_lines(axis: Any, curves: Sequence[CurveOf]) -> None:
    values = [y for curve in curves for y in curve.value if y is not None]
    if not values:
        return
    span = (max(values) - min(values)) or abs(values[0]) or 1.0
    bottom, top = axis.get_ylim()
    axis.set_ylim(max(bottom, min(values) - 0.5 * span), min(top, max(values) + 0.5 * span))


def _draw_scores(axis: Any, comparison: Comparison) -> None:
    """Draw an interval for each statistic with the seeds in its first row; without a scale in common, both in each environment."""
    if comparison.scale is None:
        rows = list(comparison.tasks)
        found = [
            (number, row, _in_widths(group, task, comparison))
            for number, group in enumerate(comparison.groups)
            for row, task in enumerate(rows)
            if task in group.tasks
        ]
        axis.set_xlabel("IQM of scores, in spans of those of the environment")
    else:
        shown = _told_apart(comparison)
        rows = [*shown.values()]
        found = [
            (number, row, (group.statistics or {})[x])
            for number, group in enumerate(comparison.groups)
            for row, x in enumerate(shown)
        ]
        human = comparison.scale == "human-normalized"
        axis.set_xlabel("score, human-normalized" if human else "score")
    for number, row, interval in found:
        if interval.value is None:
            continue
        at = _lane(row, number, comparison)
        color = _look(number)["color"]
        axis.plot([interval.value], [at], "o", color=color, markersize=4)
        if interval.low is not None and interval.high is not None:
            axis.plot([interval.low, interval.high], [at, at], color=color, linewidth=2, alpha=0.6)
    for number, group in enumerate(comparison.groups):
        for row, seeds in _seeds(group, comparison):
            # Half a lane below the interval, which would hide them.
            at = _lane(row, number + 0.45, comparison)
            look = {"color": _look(number)["color"], "markersize": 3, "alpha": 0.55}
            axis.plot(seeds, [at] * len(seeds), "o", markeredgewidth=0, gid="seeds", **look)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_title("scores, 95 % intervals; small dots are seeds", fontsize=10)


def _lane(row: int, number: float, comparison: Comparison) -> float:
    """Return the height at which a row has a group."""
    return row + 0.6 * ((number + 0.5) / len(comparison.groups) - 0.5)


def _told_apart(comparison: Comparison) -> dict[Statistic, str]:
    """Return the statistics to draw, with their names: where nothing is trimmed the mean is the IQM, and one row tells both."""
    found = [x.statistics or {} for x in comparison.groups]
    if all(_alike(x["mean"], x["iqm"]) for x in found):
        return {"iqm": f"{TITLES['iqm']} = {TITLES['mean']}", "median": TITLES["median"]}
    return TITLES


def _alike(one: Interval, other: Interval) -> bool:
    """Whether two intervals cannot be told apart in a picture."""
    pairs = zip(astuple(one), astuple(other), strict=True)
    return all(x == y if x is None or y is None else math.isclose(x, y) for x, y in pairs)


def _seeds(group: GroupReport, comparison: Comparison) -> list[tuple[int, list[float]]]:
    """Return the scores of a group's runs by the row that shows them, on the scale of the panel."""
    if comparison.scale is None:
        rows = [(i, task, *_span(task, comparison)) for i, task in enumerate(comparison.tasks)]
        return [
            (row, [(x.score - low) / span for x in group.runs if x.env == task])
            for row, task, low, span in rows
            if task in group.tasks
        ]
    shared = [x for x in comparison.tasks if all(x in y.tasks for y in comparison.groups)]
    runs = [x for x in group.runs if x.env in shared]
    if comparison.scale == "human-normalized":
        scores = [human_normalized(x.env, x.score) for x in runs]
        return [(0, [x for x in scores if x is not None])]
    return [(0, [x.score for x in runs])]


def _span(task: str, comparison: Comparison) -> tuple[float, float]:
    """Return the lowest score of an environment, and how far the highest one is above it."""
    scores = [x.score for group in comparison.groups for x in group.runs if x.env == task]
    return min(scores), (max(scores) - min(scores)) or 1.0


def _in_widths(group: GroupReport, task: str, comparison: Comparison) -> Interval:
    low, span = _span(task, comparison)
    found = group.tasks[task].statistics[DECIDES]
    ends = (found.value, found.low, found.high)
    return type(found)(*(None if x is None else (x - low) / span for x in ends))


def _draw_profiles(axis: Any, comparison: Comparison) -> None:
    for number, group in enumerate(comparison.groups):
        found = group.profile or []
        value, low, high = (
            np.array([getattr(x, name) for x in found], float) for name in ("value", "low", "high")
        )
        look = _look(number)
        axis.step(comparison.profile_at, value, where="post", **look)
        if group.n < FEWEST_FOR_BANDS:
            continue
        axis.fill_between(
            comparison.profile_at,
            low,
            high,
            step="post",
            color=look["color"],
            alpha=0.12,
            linewidth=0,
        )
    human = comparison.scale == "human-normalized"
    axis.set_xlabel("score, human-normalized" if human else "score")
    axis.set_ylabel("share of runs above it")
    axis.set_ylim(0, 1.02)
    axis.set_title("performance profile", fontsize=10)
