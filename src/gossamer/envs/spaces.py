"""Gymnasium spaces <-> what policies see: leaves of observations, and ActionSpec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from gossamer.errors import ConfigError
from gossamer.spec import DTYPES, EXACT_BELOW, ActionSpec, Leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gossamer.spec import EnvSpec, LeafKind

SMALLEST_IMAGE = 36
"""Smaller uint8 arrays are grids of symbols, not pictures; the Nature network needs 36 too."""
MOST_CHOICES = 65_536
"""Values that all whole numbers of an action have together, of which each has a logit."""
MOST_TOLD = 8
"""Whole numbers of an observation that an error shows; of more it names one."""
MAX_CHANNELS = 32
"""The axis of an image that is at most this long, and shorter than the others, holds the channels."""

_WRAP_HINT = (
    "wrap the environment (gymnasium.wrappers.TransformObservation makes another space of it) in a "
    "function of your own and train 'module:function'"
)


Layout = Literal["reshape", "channels_first", "frames_channels_first", "one_hot", "from_zero"]
"""How an observation becomes a policy's: the same numbers in another shape; an image, or several, whose channels come
first; each whole number as so many zeros and a one; or the same whole numbers, of which the first is 0."""

_AXES: Mapping[Layout, tuple[int, ...]] = {
    "channels_first": (2, 0, 1),
    "frames_channels_first": (0, 3, 1, 2),
}
"""Where the axes of images come from."""


@dataclass(frozen=True, slots=True)
class ObsFormat:
    """How one environment's observations are written into a batch."""

    shape: tuple[int, ...]
    kind: LeafKind
    write: Callable[[NDArray[Any], int, Any], None]
    """write(batch [N, *shape], i, obs) stores an observation as row i; Misfit: its space has no such one."""
    layout: Layout
    """What it does, in a word."""
    declared: tuple[int, ...]
    """Shape of an observation as the environment returns it."""
    sizes: tuple[int, ...] = ()
    """Of discrete numbers: how many values each has."""
    tiles: int = 0
    """Tiles of a grid of symbols; 0: it is none."""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What the policy sees."""
        return (Leaf("", self.kind, self.shape, self.sizes, tiles=self.tiles),)

    @property
    def words(self) -> tuple[str, ...]:
        """What is observed, in words, as the environment returns it."""
        if self.layout in ("one_hot", "from_zero") and not self.declared:
            return (f"one of {(self.sizes or self.shape)[0]}",)
        what = "number"
        if self.kind == "pixels":
            what = "pixel"
        elif self.layout == "one_hot" and len(self.declared) > 1:
            what = "symbol"
        elif self.layout in ("one_hot", "from_zero"):
            what = "whole number"
        size = "x".join(map(str, self.declared)) or "1"
        return (f"{size} {what}{'s' * (size != '1')}",)

    def empty(self, num_envs: int) -> NDArray[Any]:
        """Allocate a batch [N, *shape]."""
        return np.empty((num_envs, *self.shape), DTYPES[self.kind])

    def count(self, obs: Any) -> int | None:
        """Return how many environments' observations these are; None: it is one observation alone.

        Raises:
            Misfit: neither.
        """
        shape = np.shape(obs)
        if shape == self.declared:
            return None
        if shape[1:] == self.declared:
            return shape[0]
        # As training takes it: of a vector the number of entries counts alone.
        if self.kind != "pixels" and math.prod(shape) == math.prod(self.declared):
            return None
        several = ", ".join(["B", *map(str, self.declared)])
        raise Misfit(
            f"obs has shape {shape}; the environment's have {self.declared}, those of B environments ({several})"
        )

    def batch(self, obs: NDArray[Any], space: Any) -> NDArray[Any]:
        """Return observations [N, ...] of this space, of a simulator that keeps to it, as a batch [N, *shape], at once.

        Misfit: a whole number is none of its space.
        """
        num_envs = len(obs)
        if self.layout in ("one_hot", "from_zero"):
            sizes, start = _numbers_of(space)
            index = obs.reshape(num_envs, -1).astype(np.int64, copy=False) - start
            if (wrong := (index < 0) | (index >= sizes)).any():
                raise Misfit(f"it is {obs[wrong.any(axis=1).argmax()]}, outside {space}")
            if self.layout == "from_zero":
                return index
            batch = np.zeros((num_envs, *self.shape), np.float32)
            np.put_along_axis(batch, index + np.cumsum(sizes) - sizes, 1.0, axis=1)
            return batch
        if (axes := _AXES.get(self.layout)) is not None:
            obs = obs.transpose(0, *(axis + 1 for axis in axes))
        return np.ascontiguousarray(obs.reshape(num_envs, *self.shape), DTYPES[self.kind])

    def write_all(self, batch: NDArray[Any], obs: Any) -> None:
        """Store observations [N, ...] as all rows; Misfit: as of `write`."""
        for i, row in enumerate(obs):
            self.write(batch, i, row)


@dataclass(frozen=True, slots=True)
class NestedFormat:
    """How observations that hold several arrays, by key or by index, are written into batches, one for each array."""

    parts: Mapping[str, tuple[tuple[Any, ...], ObsFormat]]
    """By leaf: the keys that lead to it, and its format."""
    left_out: tuple[str, ...] = ()
    """What no network can take, in words."""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What the policy sees, in the space's order."""
        return tuple(replace(form.leaves[0], name=name) for name, (_, form) in self.parts.items())

    @property
    def words(self) -> tuple[str, ...]:
        """What is observed, in words, array by array."""
        return tuple(f"{name} ({form.words[0]})" for name, (_, form) in self.parts.items())

    def empty(self, num_envs: int) -> dict[str, NDArray[Any]]:
        """Allocate batches [N, *shape]."""
        return {name: form.empty(num_envs) for name, (_, form) in self.parts.items()}

    def write(self, batch: Mapping[str, NDArray[Any]], i: int, obs: Any) -> None:
        """Store an observation as row i; Misfit: its space has no such one."""
        for name, (keys, form) in self.parts.items():
            try:
                form.write(batch[name], i, _below(obs, keys))
            except Misfit as error:
                raise Misfit(f"its {name}: {error}") from None

    def count(self, obs: Any) -> int | None:
        """Return what `ObsFormat.count` does, by the first array; None too where one has the shape of one observation.

        A lone number in an array, [1], may be that of one observation, as training takes it, or those of one environment.
        """
        found: list[int | None] = []
        for name, (keys, form) in self.parts.items():
            try:
                one = _below(obs, keys)
                if np.shape(one) == form.declared:
                    return None
                found = found or [form.count(one)]
            except Misfit as error:
                raise Misfit(f"its {name}: {error}") from None
        return found[0]

    def write_all(self, batch: Mapping[str, NDArray[Any]], obs: Any) -> None:
        """Store observations of N environments, each array [N, ...], as all rows; Misfit: as of `write`."""
        for name, (keys, form) in self.parts.items():
            rows, wanted = _below(obs, keys), len(batch[name])
            if (shape := np.shape(rows))[:1] != (wanted,):
                raise Misfit(
                    f"its {name} has shape {shape}, and others are of {wanted} environments"
                )
            try:
                form.write_all(batch[name], rows)
            except Misfit as error:
                raise Misfit(f"its {name}: {error}") from None


