"""Diffusion over an undirected graph."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from msgspec import Meta

from gossamer.errors import ConfigError
from gossamer.system.ranges import BelowOne
from gossamer.topology import graphs
from gossamer.topology.averaging import Averaging
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.topology.graphs import Weights


@dataclass(frozen=True)
class Diffusion(Averaging):
    """Learners take a step, then average parameters over an undirected graph (Diff-DAC, Valcarcel Macua et al. 2021)."""

    name: ClassVar[str] = "diffusion"

    adjacency: str = "ring"
    """The graph: ring, grid, star, complete, random-regular, erdos-renyi, or a symmetric matrix of
    0 and 1, written out ("[[0,1],[1,0]]") or in a file (JSON, or rows of numbers separated by
    blanks or commas)."""
    degree: Annotated[int, Meta(ge=1, le=65535)] = 3
    """Links per learner, >= 1: the exact number for random-regular, the mean for erdos-renyi."""
    weights: Literal["metropolis", "uniform"] = "metropolis"
    """metropolis: weights that keep the average of all learners unchanged. uniform: 1 / (links + 1), as published."""
    link_drop: BelowOne = 0.0
    """Probability that a link is not used in an update, in [0, 1). Both ends drop a link in the same update, and each
    end adds the link's weight to its own. Needs a max_staleness other than never."""

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


def _draw(*key: int) -> float:
    """Return a number in [0, 1) that depends on the key alone."""
    text = " ".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64
