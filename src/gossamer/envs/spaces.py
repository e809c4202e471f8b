"""Gymnasium spaces <-> what policies see: uint8 pixels [C, H, W] or a float32 vector, and ActionSpec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gossamer.errors import ConfigError
from gossamer.types import ActionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gossamer.types import EnvSpec

SMALLEST_IMAGE = 36
"""Smaller uint8 arrays are grids of symbols, not pictures; the Nature network needs 36 too."""
MAX_CHANNELS = 32
"""The axis of an image that is at most this long, and shorter than the others, holds the channels."""

_WRAP_HINT = (
    "wrap the environment (gymnasium.wrappers.FlattenObservation turns Dict and Tuple into Box) in a "
    "function of your own and train 'module:function'"
)


Layout = Literal["reshape", "channels_first", "one_hot"]
"""How an observation becomes a policy's: the same numbers in another shape, an image whose channels come first, or
each whole number as so many zeros and a one."""


@dataclass(frozen=True, slots=True)
class ObsFormat:
    """How one environment's observations are written into a batch."""

    shape: tuple[int, ...]
    kind: Literal["pixels", "vector"]
    write: Callable[[NDArray[Any], int, Any], None]
    """write(batch [N, *shape], i, obs) stores an observation as row i."""
    layout: Layout
    """What it does, in a word."""

    @property
    def dtype(self) -> type[np.generic]:
        """uint8 for pixels, float32 for vectors."""
        return np.uint8 if self.kind == "pixels" else np.float32

    def empty(self, num_envs: int) -> NDArray[Any]:
        """Allocate a batch [N, *shape]."""
        return np.empty((num_envs, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class ActionFormat:
    """How a batch of a policy's actions becomes what an environment takes."""

    spec: ActionSpec
    decode: Callable[[NDArray[Any]], Any]
    """decode(actions [N, *action_shape]) -> one action per environment, iterable."""


def obs_format(env_id: str, space: Any) -> ObsFormat:
    """Choose the format of an observation space; refuse those a network cannot take."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return _box_format(env_id, space)
    if isinstance(space, spaces.Discrete):
        size, start = int(space.n), int(space.start)

        def write_one_hot(batch: NDArray[Any], i: int, obs: Any) -> None:
            index = int(obs) - start
            if not 0 <= index < size:
                raise ValueError(f"an observation is {obs}, outside {space}")
            batch[i] = 0
            batch[i, index] = 1

        return ObsFormat((size,), "vector", write_one_hot, "one_hot")
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec, np.int64).ravel()
        start = np.asarray(space.start, np.int64).ravel()
        shift = np.cumsum(sizes) - sizes

        def write_one_hots(batch: NDArray[Any], i: int, obs: Any) -> None:
            index = np.asarray(obs).ravel() - start
            if ((index < 0) | (index >= sizes)).any():
                raise ValueError(f"an observation is {obs}, outside {space}")
            batch[i] = 0
            batch[i, index + shift] = 1

        return ObsFormat((int(sizes.sum()),), "vector", write_one_hots, "one_hot")
    if isinstance(space, spaces.MultiBinary):
        return ObsFormat((int(np.prod(space.shape)),), "vector", _write_flat, "reshape")
    raise _refused(env_id, "observation", space, "Box, Discrete, MultiDiscrete and MultiBinary")


def _box_format(env_id: str, space: Any) -> ObsFormat:
    shape = tuple(int(n) for n in space.shape)
    if space.dtype == np.uint8 and len(shape) == 2 and min(shape) >= SMALLEST_IMAGE:
        return ObsFormat((1, *shape), "pixels", _write, "reshape")
    if space.dtype == np.uint8 and len(shape) == 3:
        rows, columns, channels = shape
        if channels <= MAX_CHANNELS and min(rows, columns) >= SMALLEST_IMAGE:
            return ObsFormat(
                (channels, rows, columns), "pixels", _write_channels_first, "channels_first"
            )
        if rows <= MAX_CHANNELS and min(columns, channels) >= SMALLEST_IMAGE:
            return ObsFormat(shape, "pixels", _write, "reshape")
    size = int(np.prod(shape))
    if size == 0 or (space.dtype == np.uint8 and len(shape) > 3):
        raise _refused(env_id, "observation", space, "Box images [H, W, C], [C, H, W] and vectors")
    if np.issubdtype(space.dtype, np.complexfloating):
        raise _refused(env_id, "observation", space, "Box of real numbers")
    write = _write if len(shape) == 1 else _write_flat
    return ObsFormat((size,), "vector", write, "reshape")


def _write(batch: NDArray[Any], i: int, obs: Any) -> None:
    batch[i] = obs


def _write_flat(batch: NDArray[Any], i: int, obs: Any) -> None:
    batch[i] = np.asarray(obs).ravel()


def _write_channels_first(batch: NDArray[Any], i: int, obs: Any) -> None:
    batch[i] = np.asarray(obs).transpose(2, 0, 1)


def action_format(env_id: str, space: Any) -> ActionFormat:
    """Choose the format of an action space; refuse those no distribution of ours covers."""
    from gymnasium import spaces

    shape = tuple(int(n) for n in space.shape or ())
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        spec = ActionSpec("categorical", (int(space.n),))
        return ActionFormat(spec, _same if start == 0 else lambda action: action + start)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in np.asarray(space.nvec).ravel())
        starts, dtype = np.asarray(space.start).ravel(), space.dtype

        def to_choices(action: NDArray[Any]) -> NDArray[Any]:
            return (action + starts).astype(dtype).reshape(len(action), *shape)

        return ActionFormat(ActionSpec("multi_categorical", sizes), to_choices)
    if isinstance(space, spaces.MultiBinary):
        dtype = space.dtype
        return ActionFormat(
            ActionSpec("bernoulli", (int(np.prod(shape)),)),
            lambda action: action.astype(dtype).reshape(len(action), *shape),
        )
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = np.asarray(space.low).ravel(), np.asarray(space.high).ravel()
        if low.size:
            dtype = space.dtype
            spec = ActionSpec(
                "gaussian", (low.size,), tuple(map(float, low)), tuple(map(float, high))
            )

            def to_box(action: NDArray[Any]) -> NDArray[Any]:
                return np.clip(action, low, high).astype(dtype).reshape(len(action), *shape)

            return ActionFormat(spec, to_box)
    raise _refused(
        env_id, "action", space, "Discrete, MultiDiscrete, MultiBinary and Box of real numbers"
    )


def _same(action: NDArray[Any]) -> NDArray[Any]:
    return action


def _refused(env_id: str, which: str, space: Any, allowed: str) -> ConfigError:
    text = " ".join(str(space).split())
    text = text if len(text) <= 120 else text[:117] + "..."
    return ConfigError(
        f"{env_id} has an {which} space that is not supported, {text}; supported are {allowed}; "
        f"{_WRAP_HINT}"
    )


def check_actions(action: NDArray[Any], num_envs: int, spec: EnvSpec) -> None:
    """Raise ValueError unless actions have the right shape, dtype and range; native code trusts us."""
    kind, sizes = spec.action.kind, spec.action.sizes
    shape = (num_envs, *spec.action.shape)
    if action.shape != shape:
        raise ValueError(f"actions for {spec.env_id} have shape {action.shape}, expected {shape}")
    if kind == "gaussian":
        if action.dtype.kind != "f":
            raise ValueError(f"actions for {spec.env_id} are {action.dtype}, expected float32")
        if not np.isfinite(action).all():
            raise ValueError(f"actions for {spec.env_id} are not all finite numbers")
        return
    if action.dtype.kind not in "iu":
        raise ValueError(f"actions for {spec.env_id} are {action.dtype}, expected int64")
    limit = np.asarray(sizes) if kind == "multi_categorical" else sizes[0]
    if kind == "bernoulli":
        limit = 2
    if (action < 0).any() or (action >= limit).any():
        raise ValueError(
            f"an action for {spec.env_id} lies outside its range: least {action.min()}, largest "
            f"{action.max()}, allowed 0 to {np.max(limit) - 1}"
        )
