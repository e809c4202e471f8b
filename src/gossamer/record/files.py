"""Files that are whole or absent, locks, hashes on the way."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SLICE_BYTES = 32 << 20
"""Written and synced at a time, so that a slow disk shows that it gets on."""
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
        sync_open_folder(handle)
    finally:
        os.close(handle)


def sync_open_folder(folder: int) -> None:
    """Make the names in a folder survive a power cut, given its descriptor."""
    try:
        os.fsync(folder)
    except (
        OSError
    ) as error:  # folders that virtual machines share, and some of the network, sync files alone
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise


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
    sync_open_folder(folder)


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
    except OSError as error:  # another one where a file system has no locks: nobody trains there
        return isinstance(error, BlockingIOError)
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
                    getattr(os, "fdatasync", os.fsync)(file.fileno())  # macOS has no fdatasync
                    on_bytes(num_bytes - synced)
                    synced = num_bytes
        file.flush()
        os.fsync(file.fileno())
        on_bytes(num_bytes - synced)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}
