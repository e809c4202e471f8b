"""How learners mix: a topology is a mixing matrix, and `blend` applies one learner's row of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from gossamer.links import Peers


@dataclass(frozen=True)
class Topology:
    """Rows of a mixing matrix over the learners that are present."""

    name: ClassVar[str] = ""
    mixes: ClassVar[Literal["parameters", "gradients"]] = "parameters"
    """What a message holds; gradients are mixed before the optimizer steps, parameters after."""

    def row(self, update: int, rank: int, members: Sequence[int]) -> Mapping[int, float]:
        """Return {peer: weight} for learner `rank` at `update`; weights sum to 1, itself included."""
        raise NotImplementedError

    def acceptable(self, update: int) -> range:
        """Updates whose messages may be mixed at `update`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Single(Topology):
    """Learners that never talk; with one learner, plain training."""

    name: ClassVar[str] = "single"

    def row(self, update: int, rank: int, members: Sequence[int]) -> Mapping[int, float]:
        """Return the identity's row: all weight on oneself."""
        return {rank: 1.0}

    def acceptable(self, update: int) -> range:
        """Return the present update only; nobody is ever asked."""
        return range(update, update + 1)


def blend(own: Tensor, row: Mapping[int, float], peers: Peers, acceptable: range) -> Tensor:
    """Mix my vector with the neighbours' messages of acceptable updates, by my row of weights.

    A missing message gives its weight back to me, so the result is always an average. Everyone sums
    in rank order, so that learners mixed with equal weights get equal bits.
    """
    if set(row) == {peers.rank}:
        return own
    mixed = own.new_zeros(own.shape)
    for rank in sorted(row):
        message = own if rank == peers.rank else peers.read(rank, acceptable)
        mixed.add_(own if message is None else message, alpha=row[rank])
    return mixed
