"""What an environment is to a policy: the arrays of an observation, its leaves, and the distribution of its actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

ActionKind = Literal["categorical", "multi_categorical", "bernoulli", "gaussian", "joint"]
LeafKind = Literal["pixels", "vector", "discrete", "mask"]
DTYPES: Mapping[LeafKind, str] = {
    "pixels": "uint8",
    "vector": "float32",
    "discrete": "int64",
    "mask": "bool",
}
EXACT_BELOW = 1 << 24
"""Whole numbers below it are float32 numbers."""
X = TypeVar("X")
Y = TypeVar("Y")
Obs = X | Mapping[str, X]
"""Observations: a bare array exactly where the only leaf of the spec is the observation itself, else arrays by leaf."""


@dataclass(frozen=True)
class ActionSpec:
    """Which distribution acts in an environment, and how its actions are laid out.

    categorical: int64 scalar in [0, sizes[0]); multi_categorical: int64 [len(sizes)];
    bernoulli: int64 0/1 [sizes[0]]; gaussian: float32 [sizes[0]], clipped to [low, high] by the env.
    joint: independent parts, their actions, parameters and noise side by side; float32 if one of them is Gaussian, where
    whole numbers are exact below `EXACT_BELOW`.
    """

    kind: ActionKind
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    parts: tuple[tuple[str, ActionSpec], ...] = ()
    """Of a joint action, none of which is joint: keys that lead to each, joined by "/", and what it is."""

    @cached_property
    def each(self) -> tuple[ActionSpec, ...]:
        """Parts of a joint action; any other is its only one."""
        return tuple(part for _, part in self.parts) if self.kind == "joint" else (self,)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return () if self.kind == "categorical" else (self.length,)

    @cached_property
    def length(self) -> int:
        """A: numbers of one action."""
        if self.kind == "joint":
            return sum(part.length for part in self.each)
        one_each = self.kind in ("categorical", "multi_categorical")
        return len(self.sizes) if one_each else self.sizes[0]

    @cached_property
    def dtype(self) -> Literal["int64", "float32"]:
        """Name of the dtype of actions in numpy and torch."""
        return "float32" if self.num_gaussian else "int64"

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """Numbers of values of every categorical choice, in order: those of which some can be forbidden."""
        found = [x.sizes for x in self.each if x.kind in ("categorical", "multi_categorical")]
        return tuple(size for sizes in found for size in sizes)

    @cached_property
    def num_gaussian(self) -> int:
        """Numbers that a Gaussian draws."""
        return sum(part.sizes[0] for part in self.each if part.kind == "gaussian")

    @cached_property
    def num_outputs(self) -> int:
        """What a network computes for one state: all parameters but the standard deviations."""
        return sum(sum(part.sizes) for part in self.each)

    @cached_property
    def num_params(self) -> int:
        """P: parameters of the distribution for one state (mean and log-std for a Gaussian)."""
        return self.num_outputs + self.num_gaussian

    @property
    def noise_size(self) -> int:
        """N: numbers of noise by which an action is chosen, one for each discrete choice or component."""
        return self.num_outputs

    @property
    def encoded_size(self) -> int:
        """Length of an action as network input: one-hot for discrete kinds, the value otherwise."""
        return self.num_outputs


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: the observation itself, or one of those that a Dict or Tuple holds.

    pixels: uint8 [C, H, W]; vector: float32 [n]; discrete: int64 [k], each in [0, sizes[i]); mask: bool [M], True where
    an action is allowed.
    """

    name: str
    """Keys that lead to it, joined by "/"; of a Tuple its index; empty: the observation itself."""
    kind: LeafKind
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    """Numbers of values of discrete ones."""
    frame_stack: int = 1
    """k: frames of one observation, oldest first; each adds one to those of the row before."""
    stack_padding: Literal["zero", "repeat", "none"] = "none"
    """What a reset fills the older frames of a stack with."""
    tiles: int = 0
    """Tiles of a grid of symbols, each an equal part of the vector, side by side; 0: it is none."""

    @property
    def dtype(self) -> str:
        """Name of the dtype in numpy and torch."""
        return DTYPES[self.kind]

    @property
    def nbytes(self) -> int:
        """Bytes of one."""
        return math.prod(self.shape) * {"uint8": 1, "bool": 1, "float32": 4, "int64": 8}[self.dtype]


def leaves_of(obs: Obs[X]) -> Mapping[str, X]:
    """Return observations by leaf; bare ones by the empty name."""
    return cast("Mapping[str, X]", obs) if isinstance(obs, Mapping) else {"": obs}


