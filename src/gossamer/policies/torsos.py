"""Feature layers: MLP for vectors, Nature CNN and IMPALA ResNet for pixels.

Shapes: N rows, C, H, W channels and size of an image, F features.
"""

from __future__ import annotations

import copy
import math
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import ConfigError
from gossamer.policies.layers import conv2d, linear
from gossamer.spec import leaves_of, map_obs
from gossamer.system.importing import RAISED, failed, hidden_by, import_module, named_in

if TYPE_CHECKING:
    from collections.abc import Generator

    from gossamer.policies.settings import PolicyConfig
    from gossamer.spec import Obs

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


_SEEDING = threading.RLock()
"""Torch's own stream is given a seed by one thread at a time; layers may be made of those of another policy."""


class MLP(nn.Module):
    """Fully connected layers over a vector or a flattened image."""

    def __init__(
        self,
        input_size: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        for size in hidden_sizes:
            layers += [
                linear(input_size, size, math.sqrt(2.0), generator),
                ACTIVATIONS[activation](),
            ]
            input_size = size
        self.layers = nn.Sequential(*layers)
        self.feature_size = input_size

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, F]."""
        return self.layers(x.flatten(1))


class Convolutions(nn.Module):
    """Plain convolutions with ReLU, then one layer.

    Args:
        obs_shape: C, H, W.
        layers: (filters, kernel, stride) of each convolution.
        fc_size: F.
        name: of the network, for the message when an image is too small.
        setting: that chose it, for that message.
        generator: of initial weights; None: torch's own.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        layers: tuple[tuple[int, int, int], ...],
        *,
        fc_size: int,
        name: str,
        setting: str = "policy.torso",
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        channels, height, width = obs_shape
        convs: list[nn.Module] = []
        for filters, kernel, stride in layers:
            if min(height, width) < kernel:
                raise ConfigError(
                    f"{setting} {name} is too deep for images of {obs_shape[1]} x {obs_shape[2]}; "
                    f"use --{setting} impala or mlp"
                )
            conv = conv2d(channels, filters, kernel, stride=stride, generator=generator)
            convs += [conv, nn.ReLU()]
            channels = filters
            height, width = ((n - kernel) // stride + 1 for n in (height, width))
        self.convs = nn.Sequential(*convs)
        self.fc = linear(channels * height * width, fc_size, math.sqrt(2.0), generator)
        self.feature_size = fc_size

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, F]."""
        return F.relu(self.fc(_flatten(self.convs(x))))


def _flatten(x: Tensor) -> Tensor:
    # Rows, columns, channels: a view of what channels_last convolutions return.
    return x.permute(0, 2, 3, 1).flatten(1)


class _Residual(nn.Module):
    def __init__(self, channels: int, generator: torch.Generator | None):
        super().__init__()
        self.conv0 = conv2d(channels, channels, 3, padding=1, generator=generator)
        self.conv1 = conv2d(channels, channels, 3, padding=1, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class Impala(nn.Module):
    """Residual network with sections of 16, 32, 32 filters: Espeholt et al. 2018, figure 3."""

    def __init__(
        self, obs_shape: tuple[int, ...], *, fc_size: int, generator: torch.Generator | None = None
    ):
        super().__init__()
        channels, height, width = obs_shape
        sections: list[nn.Module] = []
        for filters in (16, 32, 32):
            sections += [
                conv2d(channels, filters, 3, padding=1, generator=generator),
                nn.MaxPool2d(3, 2, padding=1),
                _Residual(filters, generator),
                _Residual(filters, generator),
            ]
            channels, height, width = filters, (height + 1) // 2, (width + 1) // 2
        self.sections = nn.Sequential(*sections)
        self.fc = linear(channels * height * width, fc_size, math.sqrt(2.0), generator)
        self.feature_size = fc_size

    def begin_as_identity(self) -> None:
        """Make the residual branches 0, so that initial features are of the size of other streams beside them.

        As they are made, features of 64 x 64 pixels begin 40 to 80 times as large as those of an MLP; so, 4 to 7 times.
        """
        for section in self.sections:
            if isinstance(section, _Residual):
                nn.init.zeros_(section.conv1.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, F]."""
        return F.relu(self.fc(_flatten(F.relu(self.sections(x)))))


