"""Waiting for what happens elsewhere: as long as a busy machine may take for it, and in words where it does not happen."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0
"""A shared machine is slow now and then, and no test waits as long unless it fails; pytest ends a test later, with no words."""


def wait_for(
    happened: Callable[[], object],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = 0.02,
) -> None:
    """Return once it has happened.

    Args:
        happened: asked again and again.
        what: is waited for, in words.
        seconds: after which the test fails.
        pause_seconds: between two looks.
    """
    give_up = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < give_up, f"waited for {what}"
        time.sleep(pause_seconds)
