"""A run watched from beside it: what takes long is named, and what is asked to stop does so in a bounded time."""

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
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gossamer.machine import STOP_SIGNALS
from gossamer.record.exits import Exit
from gossamer.system.signs import CONSTRUCTOR, START_SECONDS, TIMES_THE_LONGEST, all_signs, given_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from gossamer.config import TrainConfig
    from gossamer.errors import RunFailed
    from gossamer.system.signs import Sign

LOOK_SECONDS = 0.25
"""Pause between two looks."""
SLOW_SECONDS = 30.0
"""An environment that takes as long over one call is named, and again whenever it has taken twice as long."""
ANNOUNCE_SECONDS = 2.0
"""A stop that takes longer is announced."""
RAISE_SECONDS = 2.0
"""After a bound: what does not end by itself until then is interrupted."""
LAST_RESORT_SECONDS = 6.0
"""After a bound: the process ends, whatever it is at."""
ANSWER_SECONDS = 1.0
"""A signal that the main thread has not heard until then is answered by the watching thread."""
REPEAT_SECONDS = 0.5
"""A signal that comes so soon after another was sent together with it, as `timeout` does."""
STOPPING = (
    "Saving a checkpoint, then stopping, within {} s. Press Ctrl-C again to quit without saving."
)
ENDED_AT_ONCE = "Ended without saving. The run can be resumed from its last checkpoint."
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


@dataclass
class _Seen:
    count: int
    silent_seconds: float = 0.0
    longest: float = 0.0
    next_notice: float = field(default_factory=lambda: SLOW_SECONDS)


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


class SlowCalls:
    """Tells which environments of this process take long over one call.

    Args:
        patience_seconds: one that takes longer is stuck, as `Patience` has it; 0: none is.
    """

    def __init__(self, patience_seconds: float):
        self._patience_seconds = patience_seconds
        self._seen: weakref.WeakKeyDictionary[Sign, _Seen] = weakref.WeakKeyDictionary()

    def look(self, seconds: float) -> tuple[list[str], RunFailed | None]:
        """Return lines about those that take long, and an error about one that is stuck.

        Args:
            seconds: since the last look.
        """
        lines: dict[str, None] = {}
        failure: RunFailed | None = None
        for sign in all_signs():
            count = sign.count()
            seen = self._seen.setdefault(sign, _Seen(count))
            if count != seen.count or not sign.doing or any(part.doing for part in sign.parts):
                longest = max(seen.longest, seen.silent_seconds)
                self._seen[sign] = _Seen(count, longest=longest)
                continue
            seen.silent_seconds += seconds
            if seen.silent_seconds >= seen.next_notice:
                seen.next_notice *= 2
                took = f"{seen.silent_seconds:.0f} s"
                lines[f"{sign.which} has been in {sign.doing} for {took}"] = None
            bound = max(self._patience_seconds, TIMES_THE_LONGEST * seen.longest)
            if sign.doing == CONSTRUCTOR:
                bound = max(bound, START_SECONDS)
            # Those who wait for it give up first, as they know for what.
            if self._patience_seconds and seen.silent_seconds >= bound + RAISE_SECONDS:
                failure = given_up(sign.which, seen.silent_seconds, f"it is in {sign.doing}")
        return list(lines), failure


