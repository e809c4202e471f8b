"""What `gossamer compare` says of some runs, for the page: its tables, its verdicts and the seeds behind them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.dashboard.root import HERE
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.compare.curves import Axis
    from gossamer.compare.reading import Run, Source
    from gossamer.compare.report import Comparison, GroupReport, Pair
    from gossamer.dashboard.root import Root, RunFiles

FILES = (
    "config.json", "meta.json", "layers.json", "summary.json", "metrics.jsonl", "evaluation.jsonl",
)  # fmt: skip
"""Files that a comparison reads; while they and the run's lock are as they were, nothing is read again."""
MAX_BYTES = 64 << 20
"""Of curves that are held, in bytes."""
MAX_ANSWERS = 16
MAX_GROUPS = 60
"""Most groups of one comparison: every two of them are a pair."""


class Asked(NamedTuple):
    """What is to be compared, and how."""

    runs: tuple[str, ...]
    """Ids."""
    by: tuple[str, ...] = ()
    """As `compare_runs` has it, as are the others."""
    axis: Axis = "env_steps"
    threshold: float | None = None
    source: Source | None = None


class _Held(NamedTuple):
    """A run as it was read, and its files then."""

    signature: tuple[Any, ...]
    run: Run


class Comparisons:
    """Compares runs, safe to ask from several threads; what was read and said is kept.

    Args:
        root: of the runs.
    """

    def __init__(self, root: Root):
        self._root = root
        self._runs: OrderedDict[str, _Held] = OrderedDict()
        self._answers: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, asked: Asked) -> dict[str, Any]:
        """Return the comparisons of some runs: one, or one for each environment where groups share none.

        Args:
            asked: what is compared.

        Raises:
            ConfigError: they cannot be compared; it says why in one line.
        """
        with self._lock:
            said: list[str] = []
            held = [found for run in asked.runs if (found := self._read(run, said)) is not None]
            key = (asked, tuple(x.signature for x in held), tuple(said))
            if key not in self._answers:
                self._answers[key] = _compared([x.run for x in held], asked, said)
            self._answers.move_to_end(key)
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
            return self._answers[key]

    def _read(self, run: str, said: list[str]) -> _Held | None:
        """Return a run, read again if its files have changed; None, and a line about it, if it cannot be read."""
        # Here, as most who watch runs never compare them.
        from gossamer.compare.reading import read_run

        name = self._root.path.name if run == HERE else run
        try:
            with self._root.run(run) as files:
                signature = _signature(run, files)
                known = self._runs.get(run)
                if known is None or known.signature != signature:
                    known = _Held(signature, read_run(Path(name), files))
        except ConfigError as error:
            said.append(f"left out: {error}")
            return None
        except OSError:
            said.append(f"left out: {name} is not there any more")
            return None
        self._runs[run] = known
        self._runs.move_to_end(run)
        while len(self._runs) > 1 and sum(map(_size, self._runs.values())) > MAX_BYTES:
            self._runs.popitem(last=False)
        return known


def _signature(run: str, files: RunFiles) -> tuple[Any, ...]:
    stats = [files.stat(name) for name in FILES]
    times = (x and (x.st_mtime_ns, x.st_size, x.st_ino) for x in stats)
    return (run, *times, files.running)


def _size(held: _Held) -> int:
    return sum(x.nbytes for x in held.run.curve)


def _compared(runs: Sequence[Run], asked: Asked, said: Sequence[str]) -> dict[str, Any]:
    from gossamer.compare.grouping import group_by_settings
    from gossamer.compare.report import comparisons_of

    if not runs:
        raise ConfigError(said[0] if said else "none of these runs can be read")
    groups = group_by_settings([run.settings for run in runs], asked.by).members
    if len(groups) > MAX_GROUPS:
        raise ConfigError(
            f"these {len(runs)} runs are {len(groups)} groups of different settings, and {MAX_GROUPS} can be compared; "
            "group them by a setting, or choose fewer"
        )
    lines = list(said)
    found = comparisons_of(
        runs,
        by=asked.by,
        axis=asked.axis,
        threshold=asked.threshold,
        source=asked.source,
        say=lines.append,
    )
    ids = {str(run.path): run for run in runs}
    return {"comparisons": [_told(x, ids) for x in found], "said": lines}


def _told(comparison: Comparison, runs: dict[str, Run]) -> dict[str, Any]:
    """Return a comparison in the words of the command, with numbers where the page draws."""
    from gossamer.compare import text

    return {
        "tasks": comparison.tasks,
        "source": comparison.source,
        "heading": text.heading(comparison),
        "groups": [_group(group, runs) for group in comparison.groups],
        "tables": [
            {"title": x.title, "head": x.head, "rows": x.rows, "scores_of": x.scores_of}
            for x in text.tables(comparison)
        ],
        "verdicts": [_verdict(pair, comparison) for pair in comparison.pairs],
        "remarks": text.remarks(comparison),
        "notes": comparison.notes,
    }


def _verdict(pair: Pair, comparison: Comparison) -> dict[str, Any]:
    from gossamer.compare.text import judgement_of

    found, verdict = judgement_of(pair, comparison)
    return {"found": found, "verdict": verdict, "open": pair.verdict == "open"}


def _group(group: GroupReport, runs: dict[str, Run]) -> dict[str, Any]:
    ids = {run.name: path for path, run in runs.items()}
    return {
        "letter": group.letter,
        "label": group.label,
        "runs": [ids[run.run] for run in group.runs],
        "scores": {
            task: {
                "iqm": found.statistics["iqm"],
                "runs": [
                    {"run": ids[x.run], "score": x.score} for x in group.runs if x.env == task
                ],
            }
            for task, found in group.tasks.items()
        },
    }
