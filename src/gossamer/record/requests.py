"""Requests to a running run, from beside it: empty files in its folder, which the run takes away when it hears them.

A file needs no process id, so nothing is ever signalled that is not the run; asking twice is asking once; it works
wherever the folder can be written, also where the run's process is on another machine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Request = Literal["stop", "checkpoint", "evaluate"]
REQUESTS: tuple[Request, ...] = get_args(Request)
"""stop: save and end; checkpoint: save and go on; evaluate: play the newest policy now."""


def ask(folder: Path, request: Request) -> bool:
    """Ask a run for something; return False if that has been asked before and not been heard yet.

    Raises:
        OSError: the folder cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(folder / _name(request), flags, 0o644))
    except FileExistsError:
        return False
    return True


def take(folder: Path) -> set[Request]:
    """Return what has been asked since the last call, which is then forgotten."""
    found: set[Request] = set()
    for request in REQUESTS:
        # Heard only if it can be taken away, or it would be heard for ever.
        with suppress(OSError):
            (folder / _name(request)).unlink()
            found.add(request)
    return found


def _name(request: Request) -> str:
    return f".asked-{request}"


class Requests:
    """Requests to one session, which the thread that watches it looks for four times a second.

    So a role that hangs is asked to stop too, and looking takes no time from training. What was asked since the folder was
    locked is heard.

    Args:
        folder: of the run.
        stop: asks the run to stop, as the first signal does.
    """

    def __init__(self, folder: Path, stop: Callable[[], object]):
        self._folder, self._stop = folder, stop
        self._waiting: set[Request] = set()  # two threads add and discard, each at once
        self._closed = False

    def look(self) -> None:
        """Look into the folder."""
        if self._closed:
            return
        found = take(self._folder)
        if "stop" in found:
            self._stop()
        self._waiting |= found - {"stop"}

    def hear(self, request: Request) -> bool:
        """Return whether something has been asked and not been seen to, as it is from now on."""
        asked = request in self._waiting
        self._waiting.discard(request)
        return asked

    def close(self) -> None:
        """Look no more, and forget what nobody hears."""
        self._closed = True
        take(self._folder)
