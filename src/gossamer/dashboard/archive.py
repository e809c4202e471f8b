"""A checkpoint as one file to download: an uncompressed tar archive, whose length is known before it is sent."""

from __future__ import annotations

import os
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from gossamer.dashboard.ranges import PART_BYTES
from gossamer.dashboard.values import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gossamer.dashboard.root import RunFiles

CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
SETTINGS = "config.json"
KEPT = ("best", "candidate")
"""Checkpoints that have a name; others have their number of updates."""
MAX_FILES = 64
"""Of a checkpoint, all of which are open while it is sent; gossamer writes three."""
END_BYTES = 2 * tarfile.BLOCKSIZE


def is_checkpoint(name: str) -> bool:
    """Whether a folder in `checkpoints` has a checkpoint's name."""
    return name in KEPT or (name.isascii() and name.isdecimal())


@dataclass(frozen=True)
class Archive:
    """A tar archive that has not been made yet.

    Args:
        parts: [(header, file, size)] of what is in it; whoever reads the archive closes the files.
    """

    parts: list[tuple[bytes, BinaryIO, int]]

    @property
    def num_bytes(self) -> int:
        """Its length."""
        return END_BYTES + sum(len(head) + size + _padding(size) for head, _, size in self.parts)

    def close(self) -> None:
        """Close the files without reading them."""
        for _, file, _ in self.parts:
            file.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive in pieces, then close its files.

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


def checkpoint_archive(files: RunFiles, name: str, folder: str) -> Archive:
    """Return an archive of a checkpoint: its manifest, the files that the manifest names and the run's settings.

    Unpacked it is a folder that `gossamer eval` plays from.

    Args:
        files: of the run.
        name: of the checkpoint, such as best or 800.
        folder: that everything in the archive is in.

    Raises:
        ValueError: there is no such checkpoint, or a file of it is missing, a link or in another folder.
    """
    if not is_checkpoint(name) or name not in files.names(CHECKPOINTS):
        raise ValueError("there is no such checkpoint")
    path = f"{CHECKPOINTS}/{name}"
    named = mapping(files.json(f"{path}/{MANIFEST}").get("files"))
    there = set(files.names(path))
    if MANIFEST not in there or not named:
        raise ValueError("there is no such checkpoint")
    if len(named) > MAX_FILES:
        raise ValueError(f"the checkpoint names {len(named)} files; at most {MAX_FILES} are sent")
    if not there.issuperset(named):  # a name with a slash is never among them
        raise ValueError("a file of the checkpoint is missing")
    wanted = [f"{path}/{each}" for each in dict.fromkeys([MANIFEST, *named])]
    if SETTINGS in files.names():
        wanted.insert(0, SETTINGS)
    parts: list[tuple[bytes, BinaryIO, int]] = []
    with ExitStack() as opened:
        for each in wanted:
            try:
                file = opened.enter_context(files.open(each))
            except (OSError, ValueError):
                raise ValueError("a file of the checkpoint is a link or no plain file") from None
            status = os.fstat(file.fileno())
            parts.append((_header(f"{folder}/{each}", status), file, status.st_size))
        opened.pop_all()
    return Archive(parts)


def _header(name: str, status: os.stat_result) -> bytes:
    """Return what stands before a file in an archive, without its owner."""
    told = tarfile.TarInfo(name)
    told.size, told.mtime, told.mode = status.st_size, int(status.st_mtime), 0o644
    return told.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE
