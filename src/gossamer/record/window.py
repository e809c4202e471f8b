"""The last training episodes of a run, and the mean returns that are told of them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gossamer.system.ranges import Whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

WINDOW = 100
"""Episodes behind a mean return."""


class OfLearner(NamedTuple):
    """The last episodes of a learner, as a checkpoint holds them."""

    rank: Whole
    returns: list[float]
    lengths: list[Whole]
    infos: list[dict[str, float]] = []
    """Older runs did not keep them."""


WindowState = list[OfLearner]


class _Ended(NamedTuple):
    earned: float
    length: int
    info: Mapping[str, float]


class Window:
    """The last training episodes, of several learners as many of each: short ones come more often.

    One thread adds to it; any may ask.
    """

    def __init__(self, num_learners: int):
        self._size = num_learners
        self._own: dict[int, deque[_Ended]] = {}  # by learner
        self._absent: frozenset[int] = frozenset()
        self._lock = threading.Lock()

    def add(
        self, learner: int, episode_return: float, length: int, info: Mapping[str, float] = {}
    ) -> None:
        """Add an episode, and what its environment tells of it."""
        with self._lock:
            own = self._own.setdefault(learner, deque(maxlen=WINDOW))
            own.append(_Ended(episode_return, length, info))

    def leave_out(self, absent: Iterable[int]) -> None:
        """Let the means be those of the other learners from now on; what these have told is kept.

        Args:
            absent: learners that have no place, not all.
        """
        self._absent = frozenset(absent)

    @property
    def _num_there(self) -> int:
        return self._size - len(self._absent)

    def _shares(self, episodes: int = WINDOW) -> dict[int, list[_Ended]]:
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
            "return_min_100": min(x.earned for x in last),
            "return_max_100": max(x.earned for x in last),
            "length_mean_100": sum(x.length for x in last) / len(last),
            **{f"info/{name}": x for name, x in means_by_name(x.info for x in last).items()},
        }

    def state(self) -> WindowState:
        """Return the last episodes of every learner."""
        return [
            OfLearner(
                rank,
                [x.earned for x in own],
                [x.length for x in own],
                [dict(x.info) for x in own] if any(x.info for x in own) else [],
            )
            for rank, own in sorted(self._own.items())
        ]

    def load(self, state: WindowState) -> None:
        """Continue from `state`."""
        self._own.clear()
        for x in state:
            infos = x.infos or [{}] * len(x.returns)
            ended = map(_Ended, x.returns, x.lengths, infos)
            self._own[x.rank] = deque(ended, maxlen=WINDOW)


def means_by_name(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number that environments tell of episodes; NaN says nothing."""
    told: dict[str, list[float]] = {}
    for info in infos:
        for name, x in info.items():
            if x == x:
                told.setdefault(name, []).append(x)
    return {name: sum(values) / len(values) for name, values in told.items()}


def _mean_return(episodes: Collection[_Ended]) -> float:
    return sum(x.earned for x in episodes) / len(episodes)