def space_at(held: Any, keys: Iterable[Any]) -> Any:
    """Return what keys lead to, of a space or of an observation."""
    for key in keys:
        held = held[key]
    return held


def _below(obs: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError):
            raise Misfit(f"there is no {key!r} in it") from None
    return obs


class Misfit(ValueError):
    """An observation is none of its space; the message says what came and what was declared."""


class _Declared:
    """What a space declares of its observations; every one is compared with it.

    A lone number would be repeated for every entry of a row, and a real number cut off in a picture.

    Args:
        space: of observations.
        exact: the shape has to be the same, and not only the number of entries, as of vectors.
    """

    def __init__(self, space: Any, *, exact: bool):
        self.shape = tuple(int(n) for n in space.shape)
        self._exact, self._size = exact, int(np.prod(self.shape))
        self._dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.usual = self._dtype
        """The type that came last and loses nothing."""

    def array(self, obs: Any) -> NDArray[Any]:
        """Return an observation as an array of the declared size, whose numbers the declared type can hold."""
        if not isinstance(obs, np.ndarray):
            obs = _as_array(obs)
        if obs.shape != self.shape and (self._exact or obs.size != self._size):
            raise Misfit(f"it has shape {obs.shape}, declared is {self.shape}")
        if obs.dtype is not self.usual:
            self._compare(obs)
        return obs

    def _compare(self, obs: NDArray[Any]) -> None:
        # A larger whole number would come back as another one where a picture is written.
        safely = "safe" if self._exact and obs.dtype.kind in "iu" else "same_kind"
        if np.can_cast(obs.dtype, self._dtype, safely):
            self.usual = obs.dtype
            return
        if obs.dtype.kind in "iu" and self._dtype.kind in "iub":
            least, most = (0, 1) if self._dtype.kind == "b" else _range(self._dtype)
            if not obs.size or (least <= obs.min() and obs.max() <= most):
                return
            raise Misfit(
                f"it holds numbers from {obs.min()} to {obs.max()}, declared is {self._dtype}"
            )
        raise Misfit(f"it is {obs.dtype}, declared is {self._dtype}")


