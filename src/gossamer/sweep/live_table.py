"""The display of a sweep while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from gossamer.record.metrics import last_row
from gossamer.record.terminal import LivePanel
from gossamer.system.reading import visible

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
        self._printed_at = time.monotonic()
        self._panel = LivePanel(title, self._table, stream=stream)

    def say(self, text: str) -> None:
        """Show a line, above the table if there is one."""
        self._panel.print(visible(text))

    def draw(self, running: Sequence[PlannedRun]) -> None:
        """Show the runs that train now."""
        if self._panel.is_shown:
            self._running = [row_of(run) for run in running]
            self._panel.redraw()
        elif (now := time.monotonic()) >= self._printed_at + PLAIN_EVERY_SECONDS:
            self._printed_at = now
            told = (" ".join(filter(None, row_of(run))) for run in running[:MOST_ROWS])
            self.say("; ".join([self._head(), *told]))

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        self._running = ()
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
        table.add_row(Text(self._head()))
        return table


def row_of(run: PlannedRun) -> tuple[str, ...]:
    """Return the name of a run and how far it is in words: env steps, and its mean return."""
    row = last_row(run.folder / "metrics.jsonl")
    steps, score = row.get("env_steps"), row.get("return_mean_100")
    return (
        run.name,
        f"{steps:,} steps" if isinstance(steps, int) else "begins",
        f"return {score:.4g}" if isinstance(score, (int, float)) else "",
    )
