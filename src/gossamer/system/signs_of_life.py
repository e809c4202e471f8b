"""Signs of life: roles count what they do, so that whoever waits for one can tell slow from stuck.

Counting is an addition to a number that others look at now and then: no lock, no clock, no system call.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING

from gossamer.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

PATIENCE_SECONDS = 300.0
"""Longest silence of a role that others wait for, where no setting says otherwise."""
TIMES_THE_LONGEST = 10.0
"""A silence may last this many times as long as the longest that ended well."""
START_SECONDS = 300.0
"""Least patience with a role that begins: it imports, and compiles, before it can show anything."""
CONSTRUCTOR = "its constructor"
"""Name of what an environment is at while it is made."""
CLOSE = "close"
"""Name of what an environment is at while it is closed."""
GIVEN_UP = "; the run is given up as stuck"
_REGISTERED: weakref.WeakSet[Sign] = weakref.WeakSet()
_REGISTERING = threading.Lock()
_LOCAL = threading.local()


class Sign:
    """One role's signs of life, and what it is at that may take long. The role writes, anyone looks.

    Args:
        whose: in words, as a message begins with: "the actor".
        parts: others whose signs of life are this one's too.
    """

    def __init__(self, whose: str, parts: Iterable[Sign] = ()):
        self.whose = whose
        self.beats = 0
        """Env steps, micro-batches and whatever else has been done."""
        self.echoes = 0
        """Signs of life, seen from here, of someone in another process for whom this role waits."""
        self.doing = ""
        """What an environment was asked for and has not done yet: constructor, reset, step or close."""
        self.env = -1
        """Which environment that is, among those of the run; -1: all of them together."""
        self.parts = list(parts)
        self.unwanted: Callable[[], bool] = getattr(_LOCAL, "unwanted", lambda: False)
        """Whether nobody wants the environments any more that are being made, or begun."""
        if not getattr(_LOCAL, "alone", False):
            with _REGISTERING:
                _REGISTERED.add(self)

    def own(self) -> int:
        """Return how many signs of life there were in this process."""
        return self.beats + sum(part.own() for part in self.parts)

    def count(self) -> int:
        """Return how many signs of life there were, echoes among them."""
        return self.beats + self.echoes + sum(part.count() for part in self.parts)

    def words(self) -> str:
        """Say which environment is at what, "environment 3 is in step"; empty: none."""
        found = [text for part in self.parts if (text := part.words())]
        if found or not self.doing:
            return found[0] if found else ""
        return f"{self.which} is in {self.doing}"

    @property
    def which(self) -> str:
        """Name the environment that is at something."""
        return f"{self.whose} {self.env}" if self.env >= 0 else f"one of the {self.whose}s"


@contextlib.contextmanager
def unwatched() -> Generator[None]:
    """Context in which nobody looks at the signs that this thread makes."""
    _LOCAL.alone = True
    try:
        yield
    finally:
        _LOCAL.alone = False


@contextlib.contextmanager
def made_until(unwanted: Callable[[], bool]) -> Generator[None]:
    """Context in which environments that this thread makes, or begins, are given up between two once nobody wants them."""
    _LOCAL.unwanted = unwanted
    try:
        yield
    finally:
        del _LOCAL.unwanted


def all_signs() -> list[Sign]:
    """Return the signs of this process's roles and environments."""
    with _REGISTERING:
        return list(_REGISTERED)


class Patience:
    """How long someone is waited for who shows no sign of life.

    Args:
        seconds: longest silence, or ten times the longest so far, if that is longer; 0: any silence.
        whom: who is waited for, in words.
        count: their signs of life so far.
        words: what they are at, if it is known.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        seconds: float,
        whom: str,
        count: Callable[[], int],
        words: Callable[[], str] = lambda: "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.seconds, self.whom, self.count, self.words, self.clock = (
            seconds,
            whom,
            count,
            words,
            clock,
        )
        self.longest = 0.0
        """Longest silence that ended, among those seen while waiting."""

    @classmethod
    def with_sign(cls, sign: Sign, seconds: float) -> Patience:
        """Return the patience with whoever counts this sign."""
        return cls(seconds, sign.whose, sign.count, sign.words)

    @property
    def bound(self) -> float:
        """Longest silence that is borne now."""
        return max(self.seconds, TIMES_THE_LONGEST * self.longest) if self.seconds else float("inf")

    def wait(self, what: str) -> Wait:
        """Begin to wait for something. Only `Wait.look`, called again and again, notices that it takes too long."""
        return Wait(self, what)


class Wait:
    """One wait, from its first look on."""

    def __init__(self, patience: Patience, what: str):
        self._patience, self._what = patience, what
        self._seen = patience.count()
        self._last = patience.clock()
        self.silent_seconds = 0.0

    def look(self) -> bool:
        """Return whether there was a sign of life since the last look.

        Raises:
            RunFailed: there was none for too long.
        """
        patience = self._patience
        now, count = patience.clock(), patience.count()
        # A process that was suspended (Ctrl-Z) has not waited all that time.
        self.silent_seconds += min(now - self._last, 1.0)
        self._last = now
        if count != self._seen:
            patience.longest = max(patience.longest, self.silent_seconds)
            self._seen, self.silent_seconds = count, 0.0
            return True
        if self.silent_seconds >= patience.bound:
            raise given_up(patience.whom, self.silent_seconds, patience.words(), self._what)
        return False


def given_up(whom: str, seconds: float, words: str, what: str = "") -> RunFailed:
    """Return the error for someone who has shown no sign of life for too long."""
    waited = f" while {what} was waited for" if what else ""
    where = f": {words}" if words else ""
    return RunFailed(
        f"{whom} has shown no sign of life for {seconds:.0f} s{waited}{where}{GIVEN_UP}; if it is only "
        f"slow, resume it with --patience-seconds {2 * seconds:.0f}"
    )