class Wakeup:
    """Tells which signals the main thread does not hear, for it is in native code that nothing interrupts.

    Python runs handlers in the main thread alone, and between its own instructions. The system's handler writes
    every signal's number into a pipe at once.

    Args:
        numbers: of the signals that matter.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = numbers
        self._closing = threading.Lock()
        self._pipe: tuple[int, ...] = _pipe_without_waiting()
        self._before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._looked_at = time.monotonic()
        self._heard_at: dict[int, float] = {}
        self._waiting: dict[int, float] = {}  # signals unheard, since when
        self._answered: set[int] = set()

    def close(self) -> None:
        """Give the pipe up."""
        signal.set_wakeup_fd(self._before)
        with self._closing:
            for end in self._pipe:
                with contextlib.suppress(OSError):
                    os.close(end)
            self._pipe = ()

    def heard(self, number: int) -> bool:
        """Take notice that the main thread handles a signal; return whether that was answered before."""
        self._heard_at[number] = time.monotonic()
        answered = number in self._answered
        self._answered.discard(number)
        return answered

    def unheard(self, now: float) -> list[int]:
        """Return the signals to be answered: a second after they came nobody has heard them."""
        before, self._looked_at = self._looked_at, now
        # OSError: an environment may close what is not its own.
        with self._closing, contextlib.suppress(OSError):
            for number in os.read(self._pipe[0], 1000) if self._pipe else b"":
                if number in self._numbers:
                    self._waiting.setdefault(number, before)
        for number, since in list(self._waiting.items()):
            if self._heard_at.get(number, -math.inf) >= since:
                del self._waiting[number]
        due = [x for x, since in self._waiting.items() if now >= since + ANSWER_SECONDS]
        for number in due:
            del self._waiting[number]
        self._answered.update(due)
        return due


class Watch:
    """A thread beside a run, from before its environments are made to its end.

    Args:
        patience_seconds: for environments.
        say: shows a line.
        within_seconds: that a stop has.
        stop_after: seconds of the run at which it is asked to stop; 0: never.
        seconds: of the run so far.
        last_resort: end the process if nothing else helps; it is not ours where we are a library.
        on_look: called at every look.
    """

    def __init__(
        self,
        patience_seconds: float,
        say: Callable[[str], object],
        *,
        within_seconds: float = 0.0,
        stop_after: float = 0.0,
        seconds: Callable[[], float] = lambda: 0.0,
        last_resort: bool = False,
        on_look: Callable[[], None] = lambda: None,
    ):
        self.exit: Exit | None = None
        """Why the run is asked to stop; None: nothing has asked."""
        self.say, self.seconds = say, seconds
        self.leave: Callable[[], object] = lambda: None
        """Asks roles to leave what they are at; the bound is over."""
        self.save_seconds: Callable[[], float] = lambda: 0.0
        """Returns the longest time that a checkpoint took, its snapshot included."""
        self.written_bytes: Callable[[], int | None] = lambda: None
        """Returns the bytes that have reached the disk; None while no checkpoint is being written."""
        self.last_words: Callable[[], int] = lambda: 1
        """Writes down how the run ended, for want of a main thread that could; returns the exit code."""
        self.left = False
        """Whether the bound is over."""
        self.ends_process = last_resort
        """Whether the process may be ended."""
        self.stopped_by = 0
        """Number of the signal that has asked to stop; 0: none has."""
        self.on_look = on_look
        """Called at every look, by the watching thread."""
        self._within, self._stop_after = within_seconds, stop_after
        self._slow = SlowCalls(patience_seconds)
        self._limit = math.inf  # by the monotonic clock
        self._asked_at = math.inf
        self._announced = True
        self._saving = False
        self._written_bytes: int | None = None
        self._written_at = -math.inf
        self._raising: Overdue | KeyboardInterrupt | None = None
        self._raised_at = math.inf
        self._closed = threading.Event()
        self._wakeup: Wakeup | None = None
        self._answer: Callable[[int], object] = lambda _: None
        self._before: Any = None
        self._in_main = False

    def __enter__(self) -> Watch:
        """Begin to watch."""
        self._in_main = threading.current_thread() is threading.main_thread()
        if self._in_main:
            self._before = signal.signal(signal.SIGURG, self._on_urgent)
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join(1.0)
        if self._in_main:
            signal.signal(signal.SIGURG, self._before)

    @property
    def bound(self) -> int:
        """Seconds that a stop takes at most, which is said."""
        return math.ceil(self._within + 2 * self.save_seconds())

    @property
    def left_seconds(self) -> float:
        """Seconds that are left of the time for stopping; infinite if nobody has asked to stop."""
        return self._asked_at + self._within - time.monotonic()

    @property
    def failure(self) -> RunFailed | None:
        """Why the run is given up, if it is."""
        return self._raising.failure if isinstance(self._raising, Overdue) else None

    @property
    def over(self) -> bool:
        """Whether the time of what was asked to end is over."""
        return time.monotonic() >= self._limit

    def listen(self, numbers: Collection[int], answer: Callable[[int], object]) -> None:
        """Answer signals that the main thread does not hear; called by that thread.

        Args:
            numbers: of the signals.
            answer: called with a signal's number.
        """
        self._answer, self._wakeup = answer, Wakeup(numbers)

    def stop_listening(self) -> None:
        """Leave signals to the main thread."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.close()

    def heard(self, number: int) -> bool:
        """Take notice that the main thread handles a signal; return whether that was answered before."""
        return self._wakeup is not None and self._wakeup.heard(number)

    def ask(self, why: Exit, *, announced: bool = True) -> None:
        """Ask to stop, from now on within the bound; from a signal handler too."""
        self.exit = self.exit or why
        self._asked_at = time.monotonic()
        self._announced = announced
        self._limit = min(self._limit, self._asked_at + self._within)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Context of something that is interrupted, by Overdue, when it takes longer."""
        self._limit = min(self._limit, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.settle()

    @contextlib.contextmanager
    def saving(self) -> Generator[None]:
        """Context that is interrupted only as the last resort."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    def settle(self) -> None:
        """Take notice that what was asked for is done."""
        self._limit = self._raised_at = math.inf
        self._raising = None

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            now = time.monotonic()
            # A process that was suspended (Ctrl-Z) has not been watched all that time.
            passed, self._last = min(now - self._last, 1.0), now
            self.on_look()
            wakeup = self._wakeup
            for number in wakeup.unheard(now) if wakeup is not None else ():
                self._answer(number)
            lines, failure = self._slow.look(passed)
            for line in lines:
                self.say(line)
            if failure is not None:
                self._interrupt(Overdue(failure), now)
            self._look_at_stop(now)

    def _look_at_stop(self, now: float) -> None:
        if self._stop_after and self.exit is None and self.seconds() >= self._stop_after:
            self.ask(Exit("done", "stop_after_seconds"), announced=False)
        if not self._announced and now >= self._asked_at + ANNOUNCE_SECONDS:
            self._announced = True
            words = at_work()
            self.say(f"stopping, within {self.bound} s" + f"; {words}" * bool(words))
        if now < self._limit:
            if now >= self._raised_at + LAST_RESORT_SECONDS:
                self._end_process(now)
            return
        if not self.left:
            self.left = True
            self.leave()
        if now >= self._limit + RAISE_SECONDS and not self._saving:
            self._interrupt(Overdue(), now)
        if now >= self._limit + 2 * self.save_seconds() + LAST_RESORT_SECONDS:
            self._end_process(now)

    def quit(self) -> None:
        """Raise KeyboardInterrupt in the main thread, wherever it is; nothing is saved."""
        self._raising = None
        self._interrupt(KeyboardInterrupt(), time.monotonic())

    def _interrupt(self, error: Overdue | KeyboardInterrupt, now: float) -> None:
        """Raise in the main thread; sleeping and waiting for others end too."""
        if self._raising is not None or not self._in_main:
            return
        self._raising, self._raised_at = error, now
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGURG)

    def _on_urgent(self, *_: object) -> None:
        if self._raising is not None:
            raise self._raising

    def _end_process(self, now: float) -> None:
        if not self.ends_process or self._writes(now):
            return
        codes: list[int] = []
        # Whatever the main thread holds may hold this up too.
        words = threading.Thread(target=lambda: codes.append(self.last_words()), daemon=True)
        words.start()
        words.join(2.0)
        end_at_once(codes[0] if codes else 1)

    def _writes(self, now: float) -> bool:
        """Return whether a checkpoint is being written and gets on; the first time this is told."""
        written = self.written_bytes()
        if written is None:
            return False
        if self._written_bytes is None:
            self.say("The last checkpoint is still being written; the run ends once it is")
        if written != self._written_bytes:
            self._written_bytes, self._written_at = written, now
        return now < self._written_at + LAST_RESORT_SECONDS


