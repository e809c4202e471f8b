"""How learners mix: a topology is a mixing matrix, and `blend` applies one learner's row of it.

L is the number of learners; ranks are 0 .. L - 1.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from gossamer import graphs
from gossamer.types import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from gossamer.graphs import Graph, Weights

FOREVER = 1 << 62
"""An update that no run reaches."""


@dataclass(frozen=True)
class Topology:
    """Rows of a mixing matrix over L learners, update by update."""

    name: ClassVar[str] = ""
    mixes: ClassVar[Literal["parameters", "gradients"]] = "parameters"
    """What a message holds; gradients are mixed before the optimizer steps, parameters after."""
    staleness: ClassVar[int] = 0
    """Updates by which a message may trail its reader before the reader waits; FOREVER: it never does."""
    talks: ClassVar[bool] = True
    """Whether learners hear of each other at all."""
    missing: ClassVar[str] = "reweight"
    mix_optimizer: ClassVar[bool] = False
    remix: ClassVar[bool] = False

    def lr_factor(self, num_learners: int) -> float:
        """Return the factor on everyone's learning rate for L learners."""
        return 1.0

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return the matrices that updates take in turn, row by row; most topologies have one.

        Raises:
            ConfigError: the graph does not fit so many learners.
        """
        raise NotImplementedError

    def written_out(self) -> Self:
        """Return the same topology with a matrix in place of a file that holds it."""
        return self

    def row(self, update: int, rank: int, num_learners: int, seed: int) -> Mapping[int, float]:
        """Return {peer: weight} for learner `rank` at `update`, itself included; they sum to 1."""
        turns = _turns(self, num_learners, seed)
        return turns[update % len(turns)][rank]

    def readers(self, update: int, rank: int, num_learners: int, seed: int) -> tuple[int, ...]:
        """Return who may hear what learner `rank` posts at `update`."""
        graphs_read = _readers(self, num_learners, seed)
        return graphs_read[update % len(graphs_read)][rank]

    def is_heard(self, rank: int, num_learners: int, seed: int) -> bool:
        """Return whether anyone ever hears learner `rank`."""
        return any(graph[rank] for graph in _readers(self, num_learners, seed))

    def acceptable(self, update: int) -> range:
        """Return the updates whose messages may be mixed at `update`.

        Readers wait for a message of the first of them or a later one; -1 is there from the beginning.
        """
        if self.staleness == FOREVER:
            return range(-1, FOREVER)
        if self.staleness:
            return range(max(update - self.staleness, 0), FOREVER)
        return range(update, update + 1)


@functools.cache
def _turns(topology: Topology, num_learners: int, seed: int) -> tuple[Weights, ...]:
    return topology.turns(num_learners, seed)


@functools.cache
def _readers(topology: Topology, num_learners: int, seed: int) -> tuple[Graph, ...]:
    return tuple(graphs.turned(weights) for weights in _turns(topology, num_learners, seed))


@dataclass(frozen=True)
class Single(Topology):
    """Independent learners; plain training with one learner."""

    name: ClassVar[str] = "single"
    staleness: ClassVar[int] = FOREVER
    talks: ClassVar[bool] = False

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return the identity: all weight on oneself."""
        return (graphs.uniform(((),) * num_learners),)


@dataclass(frozen=True)
class AllReduce(Topology):
    """All learners take the same step, from the mean gradient over the rows of all of them."""

    name: ClassVar[str] = "allreduce"
    mixes: ClassVar[Literal["parameters", "gradients"]] = "gradients"

    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Factor on the learning rate for L learners: 1, the root of L, or L."""
    transport: Literal["auto", "memory", "nccl", "gloo"] = "auto"
    """How gradients are exchanged. memory: through shared memory, summed in rank order as in the inline
    placement. nccl: between GPUs. gloo: over sockets. auto: nccl if each learner has its own GPU, else
    memory."""

    def lr_factor(self, num_learners: int) -> float:
        """Return the factor that `lr_scaling` asks for."""
        return num_learners ** {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.lr_scaling]

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return 1 / L everywhere: sums and row counts are averaged alike, their ratio is what counts."""
        return (graphs.uniform(graphs.undirected("complete", num_learners, 0, 0)),)


@dataclass(frozen=True)
class Averaging(Topology):
    """Parameters are averaged with those of some neighbours, message by message."""

    max_staleness: int | Literal["never"] = 0
    """Number of updates that a neighbour's message may be behind before the learner waits, >= 0. 0:
    lock-step. never: no waiting. GALA calls it sync-freq."""
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


