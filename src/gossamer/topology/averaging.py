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
    """Mixings by which a neighbour's message may be behind before the learner waits, >= 0. 0: lock-step. never: no
    waiting. GALA's sync-freq."""
    every: Literal["updates", "versions"] = "updates"  # pyright: ignore[reportIncompatibleVariableOverride]
    """When learners mix. updates: after every update. versions: after a batch's last update, which sends fewer
    messages."""
    missing: Literal["reweight", "skip"] = "reweight"  # pyright: ignore[reportIncompatibleVariableOverride]
    """How a learner mixes if a neighbour has sent no new message. reweight: add the neighbour's weight to the learner's
    own. skip: do not average until all neighbours have sent one (GALA as published)."""
    remix: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Mix a neighbour's last message again until a newer one arrives; a slow or dead neighbour then slows down the
    others' learning."""
    mix_optimizer: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Average the optimizer's running statistics too, with the same weights as the parameters."""

    @property
    def staleness(self) -> int:  # type: ignore[override]
        """Return `max_staleness` as a number."""
        return FOREVER if self.max_staleness == "never" else self.max_staleness
