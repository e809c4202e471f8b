"""Layers whose initial weights come from a given stream, in float32.

Torch draws them from one stream of the process, in the type that the process makes numbers of by default. Another run in a
thread beside draws from the same stream, and simulators change the type.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import nn

Layer = TypeVar("Layer", bound=nn.Module)
Weighted = TypeVar("Weighted", nn.Linear, nn.Conv2d)


def linear(
    input_size: int, output_size: int, gain: float, generator: torch.Generator | None
) -> nn.Linear:
    """Make a fully connected layer: weights orthogonal with a gain, biases 0; without a generator from torch's stream."""
    layer = _empty(nn.Linear, input_size, output_size)
    return _orthogonal(layer, gain, generator)


def conv2d(
    channels: int,
    filters: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    generator: torch.Generator | None,
) -> nn.Conv2d:
    """Make a convolution for ReLU: weights orthogonal with a gain of sqrt 2, biases 0; generator as of `linear`."""
    layer = _empty(nn.Conv2d, channels, filters, kernel, stride, padding)
    return _orthogonal(layer, math.sqrt(2.0), generator)


def recurrent(
    kind: type[nn.LSTM] | type[nn.GRU],
    input_size: int,
    units: int,
    layers: int,
    generator: torch.Generator | None,
    forget_bias: float = 0.0,
) -> nn.LSTM | nn.GRU:
    """Make an LSTM or GRU: weights orthogonal, biases 0 but for those of the gates that keep what a cell holds.

    Args:
        kind: of layers.
        input_size: numbers of an input.
        units: of each layer.
        layers: how many.
        generator: as of `linear`.
        forget_bias: of an LSTM's forget gates, of a GRU's update gates.
    """
    rnn = _empty(kind, input_size, units, layers)
    generator = _usable(generator, rnn)
    for x in rnn.parameters():
        _as_torch_begins(x, units, generator)
    for name, x in rnn.named_parameters():
        if "bias" in name:
            nn.init.zeros_(x)
        else:
            nn.init.orthogonal_(x, generator=generator)
        if "bias_ih" in name:  # both kinds have the gate that keeps in second place
            nn.init.constant_(x[units : 2 * units], forget_bias)
    return rnn


def _empty(kind: type[Layer], *sizes: int) -> Layer:
    """Make a layer without drawing anything."""
    # Not on the device meta, whose first use imports ten thousand things.
    still: Any = type(kind.__name__, (kind,), {"reset_parameters": _nothing})
    layer = still(*sizes, dtype=torch.float32)
    layer.__class__ = kind
    return layer


def _nothing(layer: nn.Module) -> None:
    del layer


def _orthogonal(layer: Weighted, gain: float, generator: torch.Generator | None) -> Weighted:
    generator = _usable(generator, layer)
    fan_in = layer.weight[0].numel()
    for x in (layer.weight, layer.bias):
        assert x is not None
        _as_torch_begins(x, fan_in, generator)
        if x is layer.bias:
            nn.init.zeros_(x)
    nn.init.orthogonal_(layer.weight, gain, generator)
    return layer


def _usable(generator: torch.Generator | None, layer: nn.Module) -> torch.Generator | None:
    """Return the generator, or None for a layer that has sizes only."""
    return None if any(x.is_meta for x in layer.parameters()) else generator


def _as_torch_begins(x: torch.Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Draw what a layer of torch begins with: weights of a seed are what they were when torch drew them first."""
    bound = 1.0 / math.sqrt(fan_in)
    nn.init.uniform_(x, -bound, bound, generator)