def zero_rows(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return two observations of zeros [2, *shape] on the CPU, by which a torso is tried."""
    return torch.zeros((2, *shape), dtype=dtype, device="cpu")


def own_torso(name: str, rows: Obs[Tensor], generator: torch.Generator | None) -> nn.Module:
    """Make feature layers of the user's own, from `module:NAME`; they draw from torch's own stream.

    They are called with the shape of an observation; with those of its leaves where it has several, and are then given
    them by name.

    Args:
        name: `module:NAME`.
        rows: two observations of zeros, as the layers are given them; they are tried with these.
        generator: of initial weights; None: torch's own.

    Raises:
        ConfigError: there are no such layers, they fail, or return something other than features.
    """
    obs_shape = map_obs(_shape_of_one, rows)
    module_name, _, maker_name = name.rpartition(":")
    module = import_module(module_name, name, "a torso")
    maker = named_in(module, maker_name)
    if not callable(maker):
        raise ConfigError(
            f"{name} is not a torso: {module_name} has neither a class nor a function {maker_name}{hidden_by(module)}"
        )
    with _seeded(generator):
        try:
            torso = maker(obs_shape)
        except RAISED as error:
            raise failed(
                name, f"cannot be made for observations of {_in_words(obs_shape)}", error
            ) from error
        # A function may return the same layers each time, which other learners or policies have already.
        return copy.deepcopy(tried(torso, f"{name} must return", name, rows))


@contextmanager
def _seeded(generator: torch.Generator | None) -> Generator[None]:
    """Context in which torch's own stream, which is as before afterwards, begins as a generator did, and tensors have numbers.

    On the meta device, where a network is built for its shapes, the user's layers could not read any.
    """
    with _SEEDING, torch.random.fork_rng(devices=[]), torch.device("cpu"):
        if generator is not None:
            torch.default_generator.manual_seed(generator.initial_seed())
        yield


def tried(
    torso: Any,
    wanted: str,
    name: str,
    rows: Obs[Tensor],
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Return feature layers of the user's own, tried with two observations; nothing in them changes, but lazy ones get weights.

    Args:
        torso: what the user gave.
        wanted: how a message begins that says what it should have been.
        name: of the layers in messages.
        rows: two observations of zeros, as the layers are given them.
        generator: of initial weights that layers make when they are first called; None: torch's own.

    Raises:
        ConfigError: they are no such layers, fail, or return something other than features.
    """
    given = map_obs(_shape_of_one, rows)
    size = getattr(torso, "feature_size", None)
    if not isinstance(torso, nn.Module) or type(size) is not int or size < 1:
        raise ConfigError(
            f"{wanted} a torch.nn.Module that maps {_rows_in_words(given)} to [N, F], "
            "with F in its attribute feature_size"
        )
    home = _home_of(torso)
    if home.type == "meta":
        return torso  # shapes alone are counted
    rows = map_obs(partial(torch.as_tensor, device=home), rows)
    try:
        found = _features(torso, rows, generator)
    except RAISED as error:
        kinds = ", ".join(
            dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in leaves_of(rows).values())
        )
        raise failed(name, f"fails on {_rows_in_words(given)} of {kinds}", error) from error
    shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != [2, size]:
        raise ConfigError(
            f"{name} has feature_size {size}, but returns {shape} for 2 observations; it must return [2, {size}]"
        )
    return torso


_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
_BATCH_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d,
)  # fmt: skip


def refuse_changing(policy: nn.Module) -> None:
    """Refuse layers that compute something else each time, or depend on what else is in a batch: acting and learning would differ."""
    for path, layer in policy.named_modules():
        drops = isinstance(layer, _DROPOUTS) and layer.p > 0
        drops |= isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout > 0
        drops = layer.training and (drops or isinstance(layer, nn.RReLU))
        keeps = not layer.training and getattr(layer, "track_running_stats", False)
        if drops or (isinstance(layer, _BATCH_NORMS) and not keeps):
            what = "is random" if drops else "normalises by whatever else is in a batch"
            how = "a dropout of 0" if drops else "nn.LayerNorm or nn.GroupNorm"
            raise ConfigError(
                f"layer {path} ({type(layer).__name__}) {what}, so that the policy that learns is not the one that has "
                f"acted; use {how}, or call .eval() on this layer to keep it as it is"
            )


