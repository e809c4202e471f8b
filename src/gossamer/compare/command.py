"""`gossamer compare`: from words to runs, from runs to what is printed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from gossamer.compare.reading import read_runs
from gossamer.compare.report import comparisons_of
from gossamer.compare.text import as_json, as_markdown, as_text
from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.record.runs import select_runs
from gossamer.system.reading import clipped, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gossamer.compare.curves import Axis
    from gossamer.compare.reading import ScoreSource

MANY = 20
"""Runs whose reading may take a while, so that it is told of."""


def compare(
    words: Sequence[str],
    *,
    by: Sequence[str] = (),
    axis: Axis = "env_steps",
    threshold: float | None = None,
    source: ScoreSource | None = None,
    plot: str | None = None,
    form: Literal["text", "json", "markdown"] = "text",
    say: Callable[[str], object],
) -> str:
    """Return what `gossamer compare` prints.

    Args:
        words: runs, as `select_runs` takes them; a word may mean many.
        by: settings to group by; none: those that differ.
        axis: what curves are over.
        threshold: return whose first reaching is looked for.
        source: which scores to take; None: see `compare_runs`.
        plot: file to draw.
        form: "text", "json" or "markdown".
        say: is handed lines about what was left out, for standard error.

    Raises:
        ConfigError: it cannot be compared; nothing was written.
    """
    needed = [("scipy", "compare")] + ([("matplotlib", "compare --plot")] if plot else [])
    for module, what in needed:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"{what} needs {module}", "compare")
    target: Path | None = None
    if plot is not None:
        from gossamer.compare.plot import check_target

        target = check_target(plot)
    paths = selected(words, say)
    if len(paths) > MANY:
        say(f"reading {len(paths)} runs")
    runs = read_runs(paths, say, climbs=threshold is not None)
    if not runs:
        raise ConfigError(f"none of the {len(paths)} runs can be read; gossamer runs lists them")
    found = comparisons_of(
        runs, by=by, axis=axis, threshold=threshold, source=source, say=lambda x: say(visible(x))
    )
    if target is not None:
        from gossamer.compare.plot import draw

        if len(found) > 1:
            envs = [env for comparison in found for env in comparison.tasks]
            raise ConfigError(
                f"--plot draws one comparison, and these runs are of {len(envs)} environments that no two groups share; "
                f"name those of one, such as runs/{envs[0]}"
            )
        draw(found[0], target)
        say(f"wrote {target}")
    if form == "json":
        return as_json(found)
    write = as_markdown if form == "markdown" else as_text
    text = "\n\n\n".join(map(write, found))
    # Names of settings come out of files that anybody may have written.
    return "\n".join(map(visible, text.split("\n")))


def selected(words: Sequence[str], say: Callable[[str], object] | None = None) -> list[Path]:
    """Return the run folders that words mean, each once; ConfigError if they all mean the same one."""
    by_place: dict[Path, Path] = {}
    for word in words:
        for path in select_runs(word, say=say):
            by_place.setdefault(path.resolve(), path)
    if len(by_place) == 1 and len(words) > 1:
        (path,) = by_place.values()
        raise ConfigError(
            f"{clipped(' and '.join(words))} mean one run, {path}, and a run cannot be compared with itself; name another run too"
        )
    return [*by_place.values()]
