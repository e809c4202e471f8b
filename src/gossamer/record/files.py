"""Files that are whole or absent, locks, hashes on the way, safetensors without a copy."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from gossamer.machine import free_memory
from gossamer.system.reading import clipped, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import torch
    from torch import Tensor

MAX_HEADER_BYTES = 64 << 20
"""Largest header of a safetensors file, in bytes."""
MAX_DIMENSIONS = 16
"""Most dimensions of a tensor in a safetensors file."""
UNCHECKED_BYTES = 16 << 20
"""So much memory is there without a look."""
SLICE_BYTES = 32 << 20
"""Written and synced at a time, so that a slow disk shows that it gets on."""
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


LOCK = ".lock"
"""File that the process which trains holds locked."""
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
"""Errors of a path that leads nowhere."""


def is_there(path: Path) -> bool:
    """Whether a path exists; OSError where the disk does not tell, which must not look like absence."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is either complete under its final name, or absent.

    Args:
        path: Final name; an older file of that name is replaced.
        write: Receives the open file.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of this content, as `write_whole` does."""
    write_whole(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    """Write a text file, as `write_whole` does."""
    write_bytes(path, text.encode())


def write_whole_in(folder: int, name: str, content: bytes) -> None:
    """Write a file in an open folder that is either complete under its name, or as it was before; no link is followed.

    Args:
        folder: descriptor of the folder, which may have been moved or linked to since it was opened.
        name: of the file; a plain file of that name is replaced.
        content: of the file.

    Raises:
        OSError: it cannot be written, or something else than a plain file has its name.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.EEXIST, f"{name} is not a plain file; remove it")
    partial = f".{name}.{os.getpid()}.partial"
    with suppress(FileNotFoundError):
        os.unlink(partial, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(partial, flags, 0o644, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise
    os.fsync(folder)


def is_locked(path: Path | str, *, flags: int = 0, dir_fd: int | None = None) -> bool:
    """Whether some process holds the lock on a file; it is not taken, and not made.

    Args:
        path: of the file.
        flags: more flags to open it with.
        dir_fd: descriptor of the folder that it is in.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


_OWN: dict[int, tuple[int, int]] = {}
"""Descriptors that no process which is forked from here is to keep, with their device and inode."""


def hold_alone(handle: int) -> None:
    """Let no process that is started from here keep a descriptor, as an environment's may outlive this one, and so would a lock or a connection."""
    os.set_inheritable(handle, False)
    status = os.fstat(handle)
    _OWN[handle] = status.st_dev, status.st_ino


def _let_go() -> None:
    for handle, place in _OWN.items():
        with suppress(OSError):
            status = os.fstat(handle)  # it may be closed by now, and another one's
            if (status.st_dev, status.st_ino) == place:
                os.close(handle)
    _OWN.clear()


os.register_at_fork(after_in_child=_let_go)


def take_lock(path: Path, kind: int, *, patience_seconds: float) -> int | None:
    """A handle that holds the lock, or None when others kept it for that long; forked processes do not have it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    give_up = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            hold_alone(handle)
            return handle
        except BlockingIOError:
            if time.monotonic() >= give_up:
                os.close(handle)
                return None
            time.sleep(0.02)
        except OSError:
            os.close(handle)
            raise


def write_hashed(
    path: Path, chunks: Iterable[Any], on_bytes: Callable[[int], object] = lambda _: None
) -> dict[str, Any]:
    """Write and sync a file; return its size and hash. Each byte is read once, uncopied.

    Args:
        path: of the file.
        chunks: bytes, or what can be seen as bytes.
        on_bytes: called with the number of bytes that have reached the disk since the last call.
    """
    digest, num_bytes, synced = hashlib.sha256(), 0, 0
    with path.open("wb") as file:
        for chunk in chunks:
            for begin in range(0, len(chunk), SLICE_BYTES):
                part = chunk[begin : begin + SLICE_BYTES]
                file.write(part)
                digest.update(part)  # releases the GIL, as the write does
                num_bytes += len(part)
                if num_bytes >= synced + SLICE_BYTES:
                    file.flush()
                    os.fdatasync(file.fileno())
                    on_bytes(num_bytes - synced)
                    synced = num_bytes
        file.flush()
        os.fsync(file.fileno())
        on_bytes(num_bytes - synced)
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
