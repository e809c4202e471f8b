"""What is asked of a running run from beside it: empty files in its folder, which the run takes away when it hears them.

A file needs no process id, so nothing is ever signalled that is not the run; asking twice is asking once; it works
wherever the folder can be written, also where the run's process is on another machine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
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
