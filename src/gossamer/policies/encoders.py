"""Feature layers of observations that hold several arrays: a stream for the numbers, and one for each image.

Shapes: N rows, F features, k numbers of a discrete leaf.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.policies.layers import linear
from gossamer.policies.torsos import MLP, make_torso

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.policies.settings import PolicyConfig
    from gossamer.types import Leaf

JOIN_SIZE = 256
"""Units of the layer in which several streams meet, where no recurrent core does that: heads are linear."""
MOST_ONE_HOT = 64
"""Values of a discrete leaf that are told as zeros and a one; of more, each number has an embedding."""
EMBEDDING_SIZE = 32


class Encoders(nn.Module):
    """Layers for each leaf, and what joins them.

    Vectors and discrete leaves are one stream, side by side in the order of the space, through one MLP: a Dict of
    vectors is what its `FlattenObservation` would be. Masks are not seen.

    Args:
        leaves: of the environment.
        config: the network's settings.
        generator: of initial weights; None: torch's own.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        config: PolicyConfig,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        numbers = [x for x in leaves if x.kind in ("vector", "discrete")]
        # Names such as "type" or "keys" are taken in a ModuleDict.
        self.embeddings = nn.ModuleDict(
            {f"/{x.name}": _Embedding(x, generator) for x in numbers if _is_embedded(x)}
        )
        self.numbers = [x.name for x in numbers]
        self._one_hot = {x.name: x for x in numbers if x.kind == "discrete" and not _is_embedded(x)}
        size = sum(map(_encoded_size, numbers))
        self.mlp = None
        if numbers:
            self.mlp = MLP(size, config.hidden_sizes, config.activation, generator)
        images = [x for x in leaves if x.kind == "pixels"]
        self.images = nn.ModuleDict(
            {f"/{x.name}": make_torso(config, x.shape, generator) for x in images}
        )
        streams = [*([] if self.mlp is None else [self.mlp]), *self.images.values()]
        size = sum(int(x.feature_size) for x in streams)  # type: ignore[arg-type]
        self.join = None
        if len(streams) > 1 and config.core == "none":
            self.join = linear(size, JOIN_SIZE, math.sqrt(2.0), generator)
            size = JOIN_SIZE
        self.feature_size = size

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return features [N, F] of normalised observations {leaf: [N, ...]}."""
        streams: list[Tensor] = []
        if self.mlp is not None:
            parts = [self._encode(name, obs[name]) for name in self.numbers]
            streams.append(self.mlp(torch.cat(parts, dim=1)))
        streams += [torso(obs[name[1:]]) for name, torso in self.images.items()]
        if len(streams) == 1:
            return streams[0]
        joined = torch.cat(streams, dim=1)
        return joined if self.join is None else F.relu(self.join(joined))

    def _encode(self, name: str, x: Tensor) -> Tensor:
        if f"/{name}" in self.embeddings:
            return self.embeddings[f"/{name}"](x)
        leaf = self._one_hot.get(name)
        if leaf is None:
            return x
        weight = next(
            self.parameters(), None
        )  # in the precision of inference, where the policy only acts
        return one_hot(x, leaf.sizes, torch.float32 if weight is None else weight.dtype)


def one_hot(x: Tensor, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return whole numbers [N, k] as so many zeros and a one each, [N, sum(sizes)]."""
    found = x.new_zeros((len(x), sum(sizes)), dtype=dtype)
    return found.scatter(1, x + x.new_tensor(_offsets(sizes)), 1.0)


class _Embedding(nn.Module):
    """A vector for each value of each number."""

    def __init__(self, leaf: Leaf, generator: torch.Generator | None):
        super().__init__()
        size = (sum(leaf.sizes), EMBEDDING_SIZE)
        self.weight = nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float32))
        self._sizes = leaf.sizes

    def forward(self, x: Tensor) -> Tensor:
        """[N, k] -> [N, k * EMBEDDING_SIZE]."""
        return F.embedding(x + x.new_tensor(_offsets(self._sizes)), self.weight).flatten(1)


def _is_embedded(leaf: Leaf) -> bool:
    return leaf.kind == "discrete" and sum(leaf.sizes) > MOST_ONE_HOT


def _encoded_size(leaf: Leaf) -> int:
    if leaf.kind == "vector":
        return leaf.shape[0]
    return len(leaf.sizes) * EMBEDDING_SIZE if _is_embedded(leaf) else sum(leaf.sizes)


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