def _as_array(obs: Any) -> NDArray[Any]:
    try:
        return np.asarray(obs)
    except ValueError:  # lists of different lengths
        raise Misfit(f"it is a {type(obs).__name__}, and no array can be made of it") from None


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    held = np.iinfo(dtype)
    return int(held.min), int(held.max)


@dataclass(frozen=True, slots=True)
class ActionFormat:
    """How a batch of a policy's actions becomes what an environment takes."""

    spec: ActionSpec
    decode: Callable[[NDArray[Any]], Any]
    """decode(actions [N, *action_shape]) -> one action per environment, in a sequence."""
    batch: Callable[[NDArray[Any]], Any] | None = None
    """The same, as a batch of the space: of a Dict or Tuple, arrays [N, ...]; None: what `decode` returns is one."""


def dict_of(space: Any) -> dict[str, Any]:
    """Return the spaces of a Dict by key; nothing of other spaces."""
    from gymnasium import spaces

    return dict(space.spaces) if isinstance(space, spaces.Dict) else {}


def obs_format(env_id: str, space: Any, *, without: str = "") -> ObsFormat | NestedFormat:
    """Choose the format of an observation space; refuse those a network cannot take.

    Args:
        env_id: of the environment.
        space: of its observations.
        without: key of a Dict that is no part of what is observed.
    """
    from gymnasium import spaces

    if without and without in (held := dict_of(space)):
        del held[without]
        # Sorted again by Gymnasium where it made the order.
        space = spaces.Dict(list(held.items()))
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _nested_format(env_id, space)
    return array_format(env_id, space)


def array_format(env_id: str, space: Any) -> ObsFormat:
    """Choose the format of observations that are one array."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return _box_format(env_id, space)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _one_hot_format(space, *_numbers_of(space))
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return _format(space, (size,), "vector", "reshape")
    raise _refused(env_id, "observation", space, "Box, Discrete, MultiDiscrete and MultiBinary")


def _nested_format(env_id: str, space: Any) -> NestedFormat:
    """Choose the formats of what a Dict or Tuple holds; leave out what no network can take."""
    parts: dict[str, tuple[tuple[Any, ...], ObsFormat]] = {}
    left_out: list[str] = []
    for keys, one in _arrays_in(env_id, space, ()):
        name = "/".join(map(str, keys))
        try:
            parts[name] = keys, _part_format(env_id, one)
        except ConfigError:
            left_out.append(f"{name} ({type(one).__name__})")
    if not parts:
        raise _refused(env_id, "observation", space, "Dict and Tuple that hold an array")
    folded: dict[str, str] = {}
    for name in parts:
        other = folded.setdefault(name.replace("-", "_"), name)
        if other != name:
            raise ConfigError(
                f"{env_id} observes {other!r} and {name!r}, which settings could not tell apart; {_WRAP_HINT}"
            )
    return NestedFormat(parts, tuple(left_out))


def _part_format(env_id: str, space: Any) -> ObsFormat:
    """Choose the format of one array beside others, where whole numbers stay what they are."""
    from gymnasium import spaces

    from gossamer.envs.symbols import Symbols

    whole = isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    if whole and not isinstance(space, Symbols):
        return _discrete_format(space, *_numbers_of(space))
    return array_format(env_id, space)


def arrays_in(env_id: str, space: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the spaces of what is observed that are no Dict or Tuple, and the keys that lead to them."""
    return _arrays_in(env_id, space, ())


