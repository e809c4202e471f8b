"""A checkpoint as one file to download: an uncompressed tar, whose length is known before it is sent."""

from __future__ import annotations

import os
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from gossamer.dashboard.ranges import PART_BYTES
from gossamer.record.checkpoint import MANIFEST, is_checkpoint
from gossamer.system.reading import mapping, parse_json, read_whole, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gossamer.dashboard.root import RunFiles

CHECKPOINTS = "checkpoints"
SETTINGS = "config.json"
MAX_FILES = 64
"""Of a checkpoint, all of which are open while it is sent; gossamer writes three."""
TRIES = 3
"""A run replaces its best checkpoint now and then, also while its files are opened one by one."""
END_BYTES = 2 * tarfile.BLOCKSIZE
NO_CHECKPOINT = "there is no such checkpoint"
Part = tuple[bytes, BinaryIO, int]
"""Header of a file in a tar, the open file, and its size."""


@dataclass(frozen=True)
class CheckpointTar:
    """A tar that has not been made yet.

    Args:
        parts: what is in it; whoever reads the tar closes the files.
    """

    parts: list[Part]

    @property
    def num_bytes(self) -> int:
        """Its length."""
        return END_BYTES + sum(len(head) + size + _padding(size) for head, _, size in self.parts)

    def close(self) -> None:
        """Close the files without reading them."""
        for _, file, _ in self.parts:
            file.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the tar in pieces, then close its files.

        Raises:
            OSError: a file has become shorter, which ends the download before its end.
        """
        try:
            for head, file, size in self.parts:
                yield head
                left = size
                while left:
                    piece = file.read(min(PART_BYTES, left))
                    if not piece:
                        raise OSError("a file of the checkpoint has been cut")
                    left -= len(piece)
                    yield piece
                yield b"\0" * _padding(size)
            yield b"\0" * END_BYTES
        finally:
            self.close()


def checkpoint_tar(files: RunFiles, name: str, folder: str) -> CheckpointTar:
    """Return a tar of a checkpoint: its manifest, the files that the manifest names and the run's settings.

    Unpacked it is a folder that `gossamer eval` plays from. All files are of one checkpoint, also if the run replaces it
    meanwhile.

    Args:
        files: of the run.
        name: of the checkpoint, such as best or 800.
        folder: that everything in the tar is in.

    Raises:
        ValueError: there is no such checkpoint, or a file of it is missing, a link, in another folder or of another size.
    """
    if not is_checkpoint(name):
        raise ValueError(NO_CHECKPOINT)
    parts = _parts_in(files, f"{CHECKPOINTS}/{name}", folder, TRIES)
    if SETTINGS in files.names():
        try:
            parts.insert(0, _part(files, SETTINGS, folder))
        except ValueError:
            CheckpointTar(parts).close()
            raise
    return CheckpointTar(parts)


def _parts_in(files: RunFiles, path: str, folder: str, tries: int) -> list[Part]:
    """Return the files of the checkpoint that is in a folder now; after a failure of the one that has replaced it."""
    before = _inode(files, path)
    try:
        with files.folder(path) as checkpoint:
            return _parts_of(checkpoint, f"{folder}/{path}")
    except OSError:
        raise ValueError(NO_CHECKPOINT) from None
    except ValueError:
        if tries == 1 or _inode(files, path) == before:
            raise
    return _parts_in(files, path, folder, tries - 1)


def _inode(files: RunFiles, path: str) -> int | None:
    status = files.stat(path)
    return status and status.st_ino


def _parts_of(checkpoint: RunFiles, path: str) -> list[Part]:
    """Return the files of a checkpoint, the manifest first.

    Args:
        checkpoint: its own folder, which stays the same when another one gets its name.
        path: of the folder in the tar.
    """
    there = set(checkpoint.names())
    if MANIFEST not in there:
        raise ValueError(NO_CHECKPOINT)
    parts = [_part(checkpoint, MANIFEST, path)]
    with ExitStack() as opened:
        opened.callback(lambda: CheckpointTar(parts).close())
        _, manifest, _ = parts[0]
        named = mapping(mapping(_json_of(manifest)).get("files"))
        manifest.seek(0)
        if not named:
            raise ValueError(NO_CHECKPOINT)
        if len(named) > MAX_FILES:
            raise ValueError(
                f"the checkpoint names {len(named)} files; at most {MAX_FILES} are sent"
            )
        if not there.issuperset(named):  # a name with a slash is never among them
            raise ValueError("a file of the checkpoint is missing")
        for name in named:
            parts.append(part := _part(checkpoint, name, path))
            if (wanted := whole(mapping(named[name]).get("bytes"))) not in (None, part[2]):
                raise ValueError(
                    f"a file of the checkpoint has {part[2]} bytes; {wanted} were written"
                )
        opened.pop_all()
    return parts


def _json_of(file: BinaryIO) -> Any:
    try:
        return parse_json(read_whole(file))
    except (OSError, ValueError):
        return None


def _part(files: RunFiles, name: str, folder: str) -> Part:
    """Return a file as a part of a tar, in a folder there."""
    try:
        file = files.open(name)
    except FileNotFoundError:
        raise ValueError("a file of the checkpoint is missing") from None
    except (OSError, ValueError):
        raise ValueError("a file of the checkpoint is a link or no plain file") from None
    status = os.fstat(file.fileno())
    return _header(f"{folder}/{name}", status), file, status.st_size


def _header(name: str, status: os.stat_result) -> bytes:
    """Return what stands before a file in a tar, without its owner."""
    told = tarfile.TarInfo(name)
    told.size, told.mtime, told.mode = status.st_size, int(status.st_mtime), 0o644
    return told.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE
