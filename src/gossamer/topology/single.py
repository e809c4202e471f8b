"""Independent learners, and plain training with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gossamer.topology import graphs
from gossamer.topology.base import FOREVER, RunPolicy, Topology

if TYPE_CHECKING:
    from gossamer.topology.graphs import Weights


@dataclass(frozen=True)
class Single(Topology):
    """Independent learners; with one learner, plain training."""

    name: ClassVar[str] = "single"
    staleness: ClassVar[int] = FOREVER
    talks: ClassVar[bool] = False
    run_policy: ClassVar[RunPolicy] = "best"

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return the identity: all weight on oneself."""
        return (graphs.uniform(((),) * num_learners),)
