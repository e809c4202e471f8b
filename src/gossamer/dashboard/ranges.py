"""Parts of a file, as a browser asks for them while it plays a video."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

PART_BYTES = 256 << 10
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def requested(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte of the part that a Range header asks for, and the one behind its last; None: all.

    Args:
        header: content of the header; more than one part, and other units, are answered with all.
        size: of the file.

    Raises:
        ValueError: there is no such part.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:  # the last bytes
        begin, end = max(size - int(match[2]), 0), size
    else:
        begin, end = int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)
    if begin >= end:
        raise ValueError(header)
    return begin, end


def parts_of(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """Yield a part of an open file in pieces, then close it."""
    with file:
        file.seek(begin)
        while begin < end and (piece := file.read(min(PART_BYTES, end - begin))):
            begin += len(piece)
            yield piece
