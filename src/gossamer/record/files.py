"""Files that are whole or absent, locks, hashes on the way, safetensors without a copy."""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, write: Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Write a file that is either complete under its final name, or absent.

    Args:
        path: Final name; an older file of that name is replaced.
        write: Receives the open file.
        durable: Wait until a power cut cannot undo it; a killed process never can.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def take_lock(path: Path, kind: int, *, patience_seconds: float) -> int | None:
    """A handle that holds the lock, or None when others kept it for that long."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    give_up = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() >= give_up:
                os.close(handle)
                return None
            time.sleep(0.02)
        except OSError:
            os.close(handle)
            raise


def write_hashed(path: Path, chunks: Iterable[Any]) -> dict[str, Any]:
    """Write and sync a file; return its size and hash. Each byte is read once, uncopied."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)  # releases the GIL, as the write does
            num_bytes += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}


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


def read_safetensors(file: BinaryIO, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; of those not wanted the shape and dtype, on device meta.

    Raises:
        ValueError: it is none.
    """
    import torch

    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > size:
        raise ValueError("it has no header")
    header: dict[str, dict[str, Any]] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    dtypes = {short: getattr(torch, name) for name, short in _DTYPES.items()}
    found: dict[str, Tensor] = {}
    for name, place in header.items():
        dtype, shape, (begin, end) = dtypes[place["dtype"]], place["shape"], place["data_offsets"]
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
