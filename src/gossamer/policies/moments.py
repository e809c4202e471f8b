"""Running moments that normalise observations and values; learners average them like parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Moments(nn.Module):
    """Count, sum and sum of squares of everything seen, in float64, around a shift common to all learners.

    Sums rather than means: averaging those of several learners, with any weights, gives the moments of
    their joint data, each row weighing the same, and a learner that has seen nothing changes nothing.
    """

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, shape: tuple[int, ...], *, shift: float = 0.0, max_count: float = 0.0):
        super().__init__()
        self.shift = shift
        self.max_count = max_count
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("total", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in rows [N, *shape]."""
        # Sums of bytes stay exact in float32 up to a thousand rows, at half the cost of float64.
        exact = x.dtype == torch.uint8 and len(x) <= 1000
        x = (x.float() if exact else x.double()).sub_(self.shift)
        total = x.sum(0, dtype=torch.float64)
        self.update_sums(total, x.mul_(x).sum(0, dtype=torch.float64), x.shape[0])

    @torch.no_grad()
    def update_sums(self, total: Tensor | float, squares: Tensor | float, n: float) -> None:
        """Take in sums over n rows around the shift; with a max_count, older rows fade behind it."""
        squares = torch.as_tensor(squares, dtype=torch.float64)
        if n == 0 or not squares.isfinite().all():
            return  # one NaN would stay in the moments for good
        if self.max_count and self.count > self.max_count:
            fade = self.max_count / self.count
            for held in self.tensors():
                held.mul_(fade)
        self.count += n
        self.total += total
        self.squares += squares

    def mean_std(self, floor: float) -> tuple[Tensor, Tensor]:
        """Return mean and deviation (at least `floor`), float64; 0 and 1 before the first row."""
        if self.count == 0:
            return torch.zeros_like(self.total), torch.ones_like(self.total)
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0.0)
        return mean + self.shift, variance.sqrt().clamp(min=floor)

    def tensors(self) -> list[Tensor]:
        """What learners average and actors read."""
        return [self.count, self.total, self.squares]
