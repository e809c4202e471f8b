"""A panel at the bottom of a terminal, redrawn in its place, with lines above it; elsewhere the lines alone."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType


UNREAD_SECONDS = 2.0
"""How long a line waits for whoever reads it; the next ones do not wait until somebody reads again."""


class LivePanel:
    """Shows lines and, in a terminal, a panel. Nothing here raises: a broken terminal must not end a run.

    Args:
        title: of the panel.
        body: returns the content of the panel.
        stream: where to; standard error if None.
        redraws_per_second: on a thread of its own, as a drawing costs some milliseconds; 0: only `redraw` draws.
    """

    def __init__(
        self,
        title: str,
        body: Callable[[], RenderableType],
        *,
        stream: TextIO | None = None,
        redraws_per_second: float = 0.0,
    ):
        self.notice = ""
        """Text under the panel."""
        self._title, self._body = title, body
        self._stream = sys.stderr if stream is None else stream
        self._redraws_per_second = redraws_per_second
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._drawing: threading.Thread | None = None
        self._live: Any = None
        self._unread = 0  # lines in a row that were left out
        if is_live(self._stream):
            quietly(self._start)

    @property
    def is_shown(self) -> bool:
        """Whether there is a panel."""
        return self._live is not None

    def print(self, text: str) -> None:
        """Print a line, above the panel if there is one."""
        quietly(lambda: self._print(text))

    def redraw(self) -> bool:
        """Draw the panel again; return whether that could be done."""
        return self._live is not None and quietly(self._live.refresh)

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        quietly(self._close)

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        live = Live(
            console=Console(file=self._stream),
            get_renderable=self._panel,
            auto_refresh=False,  # its thread would die with a traceback when the terminal goes
            redirect_stdout=sys.stdout.isatty(),  # what is piped must arrive in the pipe
        )
        live.start()
        self._live = live
        if self._redraws_per_second:
            self._drawing = threading.Thread(target=self._draw, name="progress", daemon=True)
            self._drawing.start()

    def _draw(self) -> None:
        while not self._closed.wait(1 / self._redraws_per_second) and self.redraw():
            pass

    def _panel(self) -> RenderableType:
        from rich.panel import Panel
        from rich.text import Text

        try:
            notice = Text(self.notice) if self.notice else None
            title = Text(self._title)
            return Panel(self._body(), title=title, title_align="left", subtitle=notice)
        except Exception as error:  # noqa: BLE001 - an odd row must not end what is shown
            return Text(f"progress cannot be shown: {error}")

    def _print(self, text: str) -> None:
        # A pipe or a terminal that nobody reads would hold up whoever trains here; once all is done it may.
        seconds = 0.0 if self._unread else UNREAD_SECONDS
        if not self._closed.is_set() and not can_write(self._stream, seconds):
            self._unread += 1
            return
        if self._unread:
            lines = "line" if self._unread == 1 else "lines"
            text = f"({self._unread} {lines} that nobody read left out)\n{text}"
            self._unread = 0
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
            return
        with self._writing:
            self._stream.write(text.rstrip("\n") + "\n")
            self._stream.flush()

    def _close(self) -> None:
        self._closed.set()
        if self._drawing is not None:
            self._drawing.join(timeout=2.0)  # it draws until it has ended
            self._drawing = None
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def can_write(stream: TextIO, seconds: float) -> bool:
    """Whether a stream takes text within some seconds; one without a descriptor always does."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(1000 * seconds))
    except Exception:  # noqa: BLE001 - a closed or foreign stream
        return True


def is_live(stream: TextIO) -> bool:
    """Whether a stream is a terminal in which lines can be written over."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except Exception:  # noqa: BLE001 - a closed or foreign stream
        return False


def quietly(act: Callable[[], object]) -> bool:
    """Do something for whoever watches; return whether it went well."""
    try:
        act()
    except Exception:  # noqa: BLE001 - the terminal is gone, a row is odd: go on unseen
        return False
    return True
