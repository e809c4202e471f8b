"""MiniGrid's images: whole numbers that name what lies on each tile, which are no brightness of anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Env, ObservationWrapper, Wrapper, spaces
from gymnasium.wrappers import FilterObservation

from gossamer.envs.families import layers_of
from gossamer.envs.spaces import array_format, arrays_in, dict_of

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


def shown_with_symbols(env: Env[Any, Any]) -> Env[Any, Any]:
    """Return a MiniGrid environment with `with_symbols` of its space, itself unchanged; others as they are.

    Somebody's own task may have other symbols, and somebody's own observations be something else: they stay as their
    space says.
    """
    *wrappers, innermost = layers_of(env)
    if not _is_minigrids(type(innermost)) or any(map(_may_replace, wrappers)):
        return env
    image = dict_of(innermost.observation_space).get("image")
    if image is None or dict_of(env.observation_space).get("image") != image:
        return env
    shown: Wrapper[Any, Any, Any, Any] = Wrapper(env)
    shown.observation_space = with_symbols(env.observation_space)
    return shown


def tiles_in_numbers(env_id: str, env: Env[Any, Any]) -> str:
    """Return the line that tells which part of what looks like MiniGrid's is seen as plain numbers; empty: none is."""
    *_, innermost = layers_of(env)
    alike = dict_of(env.observation_space).keys() >= {"image", "mission"}
    if not alike and not any(map(_is_minigrids, type(innermost).__mro__)):
        return ""
    for keys, space in arrays_in(env_id, env.observation_space):
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            continue
        if space.shape[2:] == (len(TILE_SIZES),) and array_format(env_id, space).kind == "vector":
            return (
                f"{env_id} observes {'/'.join(map(str, keys)) or 'tiles'} as plain numbers, because it may have others than "
                f"MiniGrid's symbols; if it has those alone, give it the space gymnasium.spaces.MultiDiscrete("
                f"numpy.broadcast_to({list(TILE_SIZES)}, {space.shape}))"
            )
    return ""


def _is_minigrids(kind: type) -> bool:
    return kind.__module__.startswith("minigrid.")


def _may_replace(wrapper: Any) -> bool:
    """Whether a wrapper is there to observe something else, of which its space need not tell."""
    ours = isinstance(wrapper, FilterObservation) or _is_minigrids(type(wrapper))
    return isinstance(wrapper, ObservationWrapper) and not ours
