"""Storage of a replay: a ring of unroll columns in one preallocated block of memory, or on a GPU.

Stacks of frames are kept as single frames and rebuilt when read, right across episode starts.

Shapes: T unroll length, B columns of a trajectory, N entries, k frames of a stack, F features.
"""

from __future__ import annotations

import math
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import ConfigError
from gossamer.links.mailboxes import fence, make_memory
from gossamer.replay.entries import Staging, pack, unpack
from gossamer.system import devices
from gossamer.types import ON_HOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gossamer.replay.layout import Layout
    from gossamer.spec import Leaf
    from gossamer.types import Trajectory


LONG_ROW = 4096
"""Bytes of an entry's field from which on it is copied by itself."""


class Ring:
    """Entries in a block of memory, each in a numbered place; who overwrites which is the owner's choice.

    One writer, on one thread; a reader elsewhere looks at the sequence numbers before and after.

    Args:
        layout: of an entry.
        capacity: entries that fit.
        block: `layout.nbytes(capacity)` bytes, zeroed when new: anonymous memory, shared memory, a file.
    """

    def __init__(self, layout: Layout, capacity: int, block: Any):
        self.layout, self.capacity = layout, capacity
        self.fields = layout.views(block, capacity)
        self._block = block
        self._staging = Staging(layout)
        self._frames = {name: self.fields[name].numpy() for name in layout.images}
        self.sequence: NDArray[np.int64] = self.fields["sequence"].numpy()
        """Twice how often each place was written, odd while it is; 0: it is empty."""

    @torch.no_grad()
    def write(
        self, places: Sequence[int], trajectory: Trajectory, features: Tensor | None = None
    ) -> None:
        """Store all columns of a trajectory, each in a place.

        Args:
            places: [B] different ones.
            trajectory: B columns of T rows.
            features: [T, B, F], where the layout has any; None: they are marked as missing.
        """
        assert len(places) == trajectory.num_columns, (len(places), trajectory.num_columns)
        index = torch.tensor(places)
        entries = None
        if devices.is_gpu(trajectory.reward.device):
            entries = self._staging.fetch(pack(trajectory, self.layout))
        # A writer that was killed has left it odd already.
        self.sequence[places] |= 1
        fence()
        if entries is None:
            self._write_columns(places, index, trajectory)
        else:
            for name, x in entries.items():
                _copy_rows(self.fields[name], places, x)
        if features is not None:
            self.fields["features"][index] = features.transpose(0, 1).half()
        elif "features" in self.fields:
            self.fields["features"][index, 0, 0] = math.inf
        fence()
        self.sequence[places] += 1

    def _write_columns(self, places: Sequence[int], index: Tensor, trajectory: Trajectory) -> None:
        images = self.layout.images
        for name, kind in self.layout.stored.items():
            x = trajectory.tensor(name)
            if name in images:
                self._write_frames(self._frames[name], places, x, images[name].frame_stack)
            else:
                held = self.fields[name]
                held[index] = x.movedim(kind.column_dim, 0).to(held.dtype)

    @staticmethod
    def _write_frames(held: NDArray[np.uint8], places: Sequence[int], obs: Tensor, k: int) -> None:
        stacks = obs.movedim(2, -1).numpy()  # [T + 1, B, H, W, k * c]
        channels = stacks.shape[-1] // k
        for i, place in enumerate(places):
            frames = held[place]  # [T + k, H, W, c]
            for j in range(k):
                frames[j] = stacks[0, i, :, :, j * channels : (j + 1) * channels]
            frames[k:] = stacks[1:, i, :, :, -channels:]

    @torch.no_grad()
    def read(
        self,
        places: Sequence[int] | NDArray[np.int64],
        into: Trajectory,
        at: Tensor | None = None,
    ) -> None:
        """Copy entries into columns of a trajectory of the host.

        Args:
            places: [n] of the entries.
            into: the trajectory.
            at: [n] columns, one for each entry; None: all, in their order.
        """
        index = torch.as_tensor(places)

        def copy(x: Tensor, found: Tensor, dim: int) -> None:
            if at is None:
                x.copy_(found)
            else:
                x.index_copy_(dim, at, found.to(x.dtype))

        images = self.layout.images
        for name, kind in self.layout.stored.items():
            if name not in images:
                found = self.fields[name].index_select(0, index).movedim(0, kind.column_dim)
                copy(into.tensor(name), found, kind.column_dim)
        columns = range(len(places)) if at is None else at.tolist()
        starts = into.starts.numpy()
        for name, leaf in images.items():
            frames, obs = self._frames[name], into.tensor(name)
            for column, place in zip(columns, index.tolist(), strict=True):
                _read_frames(leaf, frames[place], starts[:, column], obs[:, column])

    def read_entries(
        self, places: NDArray[np.int64], into: Mapping[str, Tensor], at: Tensor | None = None
    ) -> None:
        """Copy entries as they are stored.

        Args:
            places: [n] of the entries.
            into: fields of entries, as many or more.
            at: [n] which of these are written over; None: all, in their order.
        """
        index = torch.as_tensor(places)
        for name, target in into.items():
            if at is None:
                torch.index_select(self.fields[name], 0, index, out=target)
            else:
                _copy_rows(target, at.tolist(), self.fields[name].index_select(0, index))

    def stored_features(self, places: NDArray[np.int64]) -> Tensor:
        """Return features [T, n, F] as they were stored."""
        return self.fields["features"].index_select(0, torch.as_tensor(places)).transpose(0, 1)


