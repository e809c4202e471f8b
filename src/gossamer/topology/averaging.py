"""What gossip and diffusion have in common: parameters are averaged message by message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.system.ranges import Whole
from gossamer.topology.base import FOREVER, Topology


@dataclass(frozen=True)
class Averaging(Topology):
    """Parameters are averaged with those of some neighbours, message by message."""

    max_staleness: Whole | Literal["never"] = 0
    """Number of mixings that a neighbour's message may be behind before the learner waits, >= 0. 0:
    lock-step. never: no waiting. GALA calls it sync-freq."""
    every: Literal["updates", "versions"] = "updates"  # pyright: ignore[reportIncompatibleVariableOverride]
    """When learners mix: after every update, or once a version, after the last update on a batch, which sends
    less where a batch is learnt in several minibatches or passes."""
    missing: Literal["reweight", "skip"] = "reweight"  # pyright: ignore[reportIncompatibleVariableOverride]
    """When a neighbour has sent nothing new. reweight: add its weight to the learner's own. skip: do not
    average until every neighbour has sent something new (GALA as published)."""
    remix: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Use a neighbour's last message again until a newer one arrives; a neighbour that is slow or gone then
    holds the others back."""
    mix_optimizer: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Average the optimizer's running statistics with the same weights too."""

    @property
    def staleness(self) -> int:  # type: ignore[override]
        """Return `max_staleness` as a number."""
        return FOREVER if self.max_staleness == "never" else self.max_staleness