def bears_channels_last(torso: nn.Module, rows: Obs[Tensor]) -> bool:
    """Return whether feature layers take images that lie channels last in memory, which those with `view` do not.

    Args:
        torso: that takes such rows where channels lie first; its weights lie channels last.
        rows: two observations of zeros, as the layers are given them.
    """
    home = _home_of(torso)
    if home.type == "meta":
        return True
    try:
        _features(torso, map_obs(partial(_channels_last, device=home), rows), None)
    except RAISED:
        return False
    return True


def _home_of(torso: nn.Module) -> torch.device:
    devices = [x.device for x in torso.parameters()]
    # Of encoders that are built for their shapes some may be the user's.
    meta = [x for x in devices if x.type == "meta"]
    return next(iter(meta or devices), torch.device("cpu"))


def _channels_last(x: Tensor, device: torch.device) -> Tensor:
    x = x.to(device)
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _features(torso: nn.Module, rows: Obs[Tensor], generator: torch.Generator | None) -> object:
    """Return what feature layers make of observations; running statistics in them stay."""
    modes = [(x, x.training) for x in torso.modules()]
    torso.eval()
    try:
        with _seeded(generator), torch.no_grad():
            return torso(rows)
    finally:
        for module, training in modes:
            module.training = training


def _shape_of_one(rows: Tensor) -> tuple[int, ...]:
    return tuple(rows.shape[1:])


def _in_words(shape: Obs[tuple[int, ...]]) -> str:
    if isinstance(shape, tuple):
        return str(list(shape))
    return ", ".join(f"{name} {list(x)}" for name, x in shape.items())


def _rows_in_words(shape: Obs[tuple[int, ...]]) -> str:
    if isinstance(shape, tuple):
        return f"[N, {', '.join(map(str, shape))}]"
    return "{" + ", ".join(f"{name}: {_rows_in_words(x)}" for name, x in shape.items()) + "}"


def needs_images(kind: str, observed: str) -> ConfigError:
    """Build the error for convolutions over what is no image."""
    return ConfigError(
        f"policy.torso {kind} needs images, this environment observes {observed}; use --policy.torso mlp"
    )


def make_torso(
    config: PolicyConfig,
    obs_shape: tuple[int, ...],
    generator: torch.Generator | None = None,
    setting: str = "policy.torso",
) -> nn.Module:
    """Build the torso that fits an observation; it has `feature_size`. Without a generator torch's own stream is used.

    Args:
        config: the network's settings.
        obs_shape: of the observation.
        generator: of initial weights.
        setting: that chose the torso, for messages.
    """
    if ":" in config.torso:
        return own_torso(config.torso, zero_rows(obs_shape), generator)
    pixels = len(obs_shape) == 3
    kind = config.torso if config.torso != "auto" else ("nature" if pixels else "mlp")
    if kind == "mlp":
        return MLP(math.prod(obs_shape), config.hidden_sizes, config.activation, generator)
    if not pixels:
        raise needs_images(kind, f"vectors of {obs_shape}")
    if kind == "impala":
        return Impala(obs_shape, fc_size=config.fc_size or 256, generator=generator)
    size, layers = 512, ((32, 8, 4), (64, 4, 2), (config.last_filters, 3, 1))
    # "nature": Mnih et al. 2015; GALA used 32 filters in the last convolution.
    if kind == "a3c":  # Mnih et al. 2016, section 8: 16 filters 8x8/4, 32 filters 4x4/2, 256 units
        size, layers = 256, ((16, 8, 4), (32, 4, 2))
    elif kind == "elite":
        layers = ((64, 3, 3), (64, 3, 2), (128, 3, 2))
    return Convolutions(
        obs_shape,
        layers,
        fc_size=config.fc_size or size,
        name=kind,
        setting=setting,
        generator=generator,
    )
