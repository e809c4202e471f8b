"""How a run ends before it is done with everything: one request with one reason and one deadline, and a thread that keeps it."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gossamer.errors import NeverBegan
from gossamer.record.exits import Exit
from gossamer.run.slow_calls import SlowCalls, at_work
from gossamer.run.user_messages import ENDED_AT_ONCE, STOPPING
from gossamer.system.ignored_signals import STOP_SIGNALS
from gossamer.system.signals import Signalled, Signals
from gossamer.system.signs_of_life import GIVEN_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from gossamer.config import TrainConfig
    from gossamer.errors import RunFailed

LOOK_SECONDS = 0.25
"""Pause between two looks."""
ANNOUNCE_SECONDS = 2.0
"""An end that takes longer is announced, unless somebody was told when it was asked for."""
RAISE_SECONDS = 2.0
"""After a deadline: what does not end by itself until then is interrupted."""
LAST_RESORT_SECONDS = 6.0
"""After a deadline: the process ends, whatever it is at."""
SHOW_CURSOR = "\033[?25h"


class Overdue(BaseException):
    """Raised in the main thread, wherever it is: its time is over."""


class GivenUp(BaseException):
    """Raised in the main thread, wherever it is: it cannot go on.

    Args:
        failure: why.
    """

    def __init__(self, failure: RunFailed):
        super().__init__()
        self.failure = failure


def cause_of(error: BaseException) -> BaseException:
    """Return the failure behind a `GivenUp`, or the error itself."""
    return error.failure if isinstance(error, GivenUp) else error


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
        self.raised: BaseException | None = None
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
    def failure(self) -> RunFailed | None:
        """Why what goes on is given up, if it is."""
        return self.raised.failure if isinstance(self.raised, GivenUp) else None

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

    def settle(self) -> None:
        """Lift the deadline: what was to end by then has ended."""
        self.deadline = self.raised_at = math.inf
        self.raised = None


class Watched:
    """What is watched: it is told lines, asked what a watch has to know, and told to leave what it is at.

    Here the answers are those of something that has nothing to save. All but `last_words` are called often, from the thread
    that watches.
    """

    def say(self, text: str) -> None:
        """Show a line to the user."""
        tell(f"gossamer: {text}")

    def notice(self, text: str) -> bool:
        """Show a line where progress is shown; return whether that could be done."""
        return False

    def look(self) -> None:
        """Do what is to be done now and then, whatever the main thread is at."""

    def leave(self) -> None:
        """Ask threads to leave what they are at: the deadline has passed."""

    def save_seconds(self) -> float:
        """Return the longest time that a checkpoint took, its snapshot included."""
        return 0.0

    def written_bytes(self) -> int | None:
        """Return the bytes that have reached the disk; None while no checkpoint is being written."""
        return None

    def last_words(self) -> int:
        """Write down how it ended, for want of a main thread that could; return the exit code."""
        return 1


class Unsaved(Watched):
    """What has nothing to save: a run that has not begun, an evaluation."""

    def __init__(self, stop: Stop):
        self._stop = stop

    def last_words(self) -> int:
        stop = self._stop
        if stop.failure is not None:
            tell(f"gossamer: {without_advice(stop.failure)}")
        elif stop.signal:
            tell("gossamer: interrupted")
            return 128 + stop.signal
        else:
            tell(f"gossamer: {NeverBegan.SAYS}" + at_work("; {}"))
        return 1


def without_advice(failure: RunFailed) -> str:
    """Say what is stuck; how a run is given more patience is not for what has none to resume."""
    return str(failure).partition(GIVEN_UP)[0]


class Watch:
    """The thread, from before environments are made to the end.

    Args:
        patience_seconds: for environments.
        watched: what is watched; another may take its place.
        stop: kept by this: what has not ended by its deadline is interrupted.
        ends_at: moment, by the monotonic clock, at which what is watched is asked to end.
        last_resort: end the process if nothing else helps; it is not ours where we are a library.
    """

    def __init__(
        self,
        patience_seconds: float,
        watched: Watched,
        stop: Stop,
        *,
        ends_at: float = math.inf,
        last_resort: bool = False,
    ):
        self.watched, self.stop, self.ends_at = watched, stop, ends_at
        self.ends_process = last_resort
        """Whether the process is ours, and may be ended."""
        self._slow = SlowCalls(patience_seconds)
        self._announced_at = math.inf  # the request that the user has been told of
        self._written_bytes: int | None = None
        self._written_at = -math.inf
        self._closed = threading.Event()
        self._signals: Signals | None = None
        self._before: Any = None
        self._main: int | None = None  # the main thread, if that is what is watched

    def __enter__(self) -> Watch:
        """Begin to watch."""
        if threading.current_thread() is threading.main_thread():
            self._main = threading.get_ident()
            self._before = signal.signal(signal.SIGURG, self._on_urgent)
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join(1.0)
        if self._main is not None:
            signal.signal(signal.SIGURG, self._before)

    @contextlib.contextmanager
    def hearing(
        self, answer: Callable[[int], object], numbers: Collection[int] = STOP_SIGNALS
    ) -> Generator[None]:
        """Context in which signals are answered, by this thread where the main thread does not come to it."""
        before = self._signals
        try:
            with Signals(answer, numbers) as self._signals:
                yield
        finally:
            self._signals = before

    @contextlib.contextmanager
    def leaving(self) -> Generator[None]:
        """Context of what has nothing to save, or no more: the first signal interrupts what has not begun, the second ends all.

        Simulators that are processes of their own are thereby closed. In a process that is not ours nothing is heard.
        """
        if not self.ends_process:
            yield
            return
        with self.hearing(self._leave):
            yield

    def _leave(self, number: int) -> None:
        stop = self.stop
        if stop.is_requested:
            if number != signal.SIGHUP:
                end_at_once(self.watched.last_words())
            return
        stop.request(signal.Signals(number).name, number)
        # A run that has ended closes what it holds, within its bound.
        if isinstance(self.watched, Unsaved):
            self._interrupt(Signalled(number), stop.deadline)

    def on_signal(self, number: int) -> None:
        """Answer a signal to a run: the first asks it to stop, the second ends it at once.

        In a process that is not ours the second is a KeyboardInterrupt.
        """
        stop = self.stop
        if not stop.is_requested:
            self.request(signal.Signals(number).name, number)
        elif number == signal.SIGHUP:
            pass  # the kernel says so, the terminal's shell, and whoever else waits for it
        elif stop.is_saved and not stop.skips:
            stop.skips = True
        else:
            tell(f"gossamer: {ENDED_AT_ONCE}")
            if self.ends_process:
                end_at_once(128 + number)
            self.quit()

    def request(self, cause: str, number: int = 0) -> None:
        """Ask to stop as the first signal does, and say so; nothing happens if that was asked before.

        Args:
            cause: who asks, for `summary.json`.
            number: of the signal, if it is one.
        """
        if self.stop.is_requested:
            return
        self.stop.request(cause, number)
        self._announced_at = self.stop.asked_at
        stopping = STOPPING.format(self._bound)
        if not self.watched.notice(stopping):
            tell(f"gossamer: {stopping}")

    def quit(self, number: int = signal.SIGINT) -> None:
        """Raise a signal, as a KeyboardInterrupt, in the main thread, wherever it is; nothing is saved."""
        self.stop.raised = None
        self._interrupt(Signalled(number))

    def _interrupt(self, error: BaseException, ends_by: float = 0.0) -> None:
        """Raise in the main thread, wherever it is; sleeping and waiting for others end too.

        Args:
            error: what is raised.
            ends_by: moment from which on, in place of now, the last resort is near.
        """
        if self._main is None or self.stop.raised is not None:
            return
        self.stop.raised, self.stop.raised_at = error, max(time.monotonic(), ends_by)
        signal.pthread_kill(self._main, signal.SIGURG)

    def _on_urgent(self, *_: object) -> None:
        if self.stop.raised is not None:
            raise self.stop.raised

    @property
    def _bound(self) -> int:
        """Seconds that a stop takes at most, which is said."""
        return math.ceil(self.stop.within_seconds + 2 * self.watched.save_seconds())

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            now = time.monotonic()
            # A process that was suspended (Ctrl-Z) has not been watched all that time.
            passed, self._last = min(now - self._last, 1.0), now
            self.watched.look()
            if self._signals is not None:
                self._signals.hear()
            lines, failure = self._slow.look(passed)
            for line in lines:
                self.watched.say(line)
            if failure is not None:
                self._interrupt(GivenUp(failure))
            if now >= self.ends_at and self.stop.exit is None:
                self.stop.ask(Exit("done", "stop_after_seconds"))
            self._keep(now)

    def _keep(self, now: float) -> None:
        """See to it that what was asked to end does."""
        stop, watched = self.stop, self.watched
        if stop.asked_at != self._announced_at and now >= stop.asked_at + ANNOUNCE_SECONDS:
            self._announced_at = stop.asked_at
            watched.say(f"stopping, within {self._bound} s{at_work('; {}')}")
        if now < stop.deadline:
            if now >= stop.raised_at + LAST_RESORT_SECONDS:
                self._end_process(now)
            return
        watched.leave()
        if now >= stop.deadline + RAISE_SECONDS and not stop.is_saving:
            self._interrupt(Overdue())
        if now >= stop.deadline + 2 * watched.save_seconds() + LAST_RESORT_SECONDS:
            self._end_process(now)

    def _end_process(self, now: float) -> None:
        if not self.ends_process or self._writes(now):
            return
        codes: list[int] = []
        # Whatever the main thread holds may hold this up too.
        words = threading.Thread(
            target=lambda: codes.append(self.watched.last_words()), daemon=True
        )
        words.start()
        words.join(2.0)
        end_at_once(codes[0] if codes else 1)

    def _writes(self, now: float) -> bool:
        """Return whether a checkpoint is being written and gets on; the first time this is told."""
        written = self.watched.written_bytes()
        if written is None:
            return False
        if self._written_bytes is None:
            self.watched.say("The last checkpoint is still being written; the run ends once it is")
        if written != self._written_bytes:
            self._written_bytes, self._written_at = written, now
        return now < self._written_at + LAST_RESORT_SECONDS


def hand_over(number: int, *, failed: bool = False) -> None:
    """Let a signal do what it would have done without a run that heard it.

    Args:
        number: of the signal; 0: there was none.
        failed: the run has failed, which the program is to learn: only a handler of its own is called.
    """
    handler = signal.getsignal(number) if number else None
    if failed and (not callable(handler) or handler is signal.default_int_handler):
        return
    if handler is not None:
        # An event loop is told by the system's own handler, not by Python's.
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
