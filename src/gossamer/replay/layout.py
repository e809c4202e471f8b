"""Layout of what a replay stores of a column: its fields, and the bytes they take.

Stacks of frames are kept as single frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gossamer.system.blocks import lay_out, views
from gossamer.types import FieldKind, Trajectory, fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from gossamer.spec import EnvSpec, Leaf
    from gossamer.system.blocks import Place


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
        small = all(p.kind != "gaussian" and max(p.sizes) <= 256 for p in spec.action.each)
        fields: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, kind in self.stored.items():
            shape = (*kind.rows_of(t, self.core_units), *kind.entry_shape(spec))
            dtype = getattr(torch, kind.dtype_in(spec))
            if kind.leaf is not None and kind.leaf.kind == "pixels":
                shape = _frames(kind.leaf, t)
            elif (kind.dtype == "action" and small) or _fits_bytes(kind.leaf):
                dtype = torch.uint8
            fields[name] = (shape, dtype)
        fields["sequence"] = ((), torch.int64)
        if self.num_features:
            fields["features"] = ((t, self.num_features), torch.float16)
        object.__setattr__(self, "fields", fields)

    @property
    def stored(self) -> Mapping[str, FieldKind]:
        """Fields of a trajectory, by name."""
        return fields_of(self.spec, Trajectory)

    @property
    def images(self) -> dict[str, Leaf]:
        """Leaves that are kept as single frames, by the name of their field."""
        leaves = {name: kind.leaf for name, kind in self.stored.items()}
        return {name: x for name, x in leaves.items() if x is not None and x.kind == "pixels"}

    def nbytes(self, capacity: int) -> int:
        """Bytes of a block of so many entries."""
        return self._lay_out(capacity)[1]

    def views(self, block: Any, capacity: int) -> dict[str, Tensor]:
        """Cut a block into arrays [capacity, ...] by name."""
        return views(block, self._lay_out(capacity)[0])

    def _lay_out(self, capacity: int) -> tuple[list[Place], int]:
        held = self.fields.items()
        return lay_out((name, dtype, (capacity, *shape)) for name, (shape, dtype) in held)


def _frames(leaf: Leaf, unroll_length: int) -> tuple[int, ...]:
    """Return the shape of an image's frames: the first row's stack, oldest first, then one a row; channels last."""
    k = leaf.frame_stack
    return (unroll_length + k, *leaf.shape[1:], leaf.shape[0] // k)


def _fits_bytes(leaf: Leaf | None) -> bool:
    """Whether a byte is enough for each number of a leaf."""
    return leaf is not None and leaf.kind == "discrete" and max(leaf.sizes) <= 256