class Signals:
    """Context in which the first of STOP_SIGNALS asks a run to stop, and the second ends it at once.

    In a process that is not ours the second is a KeyboardInterrupt, and `hand_over` is for the first once the run has ended.

    Args:
        watch: asked to stop.
        show: shows a line where the run's progress is; returns whether it could.
    """

    def __init__(self, watch: Watch, show: Callable[[str], bool]):
        self._watch, self._show = watch, show
        self._before: dict[int, Any] = {}
        self._count = 0
        self._last_at = 0.0
        self.saved = False
        """Whether all is saved, so that the next signal skips what is left to do."""
        self.skips = False
        """Whether a signal came after that."""

    @property
    def heard(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._count > 0

    def __enter__(self) -> Signals:
        """Take the signals over; they can only be taken by the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
            # Where the main thread does not come to its handlers.
            self._watch.listen(STOP_SIGNALS, self._answer)
            if self._before[signal.SIGHUP] == signal.SIG_IGN:  # by nohup
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        if self._before:
            self._watch.stop_listening()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self, cause: str) -> None:
        """Ask the run to stop as the first signal does; nothing happens if it was asked before.

        Args:
            cause: who asks, for `summary.json`.
        """
        if self._count == 0:
            self._last_at = time.monotonic()
            self._ask(cause)

    def _on_signal(self, number: int, _frame: object) -> None:
        if not self._watch.heard(number):
            self._answer(number)

    def _answer(self, number: int) -> None:
        now = time.monotonic()
        # A terminal that is closed says so more than once: the kernel, its shell, and whoever else waits for it.
        hangs_up = number == signal.SIGHUP
        if self._count and (hangs_up or now - self._last_at < REPEAT_SECONDS):
            return
        self._last_at = now
        if self._count and self.saved and not self.skips:
            self.skips = True
            return
        if self._count:
            tell(f"gossamer: {ENDED_AT_ONCE}")
            if self._watch.ends_process:
                end_at_once(128 + number)
            self._watch.quit()
            return
        self._watch.stopped_by = number
        self._ask(signal.Signals(number).name)

    def _ask(self, cause: str) -> None:
        self._count += 1
        self._watch.ask(Exit("stopped", cause))
        stopping = STOPPING.format(self._watch.bound)
        if not self._show(stopping):
            tell(f"gossamer: {stopping}")


def hand_over(number: int) -> None:
    """Let a signal do what it would have done without a run that heard it; 0: there was none."""
    handler = signal.getsignal(number) if number else signal.SIG_IGN
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        signal.raise_signal(signal.Signals(number))


def _pipe_without_waiting() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def at_work() -> str:
    """Say which environment of this process is at what; empty: none."""
    return next((text for sign in all_signs() if (text := sign.words())), "")


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
