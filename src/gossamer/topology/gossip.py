"""Gossip over a directed graph, by default without waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from msgspec import Meta

from gossamer.errors import ConfigError
from gossamer.system.ranges import Whole
from gossamer.topology import graphs
from gossamer.topology.averaging import Averaging

if TYPE_CHECKING:
    from gossamer.topology.graphs import Weights


@dataclass(frozen=True)
class Gossip(Averaging):
    """Learners average parameters over a directed graph without waiting (GALA, Assran et al. 2019, algorithm 1)."""

    name: ClassVar[str] = "gossip"

    graph: str = "ring"
    """The peers that a learner averages with. ring: the learner before it. exponential: the learners 1, 2, 4, ...
    places before it. complete: all learners. rotating: a single learner per update, in turn the one 1, 2, 4, ... places
    before it. Or a matrix, written out or in a file (JSON, or rows of numbers separated by blanks or commas): row r has
    1 for each peer of learner r, or the weights themselves."""
    num_peers: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Number of peers of each learner, >= 0 and < num_learners. 0: 1 for ring and rotating, otherwise all peers of
    the graph."""
    max_staleness: Whole | Literal["never"] = "never"
    """Mixings by which a neighbour's message may be behind before the learner waits, >= 0. 0: lock-step. never: no
    waiting. GALA's sync-freq."""

    def written_out(self) -> Self:
        """Return the same topology with a matrix in place of a file that holds it."""
        graph = graphs.written_out(self.graph, graphs.DIRECTED, "topology.graph")
        return replace(self, graph=graph)

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return equal weights for oneself and those heard, or the matrix that was given."""
        if self.graph not in graphs.DIRECTED:
            if self.num_peers:
                raise ConfigError(
                    f"topology.num_peers is {self.num_peers}, but topology.graph is a matrix, which "
                    "already says who hears whom; leave num_peers out"
                )
            return (graphs.given_weights(self.graph, num_learners),)
        taken = graphs.directed(self.graph, num_learners, self.num_peers)
        return tuple(graphs.uniform(graph) for graph in taken)
