"""Feature layers of observations that hold several arrays: a stream for the numbers, and one for each image.

Shapes: N rows, F features, k numbers of a discrete leaf.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import ConfigError
from gossamer.policies.layers import linear
from gossamer.policies.settings import LIKE, EncoderConfig, folded
from gossamer.policies.tiles import Tiles, shares_tiles
from gossamer.policies.torsos import MLP, Impala, make_torso, needs_images, own_torso, zero_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gossamer.policies.settings import PolicyConfig
    from gossamer.spec import EnvSpec, Leaf, LeafKind

MOST_ONE_HOT = 64
"""Values of a discrete leaf that are told as zeros and a one; of more, each number has an embedding."""
EMBEDDING_SIZE = 32
SHARED = "shared"
"""Kind of a leaf whose numbers go through the MLP that they share, as they are."""
TILES = "tiles"
"""Kind of a grid of symbols."""
CONVOLUTIONS = ("nature", "impala", "a3c", "elite")
TORSOS = (*CONVOLUTIONS, "mlp")
FITTING: Mapping[LeafKind, tuple[str, ...]] = {
    "pixels": ("auto", *TORSOS, "none"),
    "vector": ("auto", "mlp", "none"),
    "discrete": ("auto", "one_hot", "embedding", "mlp", "none"),
    "mask": ("auto", "mlp", "none"),
}
"""Kinds of layers of a leaf, beside those of another one and the user's own."""
SIZES = {
    **dict.fromkeys(CONVOLUTIONS, ("fc_size",)),
    "mlp": ("hidden_sizes",),
    TILES: ("hidden_sizes",),
    "embedding": ("embedding_size",),
}
"""Sizes that a kind of layers has; the mlp of a discrete leaf has an embedding_size too."""


class Encoder(NamedTuple):
    """Layers that a leaf is to have."""

    leaf: Leaf
    kind: str
    """What "auto" becomes, or module:NAME; of a leaf like another, that one's."""
    home: str
    """Leaf whose layers these are: its own name, or that of one it is like."""
    config: PolicyConfig
    """Settings of the network with the sizes that the leaf asks for."""
    embedding_size: int

    @property
    def is_shared(self) -> bool:
        """Whether the leaf goes through the MLP of all numbers."""
        return self.kind in (SHARED, "one_hot", "embedding")

    @property
    def is_image(self) -> bool:
        """Whether it is an image with layers of ours."""
        return self.leaf.kind == "pixels" and ":" not in self.kind

    @property
    def setting(self) -> str:
        """Name of the setting that chooses it."""
        return setting_of(self.leaf.name) if self.leaf.name else "policy.torso"

    @property
    def encoded_size(self) -> int:
        """Numbers that a leaf without convolutions becomes before an MLP."""
        if self.leaf.kind != "discrete":
            return math.prod(self.leaf.shape)
        sizes = self.leaf.sizes
        return len(sizes) * self.embedding_size if self.embedding_size else sum(sizes)


def setting_of(name: str) -> str:
    """Return the setting that chooses the layers of a leaf."""
    return f"policy.encoders.{folded(name)}"


def seen_leaves(leaves: Iterable[Leaf], config: PolicyConfig) -> tuple[Leaf, ...]:
    """Return the leaves that a network sees: none that are left out, and a mask only if it is asked for."""
    default = {"mask": "none"}
    asked = ((leaf, config.encoder_of(leaf.name)) for leaf in leaves)
    return tuple(
        leaf
        for leaf, own in asked
        if (default.get(leaf.kind) if own is None else own.name) != "none"
    )


def refuse_encoders(spec: EnvSpec, config: PolicyConfig, torso: nn.Module | None = None) -> None:
    """Refuse encoders that do not fit an environment, before any is made.

    Args:
        spec: of the environment.
        config: the network's settings.
        torso: the user's own feature layers in place of those of the settings.

    Raises:
        ConfigError: one line with the setting, its value, what is allowed and what to type.
    """
    if not config.encoders:
        return
    name, asked = next(iter(config.encoders.items()))
    given = f"{setting_of(name)} is {asked.name}, but"
    if torso is not None or ":" in config.torso:
        what = "there is a torso" if torso is not None else f"policy.torso is {config.torso}"
        raise ConfigError(
            f"{given} {what}, which is given all that is observed; leave one of the two out"
        )
    if spec.sees_one:
        beside = {leaf.name for leaf in spec.leaves if leaf.kind == "mask"}
        for name, asked in config.encoders.items():
            if name not in beside:
                kind = asked.name if asked.name in TORSOS or asked.is_own else "KIND"
                raise ConfigError(
                    f"{setting_of(name)} is {asked.name}, but {spec.env_id} observes one array, whose layers have no "
                    f"name; use --policy.torso {kind}"
                )
    plan_encoders(spec.leaves, config)


