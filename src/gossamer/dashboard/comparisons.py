"""What `gossamer compare` says of some runs, for the page: its tables, its verdicts and the seeds behind them."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.dashboard.root import HERE
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gossamer.compare.curves import Axis
    from gossamer.compare.reading import ComparedRun, ScoreSource
    from gossamer.compare.report import Comparison, GroupReport, Pair
    from gossamer.dashboard.root import Root, RunFiles

FILES = (
    "config.json", "meta.json", "layers.json", "summary.json", "metrics.jsonl", "evaluation.jsonl",
    "episodes.jsonl",
)  # fmt: skip
"""Files that a comparison reads; while they and the run's lock are as they were, nothing is read again."""
MAX_BYTES = 64 << 20
"""Of curves that are held, in bytes."""
MAX_ANSWERS = 16
GONE_SECONDS = 0.25
"""Between two looks whether whoever has asked still waits."""
MAX_GROUPS = 60
"""Most groups of one comparison: every two of them are a pair."""


MENUS = (
    ("--score evaluation leaves", "\u201clast evaluation\u201d in the menu Score leaves"),
    ("--score training needs", "\u201ctraining returns\u201d in the menu Score needs"),
    ("--by SETTING groups", "the menu Group groups"),
)  # fmt: skip
"""Options that the command names in its advice, and what the page has in their place."""


class Question(NamedTuple):
    """What is to be compared, and how."""

    runs: tuple[str, ...]
    """Ids."""
    by: tuple[str, ...] = ()
    """As `compare_runs` has it, as are the others."""
    axis: Axis = "env_steps"
    threshold: float | None = None
    source: ScoreSource | None = None


class _Held(NamedTuple):
    """A run as it was read, and its files then."""

    id: str
    signature: tuple[Any, ...]
    climbs: bool
    """Whether its episodes were read too, as thresholds alone need."""
    run: ComparedRun

    @property
    def num_bytes(self) -> int:
        """Bytes of its curves."""
        return sum(x.nbytes for x in (*self.run.curve, *(self.run.climbs or ())))


class Comparisons:
    """Compares runs, one question after the other in a thread of its own; what was read and said is kept.

    Args:
        root: of the runs.
    """

    def __init__(self, root: Root):
        self._root = root
        self._runs: OrderedDict[str, _Held] = OrderedDict()
        self._num_bytes = 0  # of all curves
        self._answers: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        # The threads of other answers are few, and none of them is to wait for its turn here.
        self._thread = ThreadPoolExecutor(1, "comparisons")
        self._closed = threading.Event()

    def close(self) -> None:
        """Compare no more."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(
        self, question: Question, gone: Callable[[], Awaitable[bool]]
    ) -> dict[str, Any] | None:
        """Return the comparisons of some runs: one, or one for each environment where groups share none.

        Args:
            question: what is compared.
            gone: awaited now and then; returns whether nobody waits for the answer any more.

        Returns:
            `comparisons`, and lines `said` about runs that were left out; None if nobody waits for it.

        Raises:
            ConfigError: they cannot be compared; it says why in one line.
        """
        given_up = threading.Event()
        told = asyncio.wrap_future(self._thread.submit(self._answer, question, given_up))
        try:
            while not (await asyncio.wait([told], timeout=GONE_SECONDS))[0]:
                if await gone():
                    return None
            with suppress(_GivenUp):
                return told.result()
            return None
        finally:
            given_up.set()
            told.cancel()

    def _answer(self, question: Question, given_up: threading.Event) -> dict[str, Any]:
        said: list[str] = []
        held: list[_Held] = []
        for run in question.runs:
            if given_up.is_set() or self._closed.is_set():
                raise _GivenUp
            if (found := self._read(run, question, said)) is not None:
                held.append(found)
        key = (question, tuple(x.signature for x in held), tuple(said))
        if key not in self._answers:
            try:
                self._answers[key] = _compared(held, question, said)
            except ConfigError as error:
                raise ConfigError(_by_menus(str(error))) from None
        self._answers.move_to_end(key)
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return self._answers[key]

    def _read(self, run: str, question: Question, said: list[str]) -> _Held | None:
        """Return a run, read again if its files have changed; None, and a line about it, if it cannot be read."""
        # Here, as most who watch runs never compare them.
        from gossamer.compare.reading import read_run

        name = self._root.path.name if run == HERE else run
        try:
            with self._root.run(run) as files:
                signature = _signature(run, files)
                climbs = question.threshold is not None
                known = self._runs.get(run)
                if known is None or known.signature != signature or climbs > known.climbs:
                    found = read_run(Path(name), files, climbs=climbs)
                    known = _Held(run, signature, climbs, found)
        except ConfigError as error:
            said.append(f"left out: {error}")
            return None
        except OSError:
            said.append(f"left out: {name} is not there any more")
            return None
        if (before := self._runs.pop(run, None)) is not None:
            self._num_bytes -= before.num_bytes
        self._runs[run] = known
        self._num_bytes += known.num_bytes
        while len(self._runs) > 1 and self._num_bytes > MAX_BYTES:
            self._num_bytes -= self._runs.popitem(last=False)[1].num_bytes
        return known


class _GivenUp(Exception):
    """Nobody waits for an answer any more."""


def _signature(run: str, files: RunFiles) -> tuple[Any, ...]:
    return (run, *map(files.signature, FILES), files.running)


def _by_menus(advice: str) -> str:
    """Return advice of the command for those who see the page."""
    for option, menu in MENUS:
        advice = advice.replace(option, menu)
    return advice


def _compared(held: Sequence[_Held], question: Question, said: Sequence[str]) -> dict[str, Any]:
    from gossamer.compare.grouping import group_by_settings
    from gossamer.compare.report import comparisons_of

    runs = [x.run for x in held]
    if not runs:
        raise ConfigError(said[0] if said else "none of these runs can be read")
    groups = group_by_settings([run.settings for run in runs], question.by).members
    if len(groups) > MAX_GROUPS:
        raise ConfigError(
            f"these {len(runs)} runs are {len(groups)} groups of different settings, and {MAX_GROUPS} can be compared; "
            "group them by a setting, or choose fewer"
        )
    lines = list(said)
    found = comparisons_of(
        runs,
        by=question.by,
        axis=question.axis,
        threshold=question.threshold,
        source=question.source,
        say=lines.append,
    )
    ids = {x.run.name: x.id for x in held}
    return {"comparisons": [_told(x, ids) for x in found], "said": [_by_menus(x) for x in lines]}


def _told(comparison: Comparison, ids: dict[str, str]) -> dict[str, Any]:
    """Return a comparison in the words of the command, with numbers where the page draws."""
    from gossamer.compare import text

    return {
        "tasks": comparison.tasks,
        "source": comparison.source,
        "heading": text.heading(comparison),
        "groups": [_group(group, ids) for group in comparison.groups],
        "tables": [
            {"title": x.title, "head": x.head, "rows": x.rows, "scores_of": x.scores_of}
            for x in text.tables(comparison)
        ],
        "verdicts": [_verdict(pair, comparison) for pair in comparison.pairs],
        "remarks": [_by_menus(x) for x in text.remarks(comparison)],
        "notes": [_by_menus(x) for x in comparison.notes],
    }


def _verdict(pair: Pair, comparison: Comparison) -> dict[str, Any]:
    from gossamer.compare.text import judgement_of

    found, verdict = judgement_of(pair, comparison)
    return {"found": found, "verdict": verdict, "open": pair.verdict == "open"}


def _group(group: GroupReport, ids: dict[str, str]) -> dict[str, Any]:
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
