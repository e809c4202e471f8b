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
from gossamer.policies.torsos import MLP, make_torso, needs_images

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.policies.settings import PolicyConfig
    from gossamer.spec import Leaf

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

    Raises:
        ConfigError: the network has convolutions, and there is no image.
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
        whole = [x for x in numbers if x.kind == "discrete"]
        self.discrete = nn.ModuleDict({f"/{x.name}": _discrete(x, generator) for x in whole})
        self.numbers = [x.name for x in numbers]
        size = sum(map(_encoded_size, numbers))
        self.mlp = None
        if numbers:
            self.mlp = MLP(size, config.hidden_sizes, config.activation, generator)
        images = [x for x in leaves if x.kind == "pixels"]
        if not images and config.torso not in ("auto", "mlp"):
            raise needs_images(config.torso, ", ".join(x.name for x in leaves))
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
        return self.discrete[f"/{name}"](x) if f"/{name}" in self.discrete else x


class OneHot(nn.Module):
    """Whole numbers as zeros and a one for each."""

    first: Tensor
    one: Tensor

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        self._size = sum(sizes)
        self.register_buffer("first", torch.tensor(_offsets(sizes)), persistent=False)
        # Of the layers that follow: where a policy only acts they have another precision.
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, k] -> [N, sum(sizes)]."""
        found = x.new_zeros((x.shape[0], self._size), dtype=self.one.dtype)
        return found.scatter(1, x + self.first, 1.0)


class Embedding(nn.Module):
    """A vector for each value of each number."""

    first: Tensor

    def __init__(self, sizes: Sequence[int], generator: torch.Generator | None):
        super().__init__()
        drawn = torch.randn((sum(sizes), EMBEDDING_SIZE), generator=generator, dtype=torch.float32)
        self.weight = nn.Parameter(drawn)
        self.register_buffer("first", torch.tensor(_offsets(sizes)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, k] -> [N, k * EMBEDDING_SIZE]."""
        return F.embedding(x + self.first, self.weight).flatten(1)


def _discrete(leaf: Leaf, generator: torch.Generator | None) -> nn.Module:
    return Embedding(leaf.sizes, generator) if _is_embedded(leaf) else OneHot(leaf.sizes)


def _is_embedded(leaf: Leaf) -> bool:
    return leaf.kind == "discrete" and sum(leaf.sizes) > MOST_ONE_HOT


def _encoded_size(leaf: Leaf) -> int:
    if leaf.kind == "vector":
        return leaf.shape[0]
    return len(leaf.sizes) * EMBEDDING_SIZE if _is_embedded(leaf) else sum(leaf.sizes)


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
