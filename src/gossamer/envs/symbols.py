"""MiniGrid's images: whole numbers that name what lies on each tile, which are no brightness of anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from gossamer.envs.spaces import dict_of

TILE_SIZES = (11, 6, 4)
"""Values of each tile's object, colour and state; a state is that of a door, or where an agent looks."""


class Symbols(spaces.MultiDiscrete):
    """Whole numbers of few values each, which policies see as zeros and ones, normalised as numbers of a vector are.

    What is rare, a key among a hundred tiles of floor, weighs more than what is always there; numbers of a MultiDiscrete
    are not normalised.
    """


def with_symbols(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return MiniGrid's space of observations, whose image [H, W, 3] is one of symbols; others as they are."""
    held = dict_of(space)
    image = held.get("image")
    if not isinstance(image, spaces.Box) or image.shape[2:] != (len(TILE_SIZES),):
        return space
    sizes = np.broadcast_to(np.array(TILE_SIZES), image.shape)
    kind: Any = np.uint8
    held["image"] = Symbols(sizes, dtype=kind)
    return spaces.Dict([*held.items()])
