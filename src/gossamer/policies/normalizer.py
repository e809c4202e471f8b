"""Scaling of raw observations for the layers of a policy, by their running moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.policies.moments import Moments

if TYPE_CHECKING:
    from gossamer.policies.settings import PolicyConfig
    from gossamer.spec import Leaf


FEW = 1 << 20
"""Numbers of pixels that caches hold twice."""


class Normalizer(Moments):
    """Moments of one leaf of observations, and the scale and shift that follow from them.

    Args:
        leaf: pixels or a vector.
        config: the network's settings.
    """

    scale: Tensor
    shift_by: Tensor

    def __init__(self, leaf: Leaf, config: PolicyConfig):
        self.pixels = leaf.kind == "pixels"
        super().__init__(leaf.shape, shift=128.0 if self.pixels else 0.0)
        self._config = config
        # Pixels are scaled, then shifted; of vectors the shift, their mean, is taken off first.
        self.register_buffer("scale", _like_obs(leaf.shape), persistent=False)
        self.register_buffer("shift_by", _like_obs(leaf.shape), persistent=False)

    def normalize(self, obs: Tensor, dtype: torch.dtype) -> Tensor:
        """Scale raw observations [..., *shape]; vectors come back in `dtype`, pixels in that of `set_dtype`."""
        if self.pixels:
            channels_last = obs.stride(-3) == 1  # as the result is then
            if obs.is_cpu and channels_last and obs.dtype == torch.uint8 and obs.numel() > FEW:
                # There the kernel would convert all into memory of its own, and write to another.
                x = obs.to(self.scale.dtype)
                return torch.addcmul(self.shift_by, x, self.scale, out=x)
            return torch.addcmul(self.shift_by, obs, self.scale)
        if not self._config.normalize_obs:
            return obs.to(dtype)
        # The mean first, in float32: air pressure in Pa is far from 0 and varies little.
        x = torch.sub(obs, self.shift_by).mul_(self.scale)
        return x.clamp_(-self._config.obs_clip, self._config.obs_clip).to(dtype)

    def observe(self, obs: Tensor, valid: Tensor) -> None:
        """Take in a batch: obs [R, B, *shape], valid [T, B] bool.

        Of pixels only the first row of some 16 columns is used: neighbouring frames tell the same,
        and all would cost as much as an inference pass.
        """
        if self.pixels:
            self.update(obs[0, :: max(obs.shape[1] // 16, 1)])
        else:
            self.update(obs[: len(valid)], valid)

    def refresh(self) -> None:
        """Recompute scale and shift from the moments."""
        plain = 1.0 / 255.0 if self.pixels else 1.0
        if self._config.normalize_obs:
            floor = self._config.pixel_std_floor if self.pixels else 1e-4
            mean, std = self.mean_std(floor)
            seen = self.count > 0
            self.scale.copy_(torch.where(seen, 1.0 / std, plain))
            shift = -mean / std if self.pixels else mean
            self.shift_by.copy_(torch.where(seen, shift, 0.0))
        else:
            self.scale.fill_(plain)
            self.shift_by.zero_()

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Return pixels in this type from now on."""
        if self.pixels:
            self.scale.data = self.scale.data.to(dtype)
            self.shift_by.data = self.shift_by.data.to(dtype)


def _like_obs(shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 3:
        return torch.zeros(shape, dtype=torch.float32)
    # Channels last, as trajectories keep pixels: elementwise work then runs straight through memory.
    channels, height, width = shape
    return torch.zeros((height, width, channels), dtype=torch.float32).permute(2, 0, 1)
