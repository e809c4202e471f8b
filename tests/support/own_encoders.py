"""Feature layers of a user's own, which keep what they were made for and what they last saw."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class Keeps(nn.Module):
    """One layer over whatever a leaf is."""

    feature_size = 5

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.shape, self.saw = shape, torch.empty(0)
        self.layer = nn.Linear(math.prod(shape), self.feature_size)

    def forward(self, x: Any) -> torch.Tensor:
        self.saw = x
        return self.layer(x.flatten(1).to(self.layer.weight.dtype))


class Boasts(Keeps):
    """Says that it has more features than it returns."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__(shape)
        self.feature_size = 9


class OfFloats(nn.Module):
    """A layer that takes real numbers in one array alone."""

    feature_size = 5

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape) if isinstance(shape, tuple) else 1, 5)

    def forward(self, x: Any) -> torch.Tensor:
        return self.layer(x.flatten(1))


class Normalises(nn.Module):
    """Has running statistics, a part that draws, and one that is not trained."""

    feature_size = 5

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.norm = nn.BatchNorm1d(math.prod(shape))
        self.layer, self.drop = nn.Linear(math.prod(shape), 5), nn.Dropout()
        self.frozen = nn.BatchNorm1d(5).eval()

    def forward(self, x: Any) -> torch.Tensor:
        return self.frozen(self.drop(self.layer(self.norm(x.flatten(1)))))
