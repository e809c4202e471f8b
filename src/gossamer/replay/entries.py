"""Entries: columns of a trajectory as a ring stores them, single frames in place of stacks.

Operations that every device has, and that nobody waits for: entries are packed before they leave a GPU, and rebuilt after
they have come there. Between memory of the host and memory of the host `ring.Ring` copies faster.

Shapes: T unroll length, B columns, k frames of a stack, c channels of a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.system import devices
from gossamer.types import ON_HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.replay.layout import Layout
    from gossamer.types import Trajectory


def pack(trajectory: Trajectory, layout: Layout) -> dict[str, Tensor]:
    """Return a trajectory's columns as entries [B, ...] by field, on the devices where they are."""
    entries: dict[str, Tensor] = {}
    images = layout.images
    for name, kind in layout.stored.items():
        x = trajectory.tensor(name)
        if name in images:
            entries[name] = frames_of(x, stack=images[name].frame_stack)
        else:
            entries[name] = x.movedim(kind.column_dim, 0).to(layout.fields[name][1])
    return entries


def unpack(entries: Mapping[str, Tensor], into: Trajectory, layout: Layout) -> None:
    """Write entries over all columns of a trajectory; each field is on one device in both."""
    images = layout.images
    for name, kind in layout.stored.items():
        if name not in images:
            into.tensor(name).copy_(entries[name].movedim(0, kind.column_dim))
    for name, leaf in images.items():
        rebuild_stacks(
            entries[name],
            into.starts,
            into.tensor(name),
            stack=leaf.frame_stack,
            padding=leaf.stack_padding,
        )


def frames_of(obs: Tensor, *, stack: int) -> Tensor:
    """Return the frames [B, T + k, H, W, c] of stacks [T + 1, B, k c, H, W]: of the first row all, then the newest."""
    stacks = obs.movedim(2, -1).transpose(0, 1)  # [B, T + 1, H, W, k c]
    channels = stacks.shape[-1] // stack
    oldest = stacks[:, 0].unflatten(-1, (stack, channels)).movedim(-2, 1)
    return torch.cat([oldest, stacks[:, 1:, ..., -channels:]], dim=1)


def rebuild_stacks(
    frames: Tensor, starts: Tensor, into: Tensor, *, stack: int, padding: str
) -> None:
    """Write the stacks of frames.

    Args:
        frames: [B, T + k, H, W, c], as of `frames_of`.
        starts: [T + 1, B] bool; what a stack holds from before its episode is padding.
        into: [T + 1, B, k c, H, W], written over.
        stack: k.
        padding: zero, or repeat: an episode's first frame takes the place of those before it.
    """
    rows, columns = starts.shape
    channels, length = frames.shape[-1], frames.shape[1]
    row = torch.arange(rows, device=frames.device)[:, None]
    # Row of the episode's start, if there is one behind the first row, whose stack is there as it was.
    began = torch.where(starts, row, 1 - stack)
    began[0] = 1 - stack
    first = began.cummax(0).values + stack - 1  # [T + 1, B] the episode's first frame
    offset = torch.arange(columns, device=frames.device) * length
    flat, stacks = frames.flatten(0, 1), into.movedim(2, -1)
    for j in range(stack):
        at = row + j
        found = flat.index_select(0, (torch.maximum(at, first) + offset).flatten())
        found = found.unflatten(0, (rows, columns))
        if padding == "zero":
            found = found.masked_fill((at < first)[..., None, None, None], 0)
        stacks[..., j * channels : (j + 1) * channels].copy_(found)


class Staging:
    """Memory that a GPU reaches by itself, for entries on their way there or back."""

    def __init__(self, layout: Layout):
        self._layout = layout
        self._held: dict[str, Tensor] = {}
        self._room = 0

    def entries(self, count: int) -> dict[str, Tensor]:
        """Return room for so many entries, whatever is there; it is the caller's until the next call."""
        if count > self._room:
            self._room = count
            for name in self._layout.stored:
                shape, dtype = self._layout.fields[name]
                self._held[name] = devices.pinned(torch.zeros(count, *shape, dtype=dtype))
        return {name: x[:count] for name, x in self._held.items()}

    def fetch(self, entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy entries from a GPU and wait until they are here; good until the next call."""
        here = self.entries(len(entries["reward"]))
        for name, x in entries.items():
            here[name].copy_(x, non_blocking=True)
        devices.wait(entries["reward"].device)
        return here


def sent_ahead(entries: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return copies of entries on a GPU, without waiting for them; what the host asks about stays."""
    return {
        name: x if name in ON_HOST else x.to(device, non_blocking=True)
        for name, x in entries.items()
    }
