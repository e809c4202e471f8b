"""Views of a group's columns of a slot, in which an actor writes and reads row after row."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.spec import leaves_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gossamer.spec import Obs
    from gossamer.types import Trajectory


def write_obs(row: NDArray[Any], obs: NDArray[Any]) -> None:
    """Copy observations [n, *obs_shape] into a slot's row, which holds pixels channels last.

    Four channels of bytes, the usual stack, are joined to one 32-bit word a pixel: half the time of
    moving them byte by byte.
    """
    if row.ndim != 4:
        row[...] = obs
        return
    if row.shape[1] != 4 or row.strides[1] != 1 or sys.byteorder != "little":
        torch.from_numpy(row).copy_(torch.from_numpy(obs))
        return
    words = np.moveaxis(row, 1, -1).view(np.uint32)[..., 0]  # [n, H, W]
    shifted = np.empty_like(words)
    joined = obs[:, 0].astype(np.uint32)
    for channel in (1, 2, 3):
        shift = np.uint32(8 * channel)
        np.left_shift(obs[:, channel], shift, out=shifted, dtype=np.uint32)
        np.bitwise_or(joined, shifted, out=words if channel == 3 else joined)


class Rows(NamedTuple):
    """What the host writes step by step into a group's columns of a slot, as arrays, whose indices take a tenth of the time."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    starts: NDArray[np.bool_]

    @classmethod
    def of(cls, slot: Trajectory, columns: slice) -> Rows:
        """Return views of a slot in host memory."""
        return cls(**{name: getattr(slot, name)[:, columns].numpy() for name in cls._fields})


class ActedRows(NamedTuple):
    """A group's columns of a slot row by row, where a policy acts in host memory: views made once a trajectory."""

    obs: Sequence[Obs[Tensor]]
    """[1, n, *shape] of each leaf, as a policy reads them."""
    written: tuple[tuple[str, NDArray[Any]], ...]
    """Leaves [T + 1, n, *shape] by name, as the host writes them."""
    starts: Sequence[Tensor]
    """[1, n]"""
    action: Sequence[Tensor]
    """[n, *action_shape]"""
    behavior: Sequence[Tensor]
    """[n, P]"""
    value: Sequence[Tensor]
    """[n]"""

    @classmethod
    def of(cls, slot: Trajectory, columns: slice) -> ActedRows:
        """Return views of a slot in host memory."""
        leaves = {name: x[:, columns] for name, x in leaves_of(slot.obs).items()}
        each = [x.split(1) for x in leaves.values()]
        bare = not isinstance(slot.obs, Mapping)
        return cls(
            each[0]
            if bare
            else [dict(zip(leaves, xs, strict=True)) for xs in zip(*each, strict=True)],
            tuple((name, x.numpy()) for name, x in leaves.items()),
            slot.starts[:, columns].split(1),
            *(getattr(slot, name)[:, columns].unbind() for name in ("action", "behavior", "value")),
        )

    def write_obs(self, t: int, obs: Obs[NDArray[Any]]) -> None:
        """Copy observations [n, *shape] of each leaf into row t."""
        leaves = leaves_of(obs)
        for name, rows in self.written:
            write_obs(rows[t], leaves[name])
