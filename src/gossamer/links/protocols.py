"""The links that join roles, as protocols: a queue of trajectories, and peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from gossamer.types import Trajectory


class TrajectoryQueue(Protocol):
    """Actors to learner, as the learner sees it; bounded: a full queue holds the actors back."""

    def get(self) -> Trajectory:
        """Wait for the oldest written slot."""
        ...

    def release(self, trajectory: Trajectory) -> None:
        """Give a learnt slot back to the actors."""
        ...


Message = tuple["Tensor", "Tensor"]
"""The float32 and the float64 numbers of one learner after an update."""


class Peers(Protocol):
    """A learner's link to the others of its run, which is all that a mixer knows of them.

    Of every learner the last two messages are kept. Waits end when the awaited learner has left, and raise `Stopped`
    and `RunFailed` as all waits do.
    """

    rank: int
    """This learner's."""
    num_learners: int
    sizes: tuple[int, int]
    """float32 and float64 numbers of a message."""
    waited_seconds: float
    """Time spent waiting for others, over all calls."""

    def messages_of(self, peer: int) -> Sequence[Message]:
        """Return where the two messages of a learner lie; of others they may be overwritten at any time."""
        ...

    def posting(self, update: int) -> AbstractContextManager[int]:
        """Return a context in which this learner writes its message of `update`; it gives which of the two to write."""
        ...

    def posted(self) -> list[int]:
        """Return the updates of this learner's messages, the oldest first; of one that died here too."""
        ...

    def newest(self, peer: int, updates: range) -> int | None:
        """Return the update of the newest message of `peer` among `updates`, None without one; never waits."""
        ...

    def read(self, peer: int, updates: range, into: Sequence[Tensor]) -> int | None:
        """Copy that message; return its update, None without one; never waits."""
        ...

    def place_of(self, peer: int, update: int) -> int:
        """Return which of two the message of `update` is; its writer must be known to wait before it overwrites that."""
        ...

    def wait_posted(self, peer: int, updates: range) -> int | None:
        """Wait for a message of `peer` among `updates`; return its update, None if it left without."""
        ...

    def wait_combined(self, peer: int, update: int) -> None:
        """Wait until `peer` has finished mixing `update`."""
        ...

    def set_combined(self, update: int) -> None:
        """Tell that the mixing of `update` is finished; writers may overwrite what was read for it."""
        ...

    def newest_known(self, *, others: bool = True) -> int:
        """Return the last update that one who died mixed or posted here, or `others` have mixed; -1 without one."""
        ...

    def has_left(self, peer: int, update: int) -> bool:
        """Whether a learner is gone, or back only from a later update on."""
        ...

    def begin(self, update: int) -> None:
        """Take part from `update` on."""
        ...

    def join_running_group(self, heard: Iterable[int]) -> int:
        """Join a group that runs in lock-step, at an update that nobody has mixed yet; return it.

        Args:
            heard: learners whose messages this one waits for.
        """
        ...

    def report(self, env_steps: int) -> None:
        """Tell how many env steps this learner has learnt from."""
        ...

    def total_env_steps(self) -> int:
        """Return the sum of what all learners have reported."""
        ...

    def announce(self, update: int, env_steps: int) -> None:
        """Tell how many env steps will be behind the end of the version that begins with `update`."""
        ...

    def wait_announced(self, peer: int, update: int) -> int:
        """Wait for what `peer` announces of the version that begins with `update`; return the env steps."""
        ...
