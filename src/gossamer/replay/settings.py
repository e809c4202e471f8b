"""Settings of what batches are made of: a queue, and replays that keep what was collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gossamer.replay.selectors.base import Selector
from gossamer.system.ranges import Count, Share


@dataclass(frozen=True)
class QueueSettings:
    """Each trajectory is used once, in order of arrival. Actors wait when the queue is full."""

    name: ClassVar[str] = "queue"

    fraction: Share = 1.0
    """Share of a batch's columns, in (0, 1]."""
    capacity: Count = 1
    """Trajectories that may wait in the queue, >= 1, besides the trajectory in training (with replays: the trajectory
    being stored). Has an effect only at lag free."""


ReplaySettings = QueueSettings | Selector
"""An entry of `replays`: the queue, or a replay of some kind."""
