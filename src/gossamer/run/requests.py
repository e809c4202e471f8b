"""Requests that a run finds in its folder while it trains: to stop, to save, to evaluate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.record.requests import take

if TYPE_CHECKING:
    from pathlib import Path

    from gossamer.record.requests import Request
    from gossamer.run.stopping import Signals, Watch


class Requests:
    """Context in which the thread that watches a run looks into its folder for requests, four times a second.

    So a role that hangs is asked to stop too, and looking takes no time from training.

    Args:
        folder: of the run.
        watch: whose thread looks.
        signals: a request to stop is as good as the first of them.
    """

    def __init__(self, folder: Path, watch: Watch, signals: Signals):
        self._folder, self._watch, self._signals = folder, watch, signals
        self._waiting: set[Request] = set()  # two threads add and discard, each at once

    def __enter__(self) -> Requests:
        """Begin to look; what was asked since the folder was locked is heard."""
        self._watch.on_look = self.look
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more, and forget what nobody hears."""
        self._watch.on_look = lambda: None
        take(self._folder)

    def look(self) -> None:
        """Look into the folder."""
        found = take(self._folder)
        if "stop" in found:
            self._signals.stop("request")
        self._waiting |= found - {"stop"}

    def waiting(self, request: Request) -> bool:
        """Whether something has been asked and not been seen to."""
        return request in self._waiting

    def done(self, request: Request) -> None:
        """Record that a request is being seen to."""
        self._waiting.discard(request)
