"""Running moments that normalise observations and values; learners average them like parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gossamer.ops.returns import is_finite
from gossamer.system import devices


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
    def update(self, x: Tensor, keep: Tensor | None = None) -> None:
        """Take in rows [..., *shape]: those of keep [...], or all."""
        if keep is not None and not devices.is_gpu(x.device):
            x, keep = x[keep], None
        # Sums of bytes stay exact in float32 up to a thousand rows, at half the cost of float64.
        exact = x.dtype == torch.uint8 and len(x) <= 1000
        x = (x.float() if exact else x.double()).sub_(self.shift)
        n: Tensor | int = len(x)
        if keep is not None:  # how many there are is for the device alone to know
            rest = x.ndim - keep.ndim
            x = torch.where(keep.view(*keep.shape, *(1,) * rest), x, 0.0).flatten(0, keep.ndim - 1)
            n = keep.sum()
        total = x.sum(0, dtype=torch.float64)
        self.update_sums(total, x.mul_(x).sum(0, dtype=torch.float64), n)

    @torch.no_grad()
    def update_sums(
        self, total: Tensor | float, squares: Tensor | float, n: Tensor | float
    ) -> None:
        """Take in sums over n rows around the shift; with a max_count, older rows fade behind it."""
        new = [self._number(x) for x in (n, total, squares)]
        # One NaN would stay in the moments for good.
        known = is_finite(new[2]).all() & (new[0] > 0)
        if self.max_count:
            fade = torch.where(
                known & (self.count > self.max_count), self.max_count / self.count, 1.0
            )
            for held in self.tensors():
                held.mul_(fade)
        zero = torch.zeros_like(self.count)
        for held, x in zip(self.tensors(), new, strict=True):
            held.add_(torch.where(known, x, zero))

    def _number(self, x: Tensor | float) -> Tensor:
        if isinstance(x, Tensor):
            return x.double()
        return torch.full((), x, dtype=torch.float64, device=self.count.device)

    def mean_std(self, floor: float) -> tuple[Tensor, Tensor]:
        """Return mean and deviation (at least `floor`), float64; 0 and 1 before the first row."""
        seen, count = self.count > 0, self.count.clamp(min=1e-300)
        mean = self.total / count
        variance = (self.squares / count - mean.square()).clamp(min=0.0)
        std = torch.where(seen, variance.sqrt().clamp(min=floor), 1.0)
        return torch.where(seen, mean + self.shift, 0.0), std

    def tensors(self) -> list[Tensor]:
        """Return the tensors that learners average and actors read."""
        return [self.count, self.total, self.squares]
