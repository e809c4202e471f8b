"""How whoever waits is asked to stop."""

from __future__ import annotations

import threading

LOOK_SECONDS = 0.2
"""Longest time between two looks of one who waits."""


class Stopped(Exception):
    """Raised inside a blocking call when the run is asked to stop."""


class StopSignal:
    """One flag that every blocking call watches, and the first error that set it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def stop(self, error: BaseException | None = None) -> None:
        """Ask every role to stop; the first error is kept."""
        with self._lock:
            if self.error is None and error is not None:
                self.error = error
        self._event.set()

    @property
    def stopped(self) -> bool:
        """Whether anyone asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep until stopped or `seconds` have passed; return whether stopped."""
        return self._event.wait(seconds)
