"""Layout of what a replay stores of a column: its fields, and the bytes they take.

Stacks of frames are kept as single frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gossamer.system.blocks import lay_out, views
from gossamer.types import STORED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from gossamer.system.blocks import Place
    from gossamer.types import EnvSpec


@dataclass(frozen=True)
class Layout:
    """Layout of one stored entry, a column of a trajectory.

    Args:
        spec: of the environment.
        unroll_length: T.
        core_units: numbers of recurrent state.
        num_features: F, of a row; 0: features are not stored.
    """

    spec: EnvSpec
    unroll_length: int
    core_units: int = 0
    num_features: int = 0
    fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = field(init=False, repr=False)
    """Shape of an entry and dtype, by name."""

    def __post_init__(self) -> None:
        t, spec = self.unroll_length, self.spec
        # Few actions fit a byte.
        small = spec.action.kind != "gaussian" and max(spec.action.sizes) <= 256
        fields: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, kind in STORED.items():
            shape = (*kind.rows_of(t, self.core_units), *kind.entry_shape(spec))
            dtype = getattr(torch, kind.dtype_in(spec))
            fields[name] = (shape, torch.uint8 if small and kind.dtype == "action" else dtype)
        fields["obs"] = self._obs()
        fields["sequence"] = ((), torch.int64)
        if self.num_features:
            fields["features"] = ((t, self.num_features), torch.float16)
        object.__setattr__(self, "fields", fields)

    def _obs(self) -> tuple[tuple[int, ...], torch.dtype]:
        shape, t = self.spec.obs_shape, self.unroll_length
        if self.spec.obs_kind != "pixels":
            return (t + 1, *shape), torch.float32
        # The first row's stack, oldest frame first, then one frame a row; channels last.
        k = self.spec.frame_stack
        return (t + k, *shape[1:], shape[0] // k), torch.uint8

    def nbytes(self, capacity: int) -> int:
        """Bytes of a block of so many entries."""
        return self._lay_out(capacity)[1]

    def views(self, block: Any, capacity: int) -> dict[str, Tensor]:
        """Cut a block into arrays [capacity, ...] by name."""
        return views(block, self._lay_out(capacity)[0])

    def _lay_out(self, capacity: int) -> tuple[list[Place], int]:
        held = self.fields.items()
        return lay_out((name, dtype, (capacity, *shape)) for name, (shape, dtype) in held)
