"""How a run ends before it is done with everything: one request with one reason and one deadline, whoever asks."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

from gossamer.record.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Generator

    from gossamer.config import TrainConfig
    from gossamer.errors import RunFailed

SHOW_CURSOR = "\033[?25h"


class Overdue(BaseException):
    """Raised in the main thread, wherever it is: its time is over.

    Args:
        failure: why the run cannot go on; None: it was asked to stop.
    """

    def __init__(self, failure: RunFailed | None = None):
        super().__init__()
        self.failure = failure


def cause_of(error: BaseException) -> BaseException:
    """Return the failure behind an `Overdue`, or the error itself."""
    return error.failure or error if isinstance(error, Overdue) else error


def end_of(
    config: TrainConfig, *, env_steps: int, seconds: float, mean_return: float | None
) -> Exit | None:
    """Return the end that a run has reached; None: it has reached none.

    Args:
        config: where the run ends.
        env_steps: learnt from so far.
        seconds: of all sessions.
        mean_return: of the last 100 training episodes; None before there are 100.
    """
    if env_steps >= config.total_env_steps:
        return Exit("done", "total_env_steps")
    if config.stop_after_seconds and seconds >= config.stop_after_seconds:
        return Exit("done", "stop_after_seconds")
    goal = config.stop_at_return
    if goal is not None and mean_return is not None and mean_return >= goal:
        return Exit("done", "stop_at_return")
    return None


class Stop:
    """The request to end: everything that goes on asks it whether there is one, why, and how much time is left.

    A `Watch` keeps it: it interrupts what has not ended by the deadline.

    Args:
        within_seconds: from a request to its deadline.
    """

    def __init__(self, within_seconds: float = 0.0):
        self.exit: Exit | None = None
        """Why to end; None: nothing has asked."""
        self.is_requested = False
        """Whether a signal or somebody beside the run has asked, not a limit alone."""
        self.signal = 0
        """Number of the signal that was the first to ask; 0: none was."""
        self.is_saved = False
        """Whether all is saved, so that the next signal skips what is left to do."""
        self.skips = False
        """Whether a signal came after that."""
        self.is_saving = False
        """Whether something goes on that is interrupted only as the last resort."""
        self.raised: Overdue | KeyboardInterrupt | None = None
        """What was raised in the main thread, wherever it was, since deadlines were last lifted."""
        self.within_seconds = within_seconds
        # Moments by the monotonic clock; infinite: there is none.
        self.asked_at = self.deadline = self.raised_at = math.inf

    def ask(self, why: Exit) -> None:
        """Ask to end, from now on within the bound; the first reason holds. Called by signal handlers too."""
        self.exit = self.exit or why
        self.asked_at = time.monotonic()
        self.deadline = min(self.deadline, self.asked_at + self.within_seconds)

    def request(self, cause: str, number: int = 0) -> None:
        """Ask to end as a signal does.

        Args:
            cause: who asks, for `summary.json`.
            number: of the signal, if it is one.
        """
        self.is_requested, self.signal = True, self.signal or number
        self.ask(Exit("stopped", cause))

    @property
    def left_seconds(self) -> float:
        """Seconds from now to the deadline of a request; infinite if nobody has asked."""
        return self.asked_at + self.within_seconds - time.monotonic()

    @property
    def failure(self) -> RunFailed | None:
        """Why what goes on is given up, if it is."""
        return self.raised.failure if isinstance(self.raised, Overdue) else None

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @contextlib.contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Context of something that has a deadline of its own, at which it is interrupted by Overdue."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.settle()

    @contextlib.contextmanager
    def saving(self) -> Generator[None]:
        """Context that is interrupted only as the last resort."""
        self.is_saving = True
        try:
            yield
        finally:
            self.is_saving = False

    def settle(self) -> None:
        """Lift the deadline: what was to end by then has ended."""
        self.deadline = self.raised_at = math.inf
        self.raised = None


def hand_over(number: int) -> None:
    """Let a signal do what it would have done without a run that heard it; 0: there was none."""
    handler = signal.getsignal(number) if number else signal.SIG_IGN
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        signal.raise_signal(signal.Signals(number))


def tell(line: str) -> None:
    """Write to standard error whatever writing this has interrupted, and if nobody reads."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        error = sys.stderr.fileno()
        # in a terminal: not beside the ^C, and the live panel hides the cursor
        text = f"\n{line}\n{SHOW_CURSOR}" if os.isatty(error) else f"{line}\n"
        if select.select([], [error], [], 0)[1]:  # a full pipe would hold us for ever
            os.write(error, text.encode(errors="backslashreplace"))


def end_at_once(code: int) -> None:
    """End this process and its workers, whatever they are at."""
    for worker in multiprocessing.active_children():
        worker.kill()  # one that is stuck in a step would outlive us
    # Not that which tells of environments that end the process.
    getattr(os._exit, "__wrapped__", os._exit)(code)
