"""A thread beside what plays environments: what takes long is named, and what is to end does so in a bounded time."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gossamer.machine import STOP_SIGNALS
from gossamer.record.exits import Exit
from gossamer.run.stopping import Overdue, Stop, end_at_once, tell
from gossamer.system.signals import Signals
from gossamer.system.signs import CONSTRUCTOR, START_SECONDS, TIMES_THE_LONGEST, all_signs, given_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from gossamer.errors import RunFailed
    from gossamer.system.signs import Sign

LOOK_SECONDS = 0.25
"""Pause between two looks."""
SLOW_SECONDS = 30.0
"""An environment that takes as long over one call is named, and again whenever it has taken twice as long."""
ANNOUNCE_SECONDS = 2.0
"""An end that takes longer is announced, unless somebody was told when it was asked for."""
RAISE_SECONDS = 2.0
"""After a deadline: what does not end by itself until then is interrupted."""
LAST_RESORT_SECONDS = 6.0
"""After a deadline: the process ends, whatever it is at."""
STOPPING = (
    "Saving a checkpoint, then stopping, within {} s. Press Ctrl-C again to quit without saving."
)
ENDED_AT_ONCE = "Ended without saving. The run can be resumed from its last checkpoint."


@dataclass
class _Seen:
    count: int
    silent_seconds: float = 0.0
    longest: float = 0.0
    next_notice: float = field(default_factory=lambda: SLOW_SECONDS)


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


def at_work() -> str:
    """Say which environment of this process is at what; empty: none."""
    return next((text for sign in all_signs() if (text := sign.words())), "")


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

    def seconds(self) -> float:
        """Return the seconds that count for a limit of time."""
        return 0.0

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


class Watch:
    """The thread, from before environments are made to the end.

    Args:
        patience_seconds: for environments.
        watched: what is watched; another may take its place.
        stop: kept by this: what has not ended by its deadline is interrupted.
        stop_after: seconds of what is watched at which it is asked to end; 0: never.
        last_resort: end the process if nothing else helps; it is not ours where we are a library.
    """

    def __init__(
        self,
        patience_seconds: float,
        watched: Watched,
        stop: Stop,
        *,
        stop_after: float = 0.0,
        last_resort: bool = False,
    ):
        self.watched, self.stop = watched, stop
        self._stop_after, self._ends_process = stop_after, last_resort
        self._slow = SlowCalls(patience_seconds)
        self._announced_at = math.inf  # the request that the user has been told of
        self._left = False  # whether the deadline has passed, and it was told to leave
        self._written_bytes: int | None = None
        self._written_at = -math.inf
        self._closed = threading.Event()
        self._signals: Signals | None = None
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

    @contextlib.contextmanager
    def hearing(
        self, answer: Callable[[int], object], numbers: Collection[int] = STOP_SIGNALS
    ) -> Generator[None]:
        """Context in which signals are answered, by this thread where the main thread does not come to it."""
        with Signals(answer, numbers) as self._signals:
            try:
                yield
            finally:
                self._signals = None

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
            if self._ends_process:
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

    def quit(self) -> None:
        """Raise KeyboardInterrupt in the main thread, wherever it is; nothing is saved."""
        self.stop.raised = None
        self._interrupt(KeyboardInterrupt())

    def _interrupt(self, error: Overdue | KeyboardInterrupt) -> None:
        """Raise in the main thread, wherever it is; sleeping and waiting for others end too."""
        if not self._in_main or self.stop.raised is not None:
            return
        self.stop.raised, self.stop.raised_at = error, time.monotonic()
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGURG)

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
            if (signals := self._signals) is not None:
                signals.hear()
            lines, failure = self._slow.look(passed)
            for line in lines:
                self.watched.say(line)
            if failure is not None:
                self._interrupt(Overdue(failure))
            limit = self._stop_after if self.stop.exit is None else 0.0
            if limit and self.watched.seconds() >= limit:
                self.stop.ask(Exit("done", "stop_after_seconds"))
            self._keep(now)

    def _keep(self, now: float) -> None:
        """See to it that what was asked to end does."""
        stop, watched = self.stop, self.watched
        if stop.asked_at not in (math.inf, self._announced_at) and (
            now >= stop.asked_at + ANNOUNCE_SECONDS
        ):
            self._announced_at = stop.asked_at
            words = at_work()
            watched.say(f"stopping, within {self._bound} s" + f"; {words}" * bool(words))
        if now < stop.deadline:
            if now >= stop.raised_at + LAST_RESORT_SECONDS:
                self._end_process(now)
            return
        if not self._left:
            self._left = True
            watched.leave()
        if now >= stop.deadline + RAISE_SECONDS and not stop.is_saving:
            self._interrupt(Overdue())
        if now >= stop.deadline + 2 * watched.save_seconds() + LAST_RESORT_SECONDS:
            self._end_process(now)

    def _end_process(self, now: float) -> None:
        if not self._ends_process or self._writes(now):
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
