"""Feature layers: MLP for vectors, Nature CNN and IMPALA ResNet for pixels.

Shapes: N rows, C, H, W channels and size of an image, F features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import ConfigError
from gossamer.system.importing import RAISED, failed, import_module, named_in

if TYPE_CHECKING:
    from gossamer.policies.settings import PolicyConfig

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def orthogonal(layer: nn.Module, gain: float) -> nn.Module:
    """Initialise a layer's weight orthogonally with a gain, its bias with 0."""
    nn.init.orthogonal_(layer.weight, gain)  # type: ignore[arg-type]
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class MLP(nn.Module):
    """Fully connected layers over a vector or a flattened image."""

    def __init__(self, input_size: int, hidden_sizes: tuple[int, ...], activation: str):
        super().__init__()
        layers: list[nn.Module] = []
        for size in hidden_sizes:
            linear = orthogonal(nn.Linear(input_size, size), math.sqrt(2.0))
            layers += [linear, ACTIVATIONS[activation]()]
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
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        layers: tuple[tuple[int, int, int], ...],
        *,
        fc_size: int,
        name: str,
    ):
        super().__init__()
        channels, height, width = obs_shape
        convs: list[nn.Module] = []
        for filters, kernel, stride in layers:
            if min(height, width) < kernel:
                raise ConfigError(
                    f"policy.torso {name} is too deep for images of {obs_shape[1]} x {obs_shape[2]}; "
                    "use --policy.torso impala or mlp"
                )
            conv = orthogonal(nn.Conv2d(channels, filters, kernel, stride), math.sqrt(2.0))
            convs += [conv, nn.ReLU()]
            channels = filters
            height, width = ((n - kernel) // stride + 1 for n in (height, width))
        self.convs = nn.Sequential(*convs)
        self.fc = orthogonal(nn.Linear(channels * height * width, fc_size), math.sqrt(2.0))
        self.feature_size = fc_size

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, F]."""
        return F.relu(self.fc(_flatten(self.convs(x))))


def _flatten(x: Tensor) -> Tensor:
    # Rows, columns, channels: a view of what channels_last convolutions return.
    return x.permute(0, 2, 3, 1).flatten(1)


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv0 = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2.0))
        self.conv1 = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class Impala(nn.Module):
    """Residual network with sections of 16, 32, 32 filters: Espeholt et al. 2018, figure 3."""

    def __init__(self, obs_shape: tuple[int, ...], *, fc_size: int):
        super().__init__()
        channels, height, width = obs_shape
        sections: list[nn.Module] = []
        for filters in (16, 32, 32):
            sections += [
                orthogonal(nn.Conv2d(channels, filters, 3, padding=1), math.sqrt(2.0)),
                nn.MaxPool2d(3, 2, padding=1),
                _Residual(filters),
                _Residual(filters),
            ]
            channels, height, width = filters, (height + 1) // 2, (width + 1) // 2
        self.sections = nn.Sequential(*sections)
        self.fc = orthogonal(nn.Linear(channels * height * width, fc_size), math.sqrt(2.0))
        self.feature_size = fc_size

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, F]."""
        return F.relu(self.fc(_flatten(F.relu(self.sections(x)))))


def _own_torso(name: str, obs_shape: tuple[int, ...]) -> nn.Module:
    """Make feature layers of the user's own, from `module:NAME`."""
    module_name, _, maker_name = name.rpartition(":")
    maker = named_in(import_module(module_name, name, "a torso"), maker_name)
    if not callable(maker):
        raise ConfigError(
            f"{name} is not a torso: {module_name} has neither a class nor a function {maker_name}"
        )
    try:
        torso = maker(obs_shape)
    except RAISED as error:
        raise failed(
            name, f"cannot be made for observations of {list(obs_shape)}", error
        ) from error
    size = getattr(torso, "feature_size", None)
    if not isinstance(torso, nn.Module) or type(size) is not int or size < 1:
        raise ConfigError(
            f"{name} must return a torch.nn.Module that maps [N, {', '.join(map(str, obs_shape))}] to [N, F], "
            "with F in its attribute feature_size"
        )
    return torso


def make_torso(config: PolicyConfig, obs_shape: tuple[int, ...]) -> nn.Module:
    """Build the torso that fits an observation; it has `feature_size`."""
    if ":" in config.torso:
        return _own_torso(config.torso, obs_shape)
    pixels = len(obs_shape) == 3
    kind = config.torso if config.torso != "auto" else ("nature" if pixels else "mlp")
    if kind == "mlp":
        return MLP(math.prod(obs_shape), config.hidden_sizes, config.activation)
    if not pixels:
        raise ConfigError(
            f"policy.torso {kind} needs images, this environment observes vectors of {obs_shape}; use "
            "--policy.torso mlp"
        )
    if kind == "impala":
        return Impala(obs_shape, fc_size=config.fc_size or 256)
    if kind == "a3c":  # Mnih et al. 2016, section 8: 16 filters 8x8/4, 32 filters 4x4/2, 256 units
        return Convolutions(
            obs_shape, ((16, 8, 4), (32, 4, 2)), fc_size=config.fc_size or 256, name=kind
        )
    if kind == "elite":
        layers = ((64, 3, 3), (64, 3, 2), (128, 3, 2))
        return Convolutions(obs_shape, layers, fc_size=config.fc_size or 512, name=kind)
    # Mnih et al. 2015; GALA used 32 filters in the last convolution.
    layers = ((32, 8, 4), (64, 4, 2), (config.last_filters, 3, 1))
    return Convolutions(obs_shape, layers, fc_size=config.fc_size or 512, name=kind)