def _arrays_in(
    env_id: str, space: Any, above: tuple[Any, ...], does: Literal["observes", "takes"] = "observes"
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the spaces that are no Dict or Tuple, and the keys that lead to them; `does` is for messages."""
    from gymnasium import spaces

    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield above, space
        return
    held = cast("Mapping[Any, Any] | Sequence[Any]", space.spaces)
    if does == "takes" and not held:
        part = "/".join(map(str, above))
        raise _refused(env_id, "action", space, "Dict and Tuple that hold an action", part)
    for key, one in held.items() if isinstance(held, Mapping) else enumerate(held):
        if isinstance(space, spaces.Dict) and (
            not isinstance(key, str) or not key or set(key) & set("/.")
        ):
            raise ConfigError(
                f"{env_id} {does} {key!r}; keys must be words without '/' and '.'; {_WRAP_HINT}"
            )
        yield from _arrays_in(env_id, one, (*above, key), does)


def _numbers_of(space: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how many values each number of a Discrete or MultiDiscrete has, and the first of them.

    As int64 whatever the space's type is: of an unsigned one, sums with signed numbers are real numbers.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return np.array([space.n], np.int64), np.array([space.start], np.int64)
    return space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)


def _discrete_format(space: Any, sizes: NDArray[Any], start: NDArray[Any]) -> ObsFormat:
    declared = _Declared(space, exact=False)

    def write(batch: NDArray[Any], i: int, obs: Any) -> None:
        index = declared.array(obs).reshape(-1).astype(np.int64, copy=False) - start
        if ((index < 0) | (index >= sizes)).any():
            raise _outside(space, obs, index, sizes, start)
        batch[i] = index

    numbers = tuple(int(n) for n in sizes)
    return ObsFormat((len(sizes),), "discrete", write, "from_zero", declared.shape, numbers)


def _one_hot_format(space: Any, sizes: NDArray[Any], start: NDArray[Any]) -> ObsFormat:
    declared, shift = _Declared(space, exact=False), np.cumsum(sizes) - sizes

    def write(batch: NDArray[Any], i: int, obs: Any) -> None:
        index = declared.array(obs).reshape(-1).astype(np.int64, copy=False) - start
        if ((index < 0) | (index >= sizes)).any():
            raise _outside(space, obs, index, sizes, start)
        batch[i] = 0
        batch[i, index + shift] = 1

    tiles = _tiles(sizes.reshape(declared.shape))
    return ObsFormat((int(sizes.sum()),), "vector", write, "one_hot", declared.shape, tiles=tiles)


def _tiles(sizes: NDArray[Any]) -> int:
    """Return the tiles of a grid whose numbers have so many values [H, W, numbers of a tile]; 0 where it is none."""
    if sizes.ndim != 3 or (sizes != sizes[0, 0]).any():
        return 0
    return sizes.shape[0] * sizes.shape[1]


def _outside(
    space: Any, obs: Any, index: NDArray[Any], sizes: NDArray[Any], start: NDArray[Any]
) -> Misfit:
    """Return the error of whole numbers that a space does not have; of many the first that is wrong is named."""
    from gossamer.envs.symbols import Symbols

    if len(sizes) <= MOST_TOLD:
        return Misfit(f"it is {obs}, outside {space}")
    wrong = int(((index < 0) | (index >= sizes)).argmax())
    first, size = int(start[wrong]), int(sizes[wrong])
    own = "; an image of other numbers than MiniGrid's symbols needs a space of its own"
    return Misfit(
        f"entry {wrong} of {len(sizes)} is {int(index[wrong]) + first}, allowed is {first} to {first + size - 1}"
        + own * isinstance(space, Symbols)
    )


def _box_format(env_id: str, space: Any) -> ObsFormat:
    shape = tuple(int(n) for n in space.shape)
    if space.dtype == np.uint8 and len(shape) == 2 and min(shape) >= SMALLEST_IMAGE:
        return _format(space, (1, *shape), "pixels", "reshape")
    if space.dtype == np.uint8 and len(shape) == 3:
        rows, columns, channels = shape
        if channels <= MAX_CHANNELS and min(rows, columns) >= SMALLEST_IMAGE:
            return _format(space, (channels, rows, columns), "pixels", "channels_first")
        if rows <= MAX_CHANNELS and min(columns, channels) >= SMALLEST_IMAGE:
            return _format(space, shape, "pixels", "reshape")
    if space.dtype == np.uint8 and len(shape) == 4:
        frames, rows, columns, channels = shape
        if frames * channels <= MAX_CHANNELS and min(rows, columns) >= SMALLEST_IMAGE:
            return frames_format(space)
        if frames * rows <= MAX_CHANNELS and min(columns, channels) >= SMALLEST_IMAGE:
            return _format(space, (frames * rows, columns, channels), "pixels", "reshape")
    size = int(np.prod(shape))
    if size == 0 or (space.dtype == np.uint8 and len(shape) > 3):
        raise _refused(
            env_id,
            "observation",
            space,
            "Box images [H, W, C], [C, H, W], stacks of these and vectors",
        )
    if np.issubdtype(space.dtype, np.complexfloating):
        raise _refused(env_id, "observation", space, "Box of real numbers")
    return _format(space, (size,), "vector", "reshape")


def frames_format(space: Any) -> ObsFormat:
    """Return the format of a stack of colour frames [K, H, W, 3], which policies see as [3 K, H, W]."""
    frames, rows, columns, channels = space.shape
    return _format(space, (frames * channels, rows, columns), "pixels", "frames_channels_first")


def _format(
    space: Any, shape: tuple[int, ...], kind: Literal["pixels", "vector"], layout: Layout
) -> ObsFormat:
    """Return the format of a space whose numbers are written as they are, in another shape."""
    declared = _Declared(space, exact=kind == "pixels")
    axes = _AXES.get(layout)
    # The numbers of a vector may come in the policy's shape; a picture may not be turned.
    usual = declared.shape if kind == "pixels" else shape
    as_it_is = axes is None and usual == shape

    def write(batch: NDArray[Any], i: int, obs: Any) -> None:
        try:  # the usual way first, which every step of every environment takes
            if obs.shape == usual and obs.dtype is declared.usual:
                batch[i] = obs if as_it_is else _turned(obs, axes).reshape(shape)
                return
        except AttributeError:  # it is no array
            pass
        batch[i] = _turned(declared.array(obs), axes).reshape(shape)

    return ObsFormat(shape, kind, write, layout, declared.shape)


def _turned(array: NDArray[Any], axes: tuple[int, ...] | None) -> NDArray[Any]:
    return array if axes is None else array.transpose(axes)


def action_format(env_id: str, space: Any, *, joint: bool = False, part: str = "") -> ActionFormat:
    """Choose the format of an action space; refuse those no distribution of ours covers.

    Args:
        env_id: of the environment.
        space: of its actions.
        joint: combinations of the choices of a MultiDiscrete are one choice.
        part: keys that lead to it in the space of all actions, joined by "/", for errors; empty: it is all of them.
    """
    from gymnasium import spaces

    shape = tuple(int(n) for n in space.shape or ())
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        spec = ActionSpec("categorical", (int(space.n),))
        if start == 0 and space.dtype == np.int64:
            return ActionFormat(spec, _same)

        def to_choice(action: NDArray[Any]) -> NDArray[Any]:
            return (action + start).astype(space.dtype)

        return ActionFormat(spec, to_choice)
    if (choices := choices_of(space)) is not None:
        sizes, starts = tuple(choices[0].tolist()), choices[1]
        dtype = space.dtype

        def to_choices(action: NDArray[Any]) -> NDArray[Any]:
            return (action + starts).astype(dtype).reshape(len(action), *shape)

        if joint:

            def to_combination(action: NDArray[Any]) -> NDArray[Any]:
                return to_choices(np.stack(np.unravel_index(action, sizes), axis=-1))

            return ActionFormat(ActionSpec("categorical", (math.prod(sizes),)), to_combination)
        return ActionFormat(ActionSpec("multi_categorical", sizes), to_choices)
    if isinstance(space, spaces.MultiBinary):
        dtype = space.dtype
        return ActionFormat(
            ActionSpec("bernoulli", (int(np.prod(shape)),)),
            lambda action: action.astype(dtype).reshape(len(action), *shape),
        )
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _joint_format(env_id, space)
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
        env_id,
        "action",
        space,
        f"Discrete, MultiDiscrete, MultiBinary, Box (of whole numbers: {MOST_CHOICES:,} at most between its bounds), and Dict "
        "and Tuple of these",
        part,
    )


def _joint_format(env_id: str, space: Any) -> ActionFormat:
    """Choose the format of actions that hold several, by key or by index."""
    named = (("/".join(map(str, keys)), one) for keys, one in parts_in(env_id, space))
    held = {name: action_format(env_id, one, part=name) for name, one in named}
    spec = ActionSpec("joint", parts=tuple((name, form.spec) for name, form in held.items()))
    for name, part in spec.parts if spec.num_gaussian else ():
        if (most := max((0, *part.choices))) > EXACT_BELOW:
            raise ConfigError(
                f"{env_id} takes one of {most:,} values in the part {name} of an action, beside real numbers; at most "
                f"{EXACT_BELOW:,} are possible; {_WRAP_HINT}"
            )
    ends = np.cumsum([part.length for part in spec.each])[:-1]

    def pieces(action: NDArray[Any]) -> Iterator[tuple[ActionFormat, NDArray[Any]]]:
        for form, x in zip(held.values(), np.split(action, ends, axis=1), strict=True):
            yield form, (x if form.spec.shape else x[:, 0]).astype(form.spec.dtype)

    build = _builder(space)

    def decode(action: NDArray[Any]) -> list[Any]:
        columns = [form.decode(x) for form, x in pieces(action)]
        return [build(iter(row)) for row in zip(*columns, strict=True)]

    def batch(action: NDArray[Any]) -> Any:
        return build(form.decode(x) for form, x in pieces(action))

    return ActionFormat(spec, decode, batch)


def parts_in(env_id: str, space: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the spaces of actions that a Dict or Tuple holds, and the keys that lead to them."""
    return _arrays_in(env_id, space, (), "takes")


def _builder(space: Any) -> Callable[[Iterator[Any]], Any]:
    """Return what makes a Dict or Tuple of parts in the order of `parts_in`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        named = [(key, _builder(one)) for key, one in space.spaces.items()]
        return lambda parts: {key: build(parts) for key, build in named}
    if isinstance(space, spaces.Tuple):
        each = [_builder(one) for one in space.spaces]
        return lambda parts: tuple(build(parts) for build in each)
    return next


def choices_of(space: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return how many values each number of a MultiDiscrete, or of a Box of whole numbers, has, and the first of them.

    None: it is neither, or a Box has more values than a network has logits.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec, space.start
    elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        # Of Python's numbers: the difference of two of the type may not be one of it.
        low, high = (np.asarray(x).ravel().astype(object) for x in (space.low, space.high))
        exact = np.iinfo(np.int64)
        if not low.size or min(low) < exact.min or max(high) > exact.max:
            return None
        if sum(high - low + 1) > MOST_CHOICES:
            return None
        sizes, starts = high - low + 1, low
    else:
        return None
    return np.asarray(sizes, np.int64).ravel(), np.asarray(starts, np.int64).ravel()


def _same(action: NDArray[Any]) -> NDArray[Any]:
    return action


def _refused(env_id: str, which: str, space: Any, allowed: str, part: str = "") -> ConfigError:
    text = " ".join(str(space).split())
    text = text if len(text) <= 60 else text[:57] + "..."
    what = f"whose part {part}" if part else "that"
    return ConfigError(
        f"{env_id} has an {which} space {what} is not supported, {text}; supported are {allowed}; wrap the environment "
        f"(gymnasium.wrappers.Transform{which.title()}) in a function of your own and train 'module:function'"
    )


def draw_actions(
    spec: ActionSpec,
    num_envs: int,
    rng: np.random.Generator | None,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[Any]:
    """Draw actions [N, *action_shape] at random, or return the first ones if rng is None; `mask` [N, M]: those it allows."""
    shape = (num_envs, *spec.shape)
    if spec.kind == "joint":
        parts: list[NDArray[Any]] = []
        for part in spec.each:
            allowed = None
            if mask is not None and part.choices:
                allowed, mask = np.split(mask, [sum(part.choices)], axis=1)
            parts.append(draw_actions(part, num_envs, rng, allowed).reshape(num_envs, -1))
        return np.concatenate(parts, axis=1).astype(spec.dtype)
    if rng is None and (mask is None or not spec.choices):
        return np.zeros(shape, spec.dtype)
    if spec.kind == "gaussian":
        assert rng is not None
        return rng.normal(size=shape).astype(np.float32)
    if mask is None or spec.kind == "bernoulli":
        assert rng is not None
        high = {"multi_categorical": spec.sizes, "bernoulli": 2}.get(spec.kind, spec.sizes[0])
        return rng.integers(0, high, shape)
    # The largest of numbers drawn for those that are allowed.
    drawn = np.where(mask, 0.0 if rng is None else rng.random(mask.shape), -1.0)
    parts = np.split(drawn, np.cumsum(spec.sizes)[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(shape)


def check_actions(action: NDArray[Any], num_envs: int, spec: EnvSpec) -> None:
    """Raise ValueError unless actions have the right shape, dtype and range; native code trusts us."""
    shape = (num_envs, *spec.action.shape)
    if action.shape != shape:
        raise ValueError(f"actions for {spec.env_id} have shape {action.shape}, expected {shape}")
    if action.dtype.kind not in ("f" if spec.action.num_gaussian else "iu"):
        raise ValueError(
            f"actions for {spec.env_id} are {action.dtype}, expected {spec.action.dtype}"
        )
    if spec.action.num_gaussian and not np.isfinite(action).all():
        raise ValueError(f"actions for {spec.env_id} are not all finite numbers")
    if spec.action.kind != "joint":
        _check_range(action, spec.env_id, spec.action)
        return
    first = 0
    for part in spec.action.each:
        _check_range(action[:, first : first + part.length], spec.env_id, part)
        first += part.length


def _check_range(action: NDArray[Any], env_id: str, spec: ActionSpec) -> None:
    """Raise ValueError unless every action [N, ...] of one kind lies in its range and is whole."""
    if spec.kind == "gaussian":
        return
    limit = np.asarray(spec.sizes) if spec.kind == "multi_categorical" else spec.sizes[0]
    if spec.kind == "bernoulli":
        limit = 2
    if (action < 0).any() or (action >= limit).any():
        raise ValueError(
            f"an action for {env_id} lies outside its range: least {action.min()}, largest "
            f"{action.max()}, allowed 0 to {np.max(limit) - 1}"
        )
    if action.dtype.kind == "f" and (action != np.floor(action)).any():
        raise ValueError(f"an action for {env_id} is no whole number: {action.tolist()}")
