"""Signals that are heard in place of what they do by themselves, also where the main thread is in native code."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING, Any

from gossamer.system.ignored_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

REPEAT_SECONDS = 0.5
"""A signal that comes so soon after another was sent together with it, as `timeout` does."""


class Signalled(KeyboardInterrupt):
    """Raised in the main thread where a signal ends what has nothing to save.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int):
        super().__init__()
        self.number = number


class Signals:
    """Context in which signals are answered by a function.

    Python runs handlers in the main thread alone, and between its own instructions; the system's own handler puts every
    signal's number into a pipe at once. Whoever is first takes it out and answers it: the handler, or a thread beside that
    calls `hear` now and then. Processes that are forked meanwhile do with signals what they would have done.

    Args:
        answer: called with the number of a signal; not of one that comes together with another.
        numbers: of the signals.
    """

    def __init__(self, answer: Callable[[int], object], numbers: Collection[int] = STOP_SIGNALS):
        self._answer, self._numbers = answer, numbers
        self._before: dict[int, Any] = {}
        self._pipe: tuple[FileIO, FileIO] | None = None  # ends to read and to write
        self._wakeup_before = -1
        self._answered_at = -math.inf

    def __enter__(self) -> Signals:
        """Take the signals over; only the main thread can, elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread():
            ends = os.pipe()
            for end in ends:
                os.set_blocking(end, False)
            self._pipe = FileIO(ends[0], "rb"), FileIO(ends[1], "wb")
            self._wakeup_before = _wake(ends[1])
            for number in self._numbers:
                # A program around Python has a handler of its own, which could not be given back.
                if signal.getsignal(number) is not None:
                    self._before[number] = signal.signal(number, self._on_signal)
            if self._before.get(signal.SIGHUP) == signal.SIG_IGN:  # by nohup
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            _IN_USE.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        if self._pipe is not None:
            if self in _IN_USE:  # not in a child that was forked meanwhile
                _IN_USE.remove(self)
                self.give_back()
            for end in self._pipe:
                with suppress(OSError):
                    end.close()

    def give_back(self) -> None:
        """Let signals do what they did before."""
        # first: our handler would have the pipe told again
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with suppress(OSError, ValueError):  # whoever had it has closed it
            _wake(self._wakeup_before)

    def hear(self) -> None:
        """Answer the signals that have come, if nobody has."""
        try:
            numbers = self._pipe[0].read(1 << 16) if self._pipe is not None else None
        except (OSError, ValueError):  # an environment has closed what is not its own
            return
        for number in numbers or b"":
            if number in self._numbers:
                self._answer_once(number)

    def _on_signal(self, number: int, frame: object) -> None:
        if frame is not None and self._is_told():
            self.hear()
        else:  # somebody else is told, or calls this as a function
            self._answer_once(number)

    def _is_told(self) -> bool:
        """Return whether the pipe is told of signals; from now on it is, if somebody else was, such as an event loop."""
        assert self._pipe is not None
        try:
            own = self._pipe[1].fileno()
            return _wake(own) == own
        except (OSError, ValueError):  # it was closed
            _wake(-1)
            return False

    def _answer_once(self, number: int) -> None:
        now = time.monotonic()
        if now - self._answered_at >= REPEAT_SECONDS:
            self._answered_at = now
            self._answer(number)


_IN_USE: list[Signals] = []
_FORKING = threading.local()


def _wake(descriptor: int) -> int:
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def _before_fork() -> None:
    """Hold signals back: one that reaches the child before it has forgotten ours would be lost."""
    _FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS) if _IN_USE else None


def _after_fork() -> None:
    if _FORKING.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.mask)


def _after_fork_in_child() -> None:
    """Let signals do here what they did before; the pipe is the parent's."""
    try:
        while _IN_USE:
            _IN_USE.pop().give_back()
    finally:
        _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
