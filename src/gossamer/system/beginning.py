"""What a run is at before its first line, told where that takes long."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

AFTER_SECONDS = 2.0
"""Nothing is told of what ends sooner after the start."""
LASTS_SECONDS = 1.5
"""Nor of what does not last as long."""


def _is_looked_at() -> bool:
    """Whether standard output is a terminal; a program may have none, or one of its own."""
    with suppress(AttributeError, ValueError):
        return sys.stdout.isatty()
    return False


class Beginning:
    """Tells what a run is at, each thing once, from two seconds after its start to `over`.

    Args:
        began: Unix time of the start.
        told: whether anything is to be told.
    """

    def __init__(self, began: float, *, told: bool = True):
        self._changed = threading.Condition()
        self._doing, self._over = "", not told
        self._due = began + AFTER_SECONDS
        if told:
            threading.Thread(target=self._tell, name="beginning", daemon=True).start()

    def at(self, doing: str, *, everywhere: bool = True) -> None:
        """Note what begins now; unless it is to be told everywhere, somebody must be looking on."""
        with self._changed:
            self._doing = doing if everywhere or _is_looked_at() else ""
            self._due = max(self._due, time.time() + LASTS_SECONDS)
            self._changed.notify()

    def over(self) -> None:
        """Tell nothing from now on: there are lines that do."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def _tell(self) -> None:
        said = ""
        with self._changed:
            while not self._over:
                left = self._due - time.time()
                if left > 0 or self._doing in ("", said):
                    self._changed.wait(left if left > 0 else None)
                    continue
                said = self._doing
                with suppress(
                    OSError, ValueError, AttributeError
                ):  # nobody may be there to read it
                    sys.stdout.write(f"{said}\n")
                    sys.stdout.flush()
