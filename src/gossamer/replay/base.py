"""What a batch is made of: replays with fractions that sum to 1, and the mix that samples them.

Storage, choice and pace are three parts. Of the replays only the queue (use once) is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gossamer.types import ConfigError, online_batch

if TYPE_CHECKING:
    from gossamer.links import TrajectoryQueue
    from gossamer.types import Batch, Trajectory


@dataclass(frozen=True)
class QueueSettings:
    """Each trajectory is used once, in the order it arrives; a full queue holds the actors back."""

    name: ClassVar[str] = "queue"

    fraction: float = 1.0
    """Share of a batch's columns, in (0, 1]; the fractions of all replays sum to 1."""
    capacity: int = 1
    """Trajectories that may wait beyond the one being learnt, >= 1; binds at lag free."""


class Replay(Protocol):
    """A source of columns that keeps what it was given."""

    def add(self, trajectory: Trajectory) -> None:
        """Store every column of an online trajectory."""
        ...

    def ready(self, num_columns: int) -> bool:
        """Whether `num_columns` can be sampled."""
        ...

    def sample(self, num_columns: int) -> Batch:
        """Return columns to learn from."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...


class ReplayMix:
    """Batches from a queue of online trajectories and any replays beside it."""

    def __init__(self, queue: TrajectoryQueue, settings: tuple[QueueSettings, ...]):
        if abs(sum(s.fraction for s in settings) - 1.0) > 1e-9:
            raise ConfigError(
                f"replays: fractions sum to {sum(s.fraction for s in settings):g}; they must sum to 1: "
                '--replays \'[{"name": "queue", "fraction": 1.0}]\''
            )
        self._queue = queue
        self._held: Trajectory | None = None

    def sample(self) -> Batch:
        """Wait for the next batch; its online columns stay in their slot until `release`."""
        assert self._held is None, "release the previous batch first"
        self._held = self._queue.get()
        return online_batch(self._held)

    def release(self) -> None:
        """Give the batch's online slot back to the actors."""
        if self._held is not None:
            self._queue.release(self._held)
            self._held = None

    def state_dict(self) -> dict[str, Any]:
        """State of the replays; the queue's trajectories are saved by the launcher."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        assert not state, state
