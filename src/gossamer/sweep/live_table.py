"""The display of a sweep while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from gossamer.record.progress import duration_text, seconds_left, share_text
from gossamer.record.readers import newest_row, table_in
from gossamer.record.terminal import LivePanel
from gossamer.system.reading import number, visible, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from gossamer.sweep.pool import PlannedRun

PLAIN_EVERY_SECONDS = 30.0
"""At most one plain line about runs that train in this time."""
MOST_ROWS = 12
"""Rows of a part of the live table."""


class Board:
    """Shows lines, and the runs that train.

    Args:
        title: of the live table.
        head: returns a line about the progress of the sweep.
        rows: returns names and cells of trials that are done, the best first.
        stream: where to; standard error if None.
    """

    def __init__(
        self,
        title: str,
        *,
        head: Callable[[], str],
        rows: Callable[[], Sequence[tuple[str, ...]]] = tuple,
        stream: TextIO | None = None,
    ):
        self._head, self._rows = head, rows
        self._running: Sequence[tuple[str, ...]] = ()
        self._left = ""
        self._whole_seconds: dict[
            str, float
        ] = {}  # that runs take from their first step to their last
        self._printed_at = time.monotonic()
        self._panel = LivePanel(title, self._table, stream=stream)

    def say(self, text: str) -> None:
        """Show a line, above the table if there is one."""
        self._panel.print(visible(text))

    def draw(self, running: Sequence[PlannedRun], *, to_begin: int = 0, jobs: int = 1) -> None:
        """Show the runs that train now, and how long all take.

        Args:
            running: those that train.
            to_begin: how many come after them.
            jobs: how many train at a time.
        """
        now = time.monotonic()
        if not self._panel.is_shown and now < self._printed_at + PLAIN_EVERY_SECONDS:
            return
        states = [RunState.of(run) for run in running]
        self._running = [x.row for x in states]
        self._left = self._time_left(states, to_begin, jobs)
        if self._panel.is_shown:
            self._panel.redraw()
        else:
            self._printed_at = now
            told = (" ".join(filter(None, row)) for row in self._running[:MOST_ROWS])
            self.say("; ".join([self._head() + self._left, *told]))

    def _time_left(self, states: Sequence[RunState], to_begin: int, jobs: int) -> str:
        """Return how long all runs take, in words; empty where one that trains does not tell it yet.

        Those to come are thought to take as long as those so far, on the average.
        """
        left = [x.left_seconds for x in states if x.left_seconds is not None]
        for one in states:
            if one.left_seconds is not None:
                self._whole_seconds[one.name] = one.seconds + one.left_seconds
        if not left or len(left) < len(states):
            return ""
        mean = sum(self._whole_seconds.values()) / len(self._whole_seconds)
        seconds = max(max(left), (sum(left) + to_begin * mean) / jobs)
        return f", about {duration_text(seconds)} left"

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        self._running, self._left = (), ""
        self._panel.close()

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for part in (self._running, self._rows()):
            for row in part[:MOST_ROWS]:
                table.add_row(*(Text(visible(cell)) for cell in row))
            if len(part) > MOST_ROWS:
                table.add_row(Text(f"and {len(part) - MOST_ROWS} more"))
            table.add_row()
        table.add_row(Text(self._head() + self._left))
        return table


@dataclass(frozen=True)
class RunState:
    """How far a run is, read from its folder."""

    name: str
    row: tuple[str, ...]
    """The name, and in words how far it is, how long it takes and its mean return."""
    seconds: float
    """That it has trained."""
    left_seconds: float | None
    """That it takes to its end; None where that is not known yet."""

    @classmethod
    def of(cls, run: PlannedRun) -> RunState:
        """Return that of a run; its files may be missing or damaged."""
        row, settings = newest_row(run.files), table_in(run.files, "config.json")
        steps, total = whole(row.get("env_steps")), whole(settings.get("total_env_steps"))
        seconds, score = number(row.get("time_s")) or 0.0, number(row.get("return_mean_100"))
        left = None
        if steps is not None and total is not None:
            newest = {
                "env_steps": steps,
                "steps_per_second": number(row.get("steps_per_second")),
                "time_s": seconds,
            }
            limit = number(settings.get("stop_after_seconds")) or 0.0
            left = number(seconds_left(newest, total, limit))
        told = ["begins" if steps is None else f"{steps:,} steps"]
        if steps is not None and total is not None:
            told = [f"{share_text(steps, total)} steps"]
        if left is not None:
            most = "" if settings.get("stop_at_return") is None else "at most "
            told.append(f"left {most}{duration_text(left)}")
        shown = "" if score is None else f"return {score:.4g}"
        return cls(run.name, (run.name, " ".join(told), shown), seconds, left)
