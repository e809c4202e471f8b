"""The last training episodes of a run, and the mean returns that are told of them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from gossamer.system.ranges import Whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

WINDOW = 100
"""Episodes behind a mean return."""
WindowState = list[tuple[Whole, list[float], list[Whole]]]
"""By learner its rank, and the returns and lengths of its last episodes."""


class Window:
    """The last training episodes, of several learners as many of each: short ones come more often.

    One thread adds to it; any may ask.
    """

    def __init__(self, num_learners: int):
        self._size = num_learners
        self._own: dict[int, deque[tuple[float, int]]] = {}  # by learner
        self._absent: frozenset[int] = frozenset()
        self._lock = threading.Lock()

    def add(self, learner: int, episode_return: float, length: int) -> None:
        """Add an episode."""
        with self._lock:
            own = self._own.setdefault(learner, deque(maxlen=WINDOW))
            own.append((episode_return, length))

    def leave_out(self, absent: Iterable[int]) -> None:
        """Let the means be those of the other learners from now on; what these have told is kept.

        Args:
            absent: learners that have no place, not all.
        """
        self._absent = frozenset(absent)

    @property
    def _num_there(self) -> int:
        return self._size - len(self._absent)

    def _shares(self, episodes: int = WINDOW) -> dict[int, list[tuple[float, int]]]:
        """Return each learner's share of the last episodes, of those that are there and have finished one."""
        each, absent = -(-episodes // self._num_there), self._absent
        with self._lock:
            owns = self._own.items()
            return {rank: list(own)[-each:] for rank, own in owns if own and rank not in absent}

    def mean(self, episodes: int = WINDOW) -> float | None:
        """Mean return, of several learners the mean of theirs; None before the first episode.

        Args:
            episodes: how many of the last, at most 100.
        """
        means = [_mean_return(share) for share in self._shares(episodes).values()]
        return sum(means) / len(means) if means else None

    def mean_of(self, learner: int) -> float | None:
        """Mean return of a learner's own last 100 episodes; None before its first."""
        with self._lock:
            own = self._own.get(learner)
            return _mean_return(own) if own else None

    def shares(self) -> dict[int, float]:
        """Mean return of each learner's share of the last 100 episodes, whose mean `mean` is; of those that are there and have finished one."""
        return {rank: _mean_return(share) for rank, share in sorted(self._shares().items())}

    @property
    def full(self) -> bool:
        """Whether there are 100 episodes, or a learner's share of 100 of each that is there."""
        shares, each = self._shares().values(), -(-WINDOW // self._num_there)
        return len(shares) == self._num_there and all(len(share) == each for share in shares)

    def metrics(self) -> dict[str, float]:
        """Return what rows of metrics tell of the episodes; nothing before the first."""
        if (mean := self.mean()) is None:
            return {}
        last = [episode for share in self._shares().values() for episode in share]
        return {
            "return_mean_100": mean,
            "return_min_100": min(x for x, _ in last),
            "return_max_100": max(x for x, _ in last),
            "length_mean_100": sum(length for _, length in last) / len(last),
        }

    def state(self) -> WindowState:
        """Return every learner's rank, and its episodes' returns and lengths."""
        return [
            (rank, [x for x, _ in own], [length for _, length in own])
            for rank, own in sorted(self._own.items())
        ]

    def load(self, state: WindowState) -> None:
        """Continue from `state`."""
        self._own.clear()
        for rank, returns, lengths in state:
            self._own[rank] = deque(zip(returns, lengths, strict=True), maxlen=WINDOW)


def _mean_return(episodes: Collection[tuple[float, int]]) -> float:
    return sum(x for x, _ in episodes) / len(episodes)
