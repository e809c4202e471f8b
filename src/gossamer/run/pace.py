"""How fast a run learns: env steps a second, without what comes before its first update and after its last."""

from __future__ import annotations

import time


class Pace:
    """Env steps behind the first update, and the seconds since then, over all sessions."""

    def __init__(self) -> None:
        self._before: tuple[float, float] = (0, 0.0)  # steps and seconds of earlier sessions
        self._first: tuple[float, int] | None = None
        self._last: float | None = None  # when the last version was learnt; closing down is no pace

    def on_version(self, env_steps: int, *, last: bool = False) -> None:
        """Record that every learner has learnt a batch: the pace counts from the first on, to the last."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, env_steps)
        if last:
            self._last = now

    def totals(self, env_steps: int) -> tuple[int, float]:
        """Return the steps and the seconds so far; `env_steps`: of the run."""
        if self._first is None:
            return int(self._before[0]), self._before[1]
        began, first = self._first
        now = self._last if self._last is not None else time.monotonic()
        return int(self._before[0]) + env_steps - first, self._before[1] + now - began

    def per_second(self, env_steps: int) -> float | None:
        """Return env steps a second; None before the first update."""
        steps, seconds = self.totals(env_steps)
        return steps / seconds if seconds > 0 and steps > 0 else None

    def load(self, totals: tuple[float, float]) -> None:
        """Continue from the totals of earlier sessions."""
        self._before, self._first, self._last = totals, None, None
