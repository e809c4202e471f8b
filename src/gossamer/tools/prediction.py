"""How fast a run would be on a number of cores, reckoned from what one core does: a prediction, not a measurement.

A step costs time of a core for stepping, for inference, and for every pass of learning. A learner that overlaps acting and
learning is as fast as the slowest of three: its learner's threads, its acting, and all of its cores together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gossamer.config.cores import Row

OVERLAP = 0.9
"""Share that is left where threads of several roles share the cores of a process; measured on two cores."""
MIXING = 0.97
"""Share that is left where learners gossip; four of them on two cores kept 0.968 and 0.982."""
UNDIVIDED = 0.9
"""Share of learning a minibatch that several threads do not divide, since they meet after each. Fitted to one measurement: on 16
cores, 8 threads with parts of 32 rows were no faster than one with the whole."""
LEAST_KEPT = 0.3
"""Least share of its speed that a core is taken to keep beside others. Assumed."""


@dataclass(frozen=True)
class Rates:
    """What one core of a machine does, in env steps per second, while the others rest."""

    stepping: float
    inference: float
    learning: float
    kept: float
    """Share of its speed that each core keeps while all work at once, for they share caches and memory."""
    cores: int
    """Cores with which that was measured."""

    def beside(self, busy: int) -> float:
        """Return the share of its speed that a core keeps while so many work at once, along a line through what is known."""
        if self.cores < 2:
            return 1.0
        return max(1.0 - (1.0 - self.kept) * (busy - 1) / (self.cores - 1), LEAST_KEPT)


def predicted(rates: Rates, row: Row, learners: int, *, passes: float = 1.0) -> float:
    """Return the env steps per second of learners that share the cores of a machine equally.

    Args:
        rates: of the machine.
        row: threads and groups of one learner with its share of the cores.
        learners: how many.
        passes: over each batch.
    """
    kept = rates.beside(learners * row.cores)
    step, infer, learn = 1 / rates.stepping, 1 / rates.inference, passes / rates.learning
    together = kept * row.cores / (step + infer + learn)
    if row.cores == 1:
        return learners * together * (MIXING if learners > 1 else 1.0)
    divided = row.learner_threads / (1 + UNDIVIDED * (row.learner_threads - 1))
    learning = kept * divided / learn
    parts = infer / row.actor_threads, step / row.env_threads
    acting = kept / (sum(parts) if row.env_groups == 1 else max(parts))
    alone = OVERLAP * min(together, learning, acting)
    return learners * alone * (MIXING if learners > 1 else 1.0)
