"""Feature layers of a grid of symbols, as MiniGrid's: what lies on a tile is told alike wherever the tile is.

Shapes: N rows, K tiles, V zeros and ones of a tile, F features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.policies.layers import linear
from gossamer.policies.torsos import MLP

if TYPE_CHECKING:
    from gossamer.policies.settings import PolicyConfig
    from gossamer.spec import Leaf


def shares_tiles(leaf: Leaf, config: PolicyConfig) -> bool:
    """Whether `Tiles` are the layers of a leaf for which the settings choose none.

    Without a core an MLP alone was as quick on MiniGrid-DoorKey-5x5-v0, or quicker.
    """
    usual = config.torso == "auto" and config.core != "none"
    return bool(leaf.tiles and config.tile_size) and usual


class Tiles(nn.Module):
    """A layer that all tiles share, before an MLP over all of them, and a second one for what lies anywhere.

    An MLP alone learns a key on each tile apart: on MiniGrid-MemoryS11-v0 it finds the cue at four of eight places and
    needs hundreds of thousands of env steps for each of the others.

    Args:
        leaf: a grid.
        config: the network's settings.
        generator: of initial weights; None: torch's own.
    """

    def __init__(self, leaf: Leaf, config: PolicyConfig, generator: torch.Generator | None = None):
        super().__init__()
        size, values = config.tile_size, leaf.shape[0] // leaf.tiles
        self._tiles = (leaf.tiles, values)
        self.each = linear(values, size, math.sqrt(2.0), generator)
        self.anywhere = linear(values, 2 * size, math.sqrt(2.0), generator)
        self.mlp = MLP(leaf.tiles * size, config.hidden_sizes, config.activation, generator)
        self.feature_size = self.mlp.feature_size + 2 * size

    def forward(self, x: Tensor) -> Tensor:
        """[N, K V] -> [N, F]."""
        tiles = x.unflatten(1, self._tiles)
        largest = F.relu(self.anywhere(tiles).amax(1))
        return torch.cat((self.mlp(F.relu(self.each(tiles))), largest), dim=1)