@dataclass(frozen=True)
class Gossip(Averaging):
    """Learners average parameters over a directed graph without waiting (GALA, Assran et al. 2019, algorithm 1)."""

    name: ClassVar[str] = "gossip"

    graph: str = "ring"
    """Whom a learner hears: ring, exponential (1, 2, 4, ... before it), complete, rotating (one of
    those distances per update, in turn), or a matrix, written out or in a file (JSON, or rows of numbers
    with blanks or commas between): row r holds 1 where learner r hears a peer, or the weights themselves."""
    num_peers: int = 0
    """Peers each learner hears, >= 0 and < learners; 0: 1 for ring and rotating, otherwise all."""
    max_staleness: int | Literal["never"] = "never"
    """Number of updates that a neighbour's message may be behind before the learner waits, >= 0. 0:
    lock-step. never: no waiting. GALA calls it sync-freq."""

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


@dataclass(frozen=True)
class Diffusion(Averaging):
    """Learners take a step, then average parameters over an undirected graph (Diff-DAC, Valcarcel Macua et al. 2021)."""

    name: ClassVar[str] = "diffusion"

    adjacency: str = "ring"
    """The graph: ring, grid, star, complete, random-regular, erdos-renyi, or a symmetric matrix of 0
    and 1, written out ("[[0,1],[1,0]]") or in a file (JSON, or rows with blanks or commas between)."""
    degree: int = 3
    """Links per learner, >= 1: exactly for random-regular, on average for erdos-renyi."""
    weights: Literal["metropolis", "uniform"] = "metropolis"
    """metropolis keeps the average of all learners; uniform is 1 / (links + 1), as published."""
    link_drop: float = 0.0
    """Probability that a link is not used in an update, in [0, 1), drawn alike at both ends; each end keeps
    the link's weight for itself. Needs a numeric max_staleness."""

    def written_out(self) -> Self:
        """Return the same topology with a matrix in place of a file that holds it."""
        adjacency = graphs.written_out(self.adjacency, graphs.UNDIRECTED, "topology.adjacency")
        return replace(self, adjacency=adjacency)

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return the weights with every link up."""
        if self.link_drop and self.staleness == FOREVER:
            raise ConfigError(
                f"topology.link_drop is {self.link_drop:g} with max_staleness never, but both ends of a "
                "link must drop it at the same update; use --topology.max-staleness 0, or any number"
            )
        graph = graphs.undirected(self.adjacency, num_learners, self.degree, seed)
        return ((graphs.metropolis if self.weights == "metropolis" else graphs.uniform)(graph),)

    def row(self, update: int, rank: int, num_learners: int, seed: int) -> Mapping[int, float]:
        """Return the row of the update; the weight of a link that is down stays with the learner."""
        row = super().row(update, rank, num_learners, seed)
        if not self.link_drop:
            return row
        # Under staleness the ends of a link are at different updates; they agree on spans of that many.
        span = update // max(self.staleness, 1)
        kept = {
            peer: weight
            for peer, weight in row.items()
            if peer == rank or _draw(seed, min(peer, rank), max(peer, rank), span) >= self.link_drop
        }
        kept[rank] += sum(row[peer] for peer in row.keys() - kept.keys())
        return kept


def blend(
    row: Mapping[int, float],
    rank: int,
    message: Callable[[int], list[Tensor] | None],
    mixed: list[Tensor],
) -> None:
    """Write the average of learners' messages by a row of weights into `mixed`.

    The only place where learners' numbers meet. A missing message gives its weight back to oneself, so
    the result is always an average. Everyone sums in rank order, so that learners mixed with equal
    weights get equal bits.

    Args:
        row: {peer: weight}, its own included.
        rank: of the learner that mixes.
        message: returns a peer's message, good until the next call, or None; never None for `rank`.
        mixed: where the sums go; apart from every message.
    """
    import torch

    first, *others = sorted(row)
    torch._foreach_copy_(mixed, _heard(message, first, rank))
    torch._foreach_mul_(mixed, row[first])
    for peer in others:
        torch._foreach_add_(mixed, _heard(message, peer, rank), alpha=row[peer])


def _heard(message: Callable[[int], list[Tensor] | None], peer: int, rank: int) -> list[Tensor]:
    heard = message(peer)
    heard = message(rank) if heard is None else heard
    assert heard is not None
    return heard


def _draw(*key: int) -> float:
    """Return a number in [0, 1) that depends on the key alone."""
    text = " ".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64