def _read_frames(
    leaf: Leaf, frames: NDArray[np.uint8], starts: NDArray[np.bool_], obs: Tensor
) -> None:
    """Rebuild the stacks [T + 1, C, H, W] of one entry."""
    k, rows = leaf.frame_stack, len(starts)
    stacks = obs.movedim(1, -1).numpy()  # [T + 1, H, W, k * c]
    channels = frames.shape[-1]
    for j in range(k):
        stacks[0, ..., j * channels : (j + 1) * channels] = frames[j]
    # A stack is the one before, moved by a frame in one copy of memory: half the time of moving k frames.
    flat = stacks.reshape(rows, -1)
    assert np.may_share_memory(flat, stacks), "channels last"
    for t in range(1, rows):
        flat[t, :-channels] = flat[t - 1, channels:]
        stacks[t, ..., -channels:] = frames[k - 1 + t]
    for start in np.flatnonzero(starts[1:]) + 1:
        newest = start + k - 1  # among the frames
        for t in range(start, min(newest, rows)):
            older = (newest - t) * channels  # frames of the episode before
            if leaf.stack_padding == "zero":
                stacks[t, ..., :older] = 0
            else:
                stacks[t, ..., :older] = np.tile(frames[newest], newest - t)


def _copy_rows(target: Tensor, places: Sequence[int], rows: Tensor) -> None:
    """Write rows over others; one after the other, as indexing moves the bytes of frames one by one."""
    if rows[0].nbytes < LONG_ROW:
        target[torch.as_tensor(places)] = rows
        return
    for place, row in zip(places, rows, strict=True):
        target[place].copy_(row)


class DeviceRing:
    """A ring on the GPU that learns from it, of a learner that shares it with nobody; as `Ring`, where it has the same names."""

    def __init__(self, layout: Layout, capacity: int, device: torch.device):
        self.layout, self.capacity, self._device = layout, capacity, device
        on_host = {"sequence", *ON_HOST}
        self.fields = {
            name: torch.zeros(
                (capacity, *shape), dtype=dtype, device=None if name in on_host else device
            )
            for name, (shape, dtype) in layout.fields.items()
        }
        self.sequence: NDArray[np.int64] = self.fields["sequence"].numpy()

    @torch.no_grad()
    def write(
        self, places: Sequence[int], trajectory: Trajectory, features: Tensor | None = None
    ) -> None:
        """Store all columns of a trajectory, each in a place, without waiting for the GPU."""
        assert len(places) == trajectory.num_columns, (len(places), trajectory.num_columns)
        entries = pack(trajectory.to(self._device), self.layout)
        if features is not None:
            entries["features"] = features.transpose(0, 1).half()
        index = torch.tensor(places)
        there = devices.send(index, self._device)
        for name, x in entries.items():
            held = self.fields[name]
            at = index if held.device != self._device else there
            held.index_copy_(0, at, devices.send(x, held.device))
        if features is None and "features" in self.fields:
            self.fields["features"][:, 0, 0].index_fill_(0, there, math.inf)
        self.sequence[places] += 2

    @torch.no_grad()
    def read(self, places: Sequence[int] | NDArray[np.int64], into: Trajectory) -> None:
        """Copy entries into all columns of a trajectory on the GPU, without waiting for it."""
        index = torch.as_tensor(places)
        there = devices.send(index, self._device)
        entries = {
            name: x.index_select(0, index if x.device != self._device else there)
            for name, x in self.fields.items()
            if name in self.layout.stored
        }
        unpack(entries, into, self.layout)

    def stored_features(self, places: NDArray[np.int64]) -> Tensor:
        """Return features [T, n, F] as they were stored, on the host."""
        index = devices.send(torch.as_tensor(places), self._device)
        return self.fields["features"].index_select(0, index).transpose(0, 1).cpu()


def make_block(nbytes: int, path: str = "") -> mmap.mmap:
    """Return zeroed memory, or a file in a folder, mapped; it is gone with the process, however that ends.

    Raises:
        ConfigError: the system refuses so much.
    """
    if path:
        descriptor, block = make_shared_block(nbytes, path)
        os.close(descriptor)  # it stays mapped
        return block
    try:
        return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise _no_room(nbytes, path, error) from None


def make_shared_block(nbytes: int, path: str = "") -> tuple[int, mmap.mmap]:
    """Return the same as processes can map it by its file descriptor, and that."""
    try:
        return make_memory(nbytes, path)
    except OSError as error:  # a quota, say
        raise _no_room(nbytes, path, error) from None


def _no_room(nbytes: int, path: str, error: OSError) -> ConfigError:
    where = f"in {path}" if path else "of memory"
    return ConfigError(
        f"a replay takes {nbytes / 1e9:.1f} GB {where}, which the system refuses ({error.strerror}); keep "
        "fewer steps, or keep them elsewhere (path)"
    )