def map_obs(function: Callable[..., Y], obs: Obs[Any], *others: Obs[Any]) -> Obs[Y]:
    """Apply a function to each leaf of observations, beside the same leaf of others; bare ones stay bare."""
    if not isinstance(obs, Mapping):
        return function(obs, *others)
    held = cast("Mapping[str, Any]", obs)
    return {name: function(x, *(leaves_of(y)[name] for y in others)) for name, x in held.items()}


def obs_at(obs: Obs[X], index: Any) -> Obs[X]:
    """Return each leaf of observations at an index."""
    if not isinstance(obs, Mapping):
        return cast("Any", obs)[index]
    return {name: cast("Any", x)[index] for name, x in cast("Mapping[str, X]", obs).items()}


def copy_obs(into: Obs[Tensor], obs: Obs[Tensor]) -> None:
    """Copy each leaf of observations, without waiting for a GPU."""
    leaves = leaves_of(obs)
    for name, x in leaves_of(into).items():
        x.copy_(leaves[name], non_blocking=True)


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What policies and actors must know of an environment; read from the env, never hard-coded."""

    env_id: str
    leaves: tuple[Leaf, ...]
    """Arrays of an observation, in the order of its space; `one_leaf` makes those of a lone array."""
    action: ActionSpec
    protocol: str
    """How the env was set up, in words; printed beside every score."""
    max_episode_steps: int
    action_repeat: int = 1
    """Emulator frames per env step."""
    differs: str = ""
    """Why an episode is no function of its seed and its actions, in words; empty: as far as is known it is one."""
    family: bool = False
    """Each environment is given a task, and episodes differ by it."""
    remarks: tuple[str, ...] = ()
    """What a user may not expect of it, a line each."""
    observes: tuple[str, ...] = ()
    """What is observed, in words, array by array, without the mask of actions; empty: frames of Atari."""
    mask_from: Literal["", "observation", "info"] = ""
    """Where it says which actions are allowed; empty: all are, always."""
    mask_form: Literal["", "parts", "joint"] = ""
    """Of what a mask tells: the choices of each part of an action, or their combinations; empty: there is none."""

    @property
    def exact_resume(self) -> bool:
        """Whether an episode comes back when it is begun from its seed and its actions are repeated."""
        return not self.differs

    @property
    def is_bare(self) -> bool:
        """Whether an observation is one array, and no dict of some."""
        return len(self.leaves) == 1 and not self.leaves[0].name

    @property
    def observed(self) -> tuple[Leaf, ...]:
        """Arrays that networks see: all but the mask of actions."""
        return tuple(leaf for leaf in self.leaves if leaf.kind != "mask")

    @property
    def sees_one(self) -> bool:
        """Whether what networks see is one array, beside which there may be a mask of actions."""
        return len(self.observed) == 1 and not self.observed[0].name

    @property
    def mask(self) -> Leaf | None:
        """The mask of actions; None: there is none."""
        return next((leaf for leaf in self.leaves if leaf.kind == "mask"), None)

    @property
    def has_pixels(self) -> bool:
        """Whether an observation has an image."""
        return any(leaf.kind == "pixels" for leaf in self.leaves)

    @property
    def obs_nbytes(self) -> int:
        """Bytes of one observation."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @property
    def obs_numbers(self) -> int:
        """Numbers of one observation."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves)

    @property
    def leaf(self) -> Leaf:
        """The one array that networks see."""
        assert self.sees_one, f"{self.env_id} observes several arrays"
        return self.observed[0]

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of an observation that is one array."""
        return self.leaf.shape

    def obs_of(self, arrays: Mapping[str, X]) -> Obs[X]:
        """Return arrays by leaf as observations of this environment."""
        return (
            arrays[""] if self.is_bare else {leaf.name: arrays[leaf.name] for leaf in self.leaves}
        )


def one_leaf(kind: LeafKind, shape: tuple[int, ...], **stack: Any) -> tuple[Leaf, ...]:
    """Return the leaves of observations that are one array; `stack` as in `Leaf`."""
    return (Leaf("", kind, shape, **stack),)


def leaf_field(name: str, leaf: str) -> str:
    """Return the name of a leaf's field."""
    return f"{name}/{leaf}" if leaf else name


def nested_obs(fields: Mapping[str, X]) -> dict[str, Any]:
    """Return fields by attribute, leaves of observations in a dict."""
    found: dict[str, Any] = {}
    several = {name.partition("/")[0] for name in fields if "/" in name}
    for name, x in fields.items():
        whole, _, leaf = name.partition("/")
        if whole in several:
            found.setdefault(whole, {})[leaf] = x
        else:
            found[name] = x
    return found
