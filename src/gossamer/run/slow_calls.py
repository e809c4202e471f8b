"""Environments of this process that take long over one call."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gossamer.system.signs_of_life import (
    CONSTRUCTOR,
    START_SECONDS,
    TIMES_THE_LONGEST,
    all_signs,
    given_up,
)

if TYPE_CHECKING:
    from gossamer.errors import RunFailed
    from gossamer.system.signs_of_life import Sign

SLOW_SECONDS = 30.0
"""An environment that takes as long over one call is named, and again whenever it has taken twice as long."""
MARGIN_SECONDS = 2.0
"""Those who wait for an environment give up first, as they know for what."""


@dataclass
class _Seen:
    count: int
    silent_seconds: float = 0.0
    longest: float = 0.0
    next_notice: float = field(default_factory=lambda: SLOW_SECONDS)


class SlowCalls:
    """Tells which environments of this process, of those that are made from now on, take long over one call.

    Those of an earlier run that was given up may be in one for ever; those of a run that waits for this one are looked at
    there.

    Args:
        patience_seconds: one that takes longer is stuck, as `Patience` has it; 0: none is.
    """

    def __init__(self, patience_seconds: float):
        self._patience_seconds = patience_seconds
        self._others = weakref.WeakSet(all_signs())
        self._seen: weakref.WeakKeyDictionary[Sign, _Seen] = weakref.WeakKeyDictionary()

    def look(self, seconds: float) -> tuple[list[str], RunFailed | None]:
        """Return lines about those that take long, and an error about one that is stuck.

        Args:
            seconds: since the last look.
        """
        lines: dict[str, None] = {}
        failure: RunFailed | None = None
        for sign in all_signs():
            if sign in self._others:
                continue
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
            if self._patience_seconds and seen.silent_seconds >= bound + MARGIN_SECONDS:
                failure = given_up(sign.which, seen.silent_seconds, f"it is in {sign.doing}")
        return list(lines), failure


def at_work(form: str) -> str:
    """Say which environment of this process is at what, in a form such as " ({})"; empty: none."""
    words = next((text for sign in all_signs() if (text := sign.words())), "")
    return form.format(words) if words else ""
