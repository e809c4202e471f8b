"""Signals that are heard in place of what they do by themselves, also where the main thread is in native code."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gossamer.machine import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

REPEAT_SECONDS = 0.5
"""A signal that comes so soon after another was sent together with it, as `timeout` does."""


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
        self._pipe: tuple[socket.socket, socket.socket] | None = None  # ends to read and to write
        self._wakeup_before = -1
        self._answered_at = -math.inf

    def __enter__(self) -> Signals:
        """Take the signals over; only the main thread can, elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread():
            self._pipe = socket.socketpair()
            for end in self._pipe:
                end.setblocking(False)
            self._wakeup_before = _wake(self._pipe[1].fileno())
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._on_signal)
            if self._before.get(signal.SIGHUP) == signal.SIG_IGN:  # by nohup
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            _IN_USE.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        if self._pipe is not None:
            _IN_USE.remove(self)
            self.give_back()
            for end in self._pipe:
                with suppress(OSError):
                    end.close()

    def give_back(self) -> None:
        """Let signals do what they did before."""
        _wake(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hear(self) -> None:
        """Answer the signals that have come, if nobody has."""
        try:
            numbers = self._pipe[0].recv(1 << 16) if self._pipe is not None else b""
        except OSError:  # there are none, or an environment has closed what is not its own
            return
        for number in numbers:
            if number in self._numbers:
                self._answer_once(number)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._is_told():
            self.hear()
        else:
            self._answer_once(number)

    def _is_told(self) -> bool:
        """Return whether the pipe is told of signals; from now on it is, if somebody else was, such as an event loop."""
        assert self._pipe is not None
        own = self._pipe[1].fileno()
        try:
            return _wake(own) == own
        except (OSError, ValueError):  # it was closed
            _wake(-1)
            return False

    def _answer_once(self, number: int) -> None:
        before, self._answered_at = self._answered_at, time.monotonic()
        if self._answered_at - before >= REPEAT_SECONDS:
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
    while _IN_USE:
        _IN_USE.pop().give_back()
    _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