def plan_encoders(leaves: Sequence[Leaf], config: PolicyConfig) -> list[Encoder]:
    """Return the layers of each leaf that is seen, in the order of the space.

    Raises:
        ConfigError: they do not fit.
    """
    by_name = {folded(leaf.name): leaf for leaf in leaves if leaf.name}
    for name, asked in config.encoders.items():
        if name not in by_name:
            raise ConfigError(
                f"{setting_of(name)} is {asked.name}, but this environment does not observe {name}; it observes "
                f"{', '.join(by_name)}"
            )
        _check_kind(by_name[name], asked)
    seen = seen_leaves(leaves, config)
    if not seen:
        raise ConfigError(
            f"policy.encoders leaves out all that this environment observes ({', '.join(by_name)}), a mask by itself; "
            f"leave one in: --{setting_of(leaves[0].name)} auto"
        )
    if not any(x.kind == "pixels" for x in leaves) and config.torso not in ("auto", "mlp"):
        raise needs_images(config.torso, ", ".join(x.name for x in seen))
    found = {leaf.name: _own_encoder(leaf, config) for leaf in seen if not _like(leaf, config)}
    for leaf in seen:
        if other := _like(leaf, config):
            found[leaf.name] = _like_encoder(leaf, other, found, by_name, config)
    return [found[leaf.name] for leaf in seen]


def zero_leaf(leaf: Leaf) -> Tensor:
    """Return two zeros of a leaf [2, *shape], as layers are given it."""
    whole = leaf.kind in ("discrete", "mask")
    return zero_rows(leaf.shape, getattr(torch, leaf.dtype) if whole else torch.float32)


class Encoders(nn.Module):
    """Layers for each leaf, and what joins them.

    Vectors and discrete leaves are one stream, side by side in the order of the space, through one MLP: a Dict of
    vectors is what its `FlattenObservation` would be. Images are streams of their own, and what the settings say.

    Args:
        leaves: of the environment; a mask of actions is seen only where the settings name it.
        config: the network's settings.
        generator: of initial weights; None: torch's own.

    Raises:
        ConfigError: the layers do not fit the leaves.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        config: PolicyConfig,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        plan = plan_encoders(leaves, config)
        made = [x for x in plan if x.home == x.leaf.name]
        # Names such as "type" or "keys" are taken in a ModuleDict.
        self.discrete = nn.ModuleDict(
            {
                f"/{x.leaf.name}": _encoding(x, generator)
                for x in made
                if x.leaf.kind in ("discrete", "mask") and ":" not in x.kind
            }
        )
        self.numbers = {x.leaf.name: f"/{x.home}" for x in plan if x.is_shared}
        self.mlp = None
        if self.numbers:
            size = sum(x.encoded_size for x in plan if x.is_shared)
            self.mlp = MLP(size, config.hidden_sizes, config.activation, generator)
        self.images = nn.ModuleDict(
            {
                f"/{x.leaf.name}": make_torso(x.config, x.leaf.shape, generator, x.setting)
                for x in made
                if x.is_image
            }
        )
        apart = [x for x in plan if not x.is_shared and not x.is_image]
        self.apart = nn.ModuleDict(
            {f"/{x.leaf.name}": _apart(x, generator) for x in apart if x.home == x.leaf.name}
        )
        self.image_of = {x.leaf.name: f"/{x.home}" for x in plan if x.is_image}
        self.apart_of = {x.leaf.name: f"/{x.home}" for x in apart}
        self.is_mlp = not any(x.is_image or x.kind == TILES or ":" in x.kind for x in plan)
        """Whether all layers are fully connected ones over numbers."""
        streams = [
            *([] if self.mlp is None else [self.mlp]),
            *(self.images[home] for home in self.image_of.values()),
            *(self.apart[home] for home in self.apart_of.values()),
        ]
        if len(streams) > 1:
            for image in self.images.values():
                if isinstance(image, Impala):
                    image.begin_as_identity()
        size = sum(int(x.feature_size) for x in streams)  # type: ignore[arg-type]
        self.join = None
        if len(streams) > 1 and config.core == "none":
            self.join = linear(size, config.join_size, math.sqrt(2.0), generator)
            size = config.join_size
        self.feature_size = size

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return features [N, F] of normalised observations {leaf: [N, ...]}."""
        streams: list[Tensor] = []
        if self.mlp is not None:
            parts = [self._encode(home, obs[name]) for name, home in self.numbers.items()]
            streams.append(self.mlp(torch.cat(parts, dim=1)))
        streams += [self.images[home](obs[name]) for name, home in self.image_of.items()]
        for name, home in self.apart_of.items():
            streams.append(self.apart[home](self._encode(home, obs[name])))
        if len(streams) == 1:
            return streams[0]
        joined = torch.cat(streams, dim=1)
        return joined if self.join is None else F.relu(self.join(joined))

    def _encode(self, home: str, x: Tensor) -> Tensor:
        return self.discrete[home](x) if home in self.discrete else x


