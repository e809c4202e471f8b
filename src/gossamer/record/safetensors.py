"""Safetensors files, written without a second copy of their tensors and read into memory that is checked for first."""

from __future__ import annotations

import json
import math
import mmap
import os
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from gossamer.machine import free_memory
from gossamer.system.reading import clipped, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch
    from torch import Tensor

MAX_HEADER_BYTES = 64 << 20
"""Largest header of a safetensors file, in bytes."""
MAX_DIMENSIONS = 16
"""Most dimensions of a tensor in a safetensors file."""
UNCHECKED_BYTES = 16 << 20
"""So much memory is there without a look."""
OWN_BLOCK_BYTES = 1 << 20
"""A tensor from this size on is read into memory of its own, which the system gets back with the tensor."""
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def safetensors_chunks(tensors: Mapping[str, Tensor]) -> Iterable[Any]:
    """Yield a safetensors file in pieces: unlike the library's writer, without a second copy.

    Layout: 8 bytes of little-endian header length, the header padded to 8, then the tensors.
    Wider types come first, so that each tensor is aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        x = tensors[name]
        kind = str(x.dtype).removeprefix("torch.")
        if kind not in _DTYPES:
            raise TypeError(f"tensor {name} is {kind}; a checkpoint holds {', '.join(_DTYPES)}")
        end = offset + x.numel() * x.element_size()
        span = [offset, end]
        header[name] = {"dtype": _DTYPES[kind], "shape": list(x.shape), "data_offsets": span}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    yield len(head).to_bytes(8, "little") + head
    for name in order:
        if tensors[name].numel():
            yield from _pieces(tensors[name].detach().to("cpu"))


def _pieces(x: Tensor) -> Iterable[Any]:
    import torch

    # What lies otherwise in memory than in the file is copied, piece by piece.
    for part in (x,) if x.is_contiguous() else x:
        flat = part.contiguous().reshape(-1)
        yield memoryview(cast("Any", flat.view(torch.uint8).numpy()))


class _Place(NamedTuple):
    """Where a tensor is in a file, and what it is."""

    dtype: torch.dtype
    shape: list[int]
    begin: int
    end: int


def read_safetensors(file: BinaryIO, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; of those not wanted the shape and dtype, on device meta.

    Raises:
        ValueError: it is none.
        MemoryError: what is wanted is more than there is memory for.
    """
    import torch

    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise ValueError("it has no header")
    header: Any = parse_json(file.read(length))
    places = _places(header, size - 8 - length)
    needed = sum(x.end - x.begin for name, x in places.items() if wanted(name))
    if needed > UNCHECKED_BYTES and needed > (free := free_memory()):
        raise MemoryError(
            f"it takes {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"
        )
    found: dict[str, Tensor] = {}
    for name, (dtype, shape, begin, end) in places.items():
        if not wanted(name):
            found[name] = torch.empty(shape, dtype=dtype, device="meta")
            continue
        if begin == end:
            found[name] = torch.empty(shape, dtype=dtype)
            continue
        large = end - begin >= OWN_BLOCK_BYTES
        block: Any = mmap.mmap(-1, end - begin) if large else bytearray(end - begin)
        file.seek(8 + length + begin)
        if cast("Any", file).readinto(block) != end - begin:
            raise ValueError(f"{name} is cut off")
        found[name] = torch.frombuffer(block, dtype=dtype).view(shape)
    return found


def _places(header: Any, num_bytes: int) -> dict[str, _Place]:
    """Return where every tensor is; ValueError unless they lie one after the other and fill the file."""
    import torch

    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    dtypes: dict[str, torch.dtype] = {
        short: getattr(torch, name) for name, short in _DTYPES.items()
    }
    found: dict[str, _Place] = {}
    for name, entry in cast("dict[str, Any]", header).items():
        if name == "__metadata__":
            continue
        place = _place_of(entry, dtypes)
        if place is None:
            raise ValueError(f"its header says of {clipped(name)} what cannot be")
        found[name] = place
    at = 0
    for name, place in sorted(found.items(), key=lambda x: x[1][2:]):
        if place.begin != at:
            raise ValueError(f"{clipped(name)} does not begin where the tensor before it ends")
        at = place.end
    if at != num_bytes:
        raise ValueError(f"its tensors take {at} bytes, and it holds {num_bytes}")
    return found


def _place_of(entry: Any, dtypes: Mapping[str, torch.dtype]) -> _Place | None:
    """Return what an entry of a header says; None if no tensor can be so."""
    try:
        place = _Place(dtypes[entry["dtype"]], entry["shape"], *entry["data_offsets"])
        numbers = [place.begin, place.end, *place.shape]
    except (KeyError, TypeError):
        return None
    if len(numbers) > 2 + MAX_DIMENSIONS or not all(type(x) is int and x >= 0 for x in numbers):
        return None
    # torch multiplies sizes of empty tensors too, in 64 bits
    small = math.prod(max(x, 1) for x in numbers[2:]) < 2**59
    fits = small and math.prod(numbers[2:]) * place.dtype.itemsize == place.end - place.begin
    return _Place(place.dtype, numbers[2:], *numbers[:2]) if fits else None
