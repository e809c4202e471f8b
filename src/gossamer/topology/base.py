"""How learners mix: a topology is a mixing matrix, and `blend` applies one learner's row of it.

L is the number of learners; ranks are 0 .. L - 1.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from gossamer.errors import ConfigError
from gossamer.system.importing import RAISED, failed
from gossamer.topology import graphs
from gossamer.types import Named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from gossamer.topology.graphs import Graph, Weights


RunPolicy = Literal["first", "average", "best"]
"""Whose policy is the run's: learner 0's, everyone's average, or that of the best learner."""


FOREVER = 1 << 62
"""An update that no run reaches."""
_ATTRIBUTES = {
    "run_policy": ("first", "average", "best"),
    "on_death": ("replace", "restart_group"),
    "mixes": ("parameters", "gradients"),
    "every": ("updates", "versions"),
}
"""Class attributes of a topology, with the values that each may have."""


@dataclass(frozen=True)
class Topology(Named):
    """Rows of a mixing matrix over L learners, update by update."""

    name: ClassVar[str] = ""
    default_kind: ClassVar[str] = "single"
    """The topology that is meant if none is named."""
    mixes: ClassVar[Literal["parameters", "gradients"]] = "parameters"
    """What a message holds; gradients are mixed before the optimizer steps, parameters after."""
    every: ClassVar[Literal["updates", "versions"]] = "updates"
    """Whether learners mix after every update or once a version. What follows calls an update what they mix after."""
    staleness: ClassVar[int] = 0
    """Updates by which a message may trail its reader before the reader waits; FOREVER: it never does."""
    talks: ClassVar[bool] = True
    """Whether learners hear of each other at all."""
    run_policy: ClassVar[RunPolicy] = "average"
    on_death: ClassVar[Literal["replace", "restart_group"]] = "replace"
    """What happens when a learner dies: a new one takes over while the others go on, or all return to the last
    checkpoint."""
    missing: ClassVar[str] = "reweight"
    mix_optimizer: ClassVar[bool] = False
    remix: ClassVar[bool] = False

    @classmethod
    def refuse_part(cls) -> str:
        """Return what a class of the user's lacks to be a topology; empty: nothing."""
        if cls.turns is Topology.turns:
            return "has no method turns(self, num_learners, seed), which returns the matrices that updates take in turn"
        return ""

    def lr_factor(self, num_learners: int) -> float:
        """Return the factor on everyone's learning rate for L learners."""
        return 1.0

    def turns(self, num_learners: int, seed: int) -> tuple[Weights, ...]:
        """Return the matrices that updates take in turn, row by row; most topologies have one.

        Raises:
            ConfigError: the graph does not fit so many learners.
        """
        raise NotImplementedError

    def check(self, num_learners: int, seed: int, own: str | None = None) -> None:
        """Refuse a graph that does not fit so many learners, and what is no average of a class of the user's.

        Args:
            num_learners: L.
            seed: the run's.
            own: the name of the user's class; None for one of ours.

        Raises:
            ConfigError: one line that names the class, or the setting.
        """
        if own is None:
            self.turns(num_learners, seed)
            return
        for mistake in self._mistakes(num_learners, seed, own):
            raise ConfigError(f"{own}: {mistake}")

    def _mistakes(self, num_learners: int, seed: int, own: str) -> Iterator[str]:
        for attribute, allowed in _ATTRIBUTES.items():
            if (value := getattr(self, attribute)) not in allowed:
                yield f"{attribute} is {value!r}; it must be one of {', '.join(allowed)}"
        if self.mixes == "gradients" and self.on_death != "restart_group":
            yield "on_death must be restart_group if gradients are mixed: no learner can go on alone when another dies"
        if self.mixes == "gradients" and self.every != "updates":
            yield "every must be updates if gradients are mixed: each is followed once they are"
        if self.mixes == "gradients" and self.staleness:
            yield "max_staleness must be 0 if gradients are mixed: everyone follows the average of the same update"
        if num_learners == 1:
            return
        try:
            turns = self.turns(num_learners, seed)
        except ConfigError:
            raise
        except RAISED as error:
            raise failed(own, "fails in turns", error) from error
        rows, sums = list[dict[int, float]](), list[float]()
        with suppress(TypeError, ValueError):
            rows = [dict(row) for matrix in turns for row in matrix]
            sums = [float(sum(row.values())) for row in rows]
        if not sums or any(len(matrix) != num_learners for matrix in turns):
            yield f"turns must return one or more matrices with a row {{rank: weight}} for each of {num_learners} learners"
        for i, (row, total) in enumerate(zip(rows, sums, strict=True)):
            at = i % num_learners
            if not set(row) <= set(range(num_learners)):
                yield f"row {at} names learner {max(row)}; there are learners 0 to {num_learners - 1}"
            if not abs(total - 1.0) <= 1e-6 or min(row.values()) < 0.0:
                yield f"row {at} sums to {total:g}; weights must be >= 0, and sum to 1"

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

    def sources(self, rank: int, num_learners: int, seed: int) -> frozenset[int]:
        """Return whom else learner `rank` ever hears."""
        turns = _turns(self, num_learners, seed)
        return frozenset().union(*(matrix[rank] for matrix in turns)) - {rank}

    def is_alone(self, rank: int, num_learners: int, seed: int) -> bool:
        """Return whether learner `rank` never hears anyone, nor is heard."""
        is_heard = any(graph[rank] for graph in _readers(self, num_learners, seed))
        return not is_heard and not self.sources(rank, num_learners, seed)

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


def blend(
    row: Mapping[int, float],
    rank: int,
    message: Callable[[int], list[Tensor] | None],
    mixed: list[Tensor],
) -> None:
    """Write the average of learners' messages by a row of weights into `mixed`.

    The only place where learners' numbers meet, but for the averages of nccl and gloo (`links/collective.py`). A missing message gives its weight back to oneself, so
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
