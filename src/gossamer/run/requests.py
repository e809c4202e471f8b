"""Requests that a run finds in its folder while it trains: to stop, to save, to evaluate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.record.requests import take

if TYPE_CHECKING:
    from pathlib import Path

    from gossamer.record.requests import Request
    from gossamer.run.stopping import Watch


class Requests:
    """Requests to one session, which the thread that watches it looks for four times a second.

    So a role that hangs is asked to stop too, and looking takes no time from training. What was asked since the folder was
    locked is heard.

    Args:
        folder: of the run.
        watch: asks to stop, as the first signal does.
    """

    def __init__(self, folder: Path, watch: Watch):
        self._folder, self._watch = folder, watch
        self._waiting: set[Request] = set()  # two threads add and discard, each at once
        self._closed = False

    def look(self) -> None:
        """Look into the folder."""
        if self._closed:
            return
        found = take(self._folder)
        if "stop" in found:
            self._watch.request("request")
        self._waiting |= found - {"stop"}

    def waiting(self, request: Request) -> bool:
        """Whether something has been asked and not been seen to."""
        return request in self._waiting

    def done(self, request: Request) -> None:
        """Record that a request is being seen to."""
        self._waiting.discard(request)

    def close(self) -> None:
        """Look no more, and forget what nobody hears."""
        self._closed = True
        take(self._folder)
