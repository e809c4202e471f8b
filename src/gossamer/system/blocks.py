"""Named tensors in one block of memory: where each of them lies, and views of them there.

A block is anything with a buffer (anonymous memory, shared memory, a mapped file) or a tensor of bytes. What is kept in
shared memory, replays, snapshots and slots for a GPU is laid out here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence  # noqa: TC003 - messages are read by their annotations
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALIGNMENT = 64
"""Bytes of a cache line; every tensor begins at a multiple of it."""


class Place(NamedTuple):
    """Where a tensor lies in a block; plain data, so that another process can be told."""

    name: str
    dtype: str
    shape: Sequence[int]
    stride: Sequence[int]
    offset: int
    """Bytes."""


def aligned(nbytes: int) -> int:
    """Return the bytes that so many take up in a block."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def lay_out(tensors: Iterable[tuple[str, torch.dtype, Sequence[int]]]) -> tuple[list[Place], int]:
    """Return places of contiguous tensors (name, dtype, shape), one after the other, and the bytes of the block."""
    places: list[Place] = []
    offset = 0
    for name, dtype, shape in tensors:
        stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        places.append(Place(name, str(dtype).removeprefix("torch."), list(shape), stride, offset))
        offset += aligned(math.prod(shape) * dtype.itemsize)
    return places, offset


def lay_out_like(tensors: Mapping[str, Tensor]) -> tuple[list[Place], int]:
    """Return places for copies of tensors, in the memory order that `clone` gives them, and the bytes of the block."""
    places, nbytes = lay_out((name, x.dtype, x.shape) for name, x in tensors.items())
    # A change of memory order costs more than a copy.
    strides = (list(torch.empty_like(x, device="meta").stride()) for x in tensors.values())
    return [place._replace(stride=s) for place, s in zip(places, strides, strict=True)], nbytes


def view(block: Any, place: Place) -> Tensor:
    """Return the tensor in a place of a block; an empty one lies nowhere."""
    dtype, count = getattr(torch, place.dtype), math.prod(place.shape)
    assert isinstance(dtype, torch.dtype), place.dtype
    if not count:
        return torch.empty(tuple(place.shape), dtype=dtype)
    if isinstance(block, Tensor):
        flat = block[place.offset : place.offset + count * dtype.itemsize].view(dtype)
    else:
        flat = torch.frombuffer(block, dtype=dtype, count=count, offset=place.offset)
    return flat.as_strided(tuple(place.shape), tuple(place.stride))


def views(block: Any, places: Iterable[Place]) -> dict[str, Tensor]:
    """Return all tensors of a block by name."""
    return {place.name: view(block, place) for place in places}


def copy_into(
    block: Any, places: Iterable[Place], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Copy tensors into their places; return the copies by name."""
    copies = views(block, places)
    for name, copy in copies.items():
        copy.copy_(tensors[name])
    return copies