class OneHot(nn.Module):
    """Whole numbers as zeros and a one for each."""

    first: Tensor
    one: Tensor

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        self._size = sum(sizes)
        self.register_buffer("first", torch.tensor(_offsets(sizes)), persistent=False)
        # Of the layers that follow: where a policy only acts they have another precision.
        self.register_buffer("one", torch.ones((), dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, k] -> [N, sum(sizes)]."""
        found = x.new_zeros((x.shape[0], self._size), dtype=self.one.dtype)
        return found.scatter(1, x + self.first, 1.0)


class Embedding(nn.Module):
    """A vector for each value of each number."""

    first: Tensor

    def __init__(
        self, sizes: Sequence[int], generator: torch.Generator | None, size: int = EMBEDDING_SIZE
    ):
        super().__init__()
        drawn = torch.randn((sum(sizes), size), generator=generator, dtype=torch.float32)
        self.weight = nn.Parameter(drawn)
        self.register_buffer("first", torch.tensor(_offsets(sizes)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, k] -> [N, k * size]."""
        return F.embedding(x + self.first, self.weight).flatten(1)


class Flags(nn.Module):
    """A mask as ones and zeros."""

    one: Tensor

    def __init__(self):
        super().__init__()
        # As in OneHot.
        self.register_buffer("one", torch.ones((), dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, M] bool -> [N, M]."""
        return x.to(self.one.dtype)


def _check_kind(leaf: Leaf, asked: EncoderConfig) -> None:
    """Refuse a kind of layers that cannot be a leaf's."""
    if ":" in asked.name or asked.name in FITTING[leaf.kind]:
        return
    allowed = ", ".join((*FITTING[leaf.kind], "like:LEAF", "module:NAME"))
    raise ConfigError(
        f"{setting_of(leaf.name)} is {asked.name}, but {leaf.name} is {_in_words(leaf)}; allowed: {allowed}"
    )


def _own_encoder(leaf: Leaf, config: PolicyConfig) -> Encoder:
    asked = config.encoder_of(leaf.name) or EncoderConfig()
    kind, embedded = asked.name, False
    if kind == "auto":
        kind = SHARED
        if leaf.kind == "pixels":
            kind = "nature" if config.torso == "auto" else config.torso
        elif shares_tiles(leaf, config):
            kind = TILES
        elif leaf.kind == "discrete":
            kind = "embedding" if sum(leaf.sizes) > MOST_ONE_HOT else "one_hot"
    sizes = SIZES.get(kind, ())
    if leaf.kind == "discrete" and kind == "mlp":
        sizes = (*sizes, "embedding_size")
        embedded = bool(asked.embedding_size) or sum(leaf.sizes) > MOST_ONE_HOT
    _check_sizes(leaf, asked, kind, sizes)
    return Encoder(
        leaf,
        kind,
        leaf.name,
        replace(
            config,
            torso=kind if leaf.kind == "pixels" else config.torso,
            fc_size=asked.fc_size or config.fc_size,
            hidden_sizes=asked.hidden_sizes or config.hidden_sizes,
        ),
        (asked.embedding_size or EMBEDDING_SIZE) if embedded or kind == "embedding" else 0,
    )


def _check_sizes(leaf: Leaf, asked: EncoderConfig, kind: str, fitting: Sequence[str]) -> None:
    """Refuse sizes that layers do not have."""
    for name, others in (
        ("fc_size", CONVOLUTIONS),
        ("hidden_sizes", ("mlp",)),
        ("embedding_size", ("embedding",)),
    ):
        value = getattr(asked, name)
        if value and name not in fitting:
            setting = setting_of(leaf.name)
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            able = [x for x in others if x in FITTING[leaf.kind]]
            how = f"leave it out{f', or use --{setting} {able[0]}' if able else ''}"
            what = "is in the mlp that numbers share" if kind == SHARED else f"has {kind}"
            raise ConfigError(
                f"{setting}.{name} is {shown}, but {leaf.name} {what}, without such a size; {how}"
            )


def _like(leaf: Leaf, config: PolicyConfig) -> str | None:
    """Return the folded name of the leaf whose layers one has, if it has another's."""
    asked = config.encoder_of(leaf.name)
    return folded(asked.like) if asked is not None and asked.like else None


def _like_encoder(
    leaf: Leaf,
    other: str,
    found: Mapping[str, Encoder],
    by_name: Mapping[str, Leaf],
    config: PolicyConfig,
) -> Encoder:
    asked = config.encoders[folded(leaf.name)]
    given = f"{setting_of(leaf.name)} is {asked.name}, but"
    it = by_name.get(other)
    if it is None or it is leaf:
        alike = [name for name, x in by_name.items() if x is not leaf and _alike(x, leaf)]
        what = "is the leaf itself" if it is leaf else "is not observed"
        named = f"; {', '.join(alike)} would do" if alike else ""
        raise ConfigError(f"{given} {other} {what}{named}")
    if again := _like(it, config):
        raise ConfigError(
            f"{given} {other} is like {again}; use --{setting_of(leaf.name)} {LIKE}{again}"
        )
    if not _alike(it, leaf):
        raise ConfigError(
            f"{given} {leaf.name} is {_in_words(leaf)}, and {other} is {_in_words(it)}; leaves that share layers have to be alike"
        )
    encoder = found.get(it.name)
    if encoder is None or encoder.kind in (SHARED, "one_hot"):
        what = "is not seen" if encoder is None else "has no layers of its own"
        able = "auto" if encoder is None else "mlp"
        raise ConfigError(f"{given} {other} {what}; use --{setting_of(it.name)} {able}")
    _check_sizes(leaf, asked, asked.name, ())
    return encoder._replace(leaf=leaf)


def _alike(one: Leaf, other: Leaf) -> bool:
    return (one.kind, one.shape, one.sizes) == (other.kind, other.shape, other.sizes)


def _in_words(leaf: Leaf) -> str:
    if leaf.kind == "pixels":
        channels, height, width = leaf.shape
        return f"an image of {height} x {width} with {channels} channels"
    if leaf.kind == "discrete":
        count, values = len(leaf.sizes), ", ".join(map(str, leaf.sizes))
        return f"{count} whole number{'s' * (count > 1)} of {values} values"
    return f"a {leaf.kind} of {leaf.shape[0]} numbers"


def _encoding(encoder: Encoder, generator: torch.Generator | None) -> nn.Module:
    leaf = encoder.leaf
    if leaf.kind == "mask":
        return Flags()
    if encoder.embedding_size:
        return Embedding(leaf.sizes, generator, encoder.embedding_size)
    return OneHot(leaf.sizes)


def _apart(encoder: Encoder, generator: torch.Generator | None) -> nn.Module:
    """Make the layers of a leaf that is neither an image nor in the MLP of all numbers."""
    if ":" in encoder.kind:
        own = generator
        if generator is not None:  # two leaves with layers of the same class begin differently
            seed = generator.initial_seed() ^ zlib.crc32(encoder.leaf.name.encode())
            own = torch.Generator(generator.device).manual_seed(seed)
        return own_torso(encoder.kind, zero_leaf(encoder.leaf), own)
    config = encoder.config
    if encoder.kind == TILES:
        return Tiles(encoder.leaf, config, generator)
    return MLP(encoder.encoded_size, config.hidden_sizes, config.activation, generator)


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
