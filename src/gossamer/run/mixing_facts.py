"""Facts of how learners mix, as a run's folder holds them: for the user's line, and for whoever draws the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossamer.topology.graphs import contraction, expected, outer_contraction

if TYPE_CHECKING:
    from gossamer.config import TrainConfig

MAX_LINKS = 1 << 16
"""Most weights to write down: those of a complete graph of 256 learners."""
MAX_OUTER = 128
"""Most learners for which it is computed what an outer step does to their disagreement; it takes the cube of them."""


def mixing_facts(config: TrainConfig) -> dict[str, float]:
    """Return what a round of mixing does, as meta.json holds it; empty where parameters are not mixed."""
    topology, size = config.topology, config.num_learners
    if size == 1 or topology.run_policy != "average":
        return {}
    turns, drop = topology.turns(size, config.seed), getattr(topology, "link_drop", 0.0)
    means = tuple(expected(weights, drop) for weights in turns)
    left, optimizer = contraction(means), config.optimizer
    facts = {"contraction": left, "spectral_gap": 1.0 - left}
    if optimizer.has_outer_step and size <= MAX_OUTER:
        facts["outer_contraction"] = outer_contraction(
            means,
            config.algorithm.updates_per_batch if topology.every == "updates" else 1,
            optimizer.outer_momentum,
            optimizer.outer_rate,
            nesterov=optimizer.outer_nesterov,
            mixes_u=topology.mix_optimizer,
        )
    return facts


def mixing_rows(config: TrainConfig) -> dict[str, Any]:
    """Return who hears whom with which weight, as mixing.json holds it for whoever draws the graph.

    `turns` are the matrices that updates take in turn: a list for each learner, of pairs of rank and weight, its own
    included. Empty where learners do not mix, or there are more links than can be drawn.
    """
    topology, size = config.topology, config.num_learners
    if size == 1 or not topology.talks:
        return {}
    turns = topology.turns(size, config.seed)
    if sum(len(row) for weights in turns for row in weights) > MAX_LINKS:
        return {}
    return {"turns": [[[list(x) for x in row.items()] for row in weights] for weights in turns]}
