"""What a sweep shows while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from gossamer.record.metrics import last_row
from gossamer.record.progress import is_live
from gossamer.system.reading import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from gossamer.sweep.processes import PlannedRun

PLAIN_EVERY_SECONDS = 30.0
"""At most one plain line about runs that train in this time."""
MOST_ROWS = 12
"""Rows of a part of the live table."""


class Board:
    """Shows lines, and what trains. Nothing here raises: a broken terminal must not end a sweep.

    Args:
        title: of the live table.
        head: returns a line on how far everything is.
        rows: returns names and cells of what is done, the best first.
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
        self._title, self._head, self._rows = title, head, rows
        self._stream = sys.stderr if stream is None else stream
        self._live: Any = None
        self._running: Sequence[tuple[str, ...]] = ()
        self._printed_at = time.monotonic()
        if is_live(self._stream):
            with suppress(Exception):
                self._start_live()

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        live = Live(
            console=Console(file=self._stream),
            get_renderable=self._table,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
        )
        live.start()
        self._live = live

    def say(self, text: str) -> None:
        """Show a line, above the table if there is one."""
        with suppress(Exception):
            if self._live is not None:
                self._live.console.print(visible(text), markup=False, highlight=False)
            else:
                self._stream.write(visible(text) + "\n")
                self._stream.flush()

    def draw(self, running: Sequence[PlannedRun]) -> None:
        """Show what trains now."""
        now = time.monotonic()
        if self._live is None and now < self._printed_at + PLAIN_EVERY_SECONDS:
            return
        self._running = [(run.name, *progress_of(run.folder)) for run in running]
        if self._live is not None:
            with suppress(Exception):
                self._live.refresh()
            return
        self._printed_at = now
        told = "; ".join(" ".join(filter(None, row)) for row in self._running[:MOST_ROWS])
        self.say(f"{self._head()}; {told}" if told else self._head())

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        live, self._live = self._live, None
        if live is not None:
            self._running = ()
            with suppress(Exception):
                live.stop()

    def _table(self) -> RenderableType:
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        try:
            table = Table.grid(padding=(0, 2))
            for part in (self._running, self._rows()):
                for row in part[:MOST_ROWS]:
                    table.add_row(*(Text(visible(cell)) for cell in row))
                if len(part) > MOST_ROWS:
                    table.add_row(Text(f"and {len(part) - MOST_ROWS} more"))
                table.add_row()
            table.add_row(Text(self._head()))
            return Panel(table, title=Text(self._title), title_align="left")
        except Exception as error:  # noqa: BLE001 - an odd row must not end a sweep
            return Text(f"progress cannot be shown: {error}")


def progress_of(folder: Path) -> tuple[str, str]:
    """Return how far a run is in words: env steps, and its mean return."""
    row = last_row(folder / "metrics.jsonl")
    steps, score = row.get("env_steps"), row.get("return_mean_100")
    return (
        f"{steps:,} steps" if isinstance(steps, int) else "begins",
        f"return {score:.4g}" if isinstance(score, (int, float)) else "",
    )
