"""Standard streams that raise nothing: closed ones, full disks, and text that their encoding does not have."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_apart: list[TextIO] = []
"""Standard output, where it is for results alone."""
ERRORS = "gossamer"
"""Name of the way in which text is written that an encoding does not have."""


def show_result(text: str) -> None:
    """Print what a command was asked for on standard output."""
    print(text, file=_apart[-1] if _apart else sys.stdout, flush=True)


def _encode(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write bytes of a file's name as they are, and other characters by their number."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    if all("\udc80" <= character <= "\udcff" for character in text):
        return text.encode("ascii", "surrogateescape"), error.end
    return text.encode("ascii", "backslashreplace"), error.end


class _Output(io.FileIO):
    """A file descriptor to which writing does not fail; what cannot be written is lost."""

    def __init__(self, descriptor: int, *, breaks: bool):
        super().__init__(descriptor, "w", closefd=False)
        self.lost: OSError | None = None
        self._breaks = breaks

    def write(self, data: object, /) -> int:
        """Write all that can be; a pipe that nobody reads raises if it is to."""
        view = memoryview(data).cast("B")  # pyright: ignore[reportArgumentType] - whatever a buffer holds
        begin = 0
        while begin < len(view):
            try:
                written = super().write(view[begin:])
            except OSError as error:
                if self._breaks and isinstance(error, BrokenPipeError):
                    raise
                self.lost = error  # but the next text may find room
                break
            else:
                begin += written or 0
                if written is None:
                    # Somebody has made it non-blocking: a program above us, or another in the terminal.
                    poll = select.poll()
                    poll.register(self.fileno(), select.POLLOUT)
                    poll.poll()
        return len(view)


class Streams:
    """The standard streams of a command.

    Args:
        breaks: a pipe on standard output that nobody reads ends the command, by BrokenPipeError.
        results_alone: standard output is for `show_result` alone; what else is written there, by simulators and their
            libraries too, goes to standard error.
    """

    def __init__(self, *, breaks: bool, results_alone: bool = False):
        codecs.register_error(ERRORS, _encode)
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:  # closed: the next file that is opened would be taken for it
                opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
                assert opened == descriptor
        place = _place(1, sys.stdout)
        if results_alone:
            place = os.dup(place)
            os.dup2(2, 1)
        self._output = _Output(place, breaks=breaks)
        sys.stderr = _text(_Output(_place(2, sys.stderr), breaks=False), sys.stderr)
        self._results = _text(self._output, sys.stdout)
        if results_alone:
            _apart.append(self._results)
        sys.stdout = sys.stderr if results_alone else self._results

    def lost(self) -> str:
        """Write what waits; return why standard output could not be written, empty if it could."""
        self._results.flush()
        error = self._output.lost
        return "" if error is None else error.strerror or str(error)


def _place(descriptor: int, stream: TextIO | None) -> int:
    """Return where a stream writes; of one that Python found closed the descriptor may be another file's by now."""
    return descriptor if stream is not None else os.open(os.devnull, os.O_WRONLY)


def _text(raw: _Output, before: TextIO | None) -> io.TextIOWrapper:
    through = isinstance(before, io.TextIOWrapper) and before.write_through
    return io.TextIOWrapper(
        raw if through else io.BufferedWriter(raw),  # pyright: ignore[reportArgumentType] - as `python -u` does
        encoding=before.encoding if before is not None else "utf-8",
        errors=ERRORS,
        line_buffering=before is None or bool(before.line_buffering),
        write_through=through,
    )
