"""Reading what may be damaged or hostile: plain files alone, not too long, not nested too deep.

Whatever is wrong with a file is an OSError or a ValueError that tells why, and reading it never takes much more memory
than it is long.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import tomllib
import unicodedata
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import BufferedReader

MAX_TEXT_BYTES = 16 << 20
"""Largest file of settings, or of facts about a run, in bytes."""
MAX_DEPTH = 64
"""Deepest nesting of lists and objects, in levels."""
MAX_BITS = 128
"""Longest whole number, in bits; a random generator's state has so many."""
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095
"""Longest part of a path, and longest path, in bytes; file systems allow no more."""
LARGEST = 1e18
"""Number that a table shows."""

_LONG_NAME = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++\.){{{MAX_DEPTH + 1}}}")


def open_plain(path: Path | str) -> BufferedReader:
    """Open a file; ValueError for a pipe, a device or a folder: some of them would keep a reader waiting for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a plain file")
    return os.fdopen(handle, "rb")


def read_plain(path: Path | str, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return what a file holds; ValueError if that is more than `max_bytes`."""
    with open_plain(path) as file:
        return read_whole(file, max_bytes)


def read_whole(file: BinaryIO, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return what is left of an open file; ValueError if that is more than `max_bytes`."""
    size = os.fstat(file.fileno()).st_size
    content = b"" if size > max_bytes else file.read(max_bytes + 1)
    if max(size, len(content)) > max_bytes:
        raise ValueError(f"it is longer than {max_bytes >> 20} MiB")
    return content


def parse_json(
    text: str | bytes, make: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value that JSON spells; ValueError for anything that nobody writes on purpose.

    Args:
        text: JSON.
        make: makes an object from its names and values; None: a dict.
    """
    return _parsed(partial(json.loads, object_pairs_hook=make), text)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table that TOML spells; ValueError for anything that nobody writes on purpose."""
    # A dotted name of n parts takes Python's parser n * n steps.
    dotted = ".".join(part.strip(" \t") for part in text.split("."))
    if _LONG_NAME.search(dotted):
        raise _too_deep()
    return _parsed(tomllib.loads, text)


def expand(path: Path | str, hint: str = "") -> Path:
    """Return a path with ~ replaced by the user's folder; ConfigError, ending in a hint, for one that no file can have."""
    try:
        name, found = os.fsencode(path), Path(path).expanduser()
    except UnicodeEncodeError:
        reason = "it holds characters that cannot be in a name"
    except RuntimeError:
        reason = f"there is no user {Path(path).parts[0].removeprefix('~')}"
    else:
        if b"\0" in name:
            reason = "it holds a NUL character"
        elif len(name) > MAX_PATH_BYTES or max(map(len, name.split(b"/"))) > MAX_NAME_BYTES:
            reason = f"it is longer than a name can be, {MAX_NAME_BYTES} bytes for each part"
        else:
            return found
    raise ConfigError(f"{clipped(str(path))!r} cannot be a file or folder: {reason}{hint}")


def new_file(path: Path) -> Path:
    """Return the path of a file that --output asks for; ConfigError if it is there already, or cannot be made."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already; remove it, or choose another with --output PATH")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"--output {path}: the folder {parent} does not exist; make it first")
    if not os.access(parent, os.W_OK):
        raise ConfigError(
            f"--output {path}: the folder {parent} cannot be written to; choose another"
        )
    return path


def quoted(word: Path | str) -> str:
    """Return a word of a command as it is typed in a shell, such as a path with a space."""
    return shlex.quote(str(word))


def clipped(text: str, length: int = 80) -> str:
    """Return a text short enough for a message."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def in_a_line(items: Sequence[object], most: int) -> str:
    """Return what there is in a line; of more than `most` the first, and how many more there are."""
    more = len(items) - most
    return ", ".join(map(str, items[:most])) + (f" and {more} more" if more > 0 else "")


def visible(text: str) -> str:
    """Return a text as it can be printed anywhere: what moves a cursor, or is no character, is spelt out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_controls(text: str) -> str:
    """Return a text without what moves a cursor or commands a terminal; bytes of files' names stay as they are."""
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in text)


def mapping(value: Any) -> dict[str, Any]:
    """Return an object as it is, and an empty one in place of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and an empty one in place of anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """Return a finite number of sane size; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -LARGEST < value < LARGEST else None


def whole(value: Any) -> int | None:
    """Return a whole number of sane size; None for anything else."""
    found = number(value)
    return None if found is None else int(found)


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """Return what a text spells; refuse nesting so deep, and numbers so long, that later steps would stumble."""
    try:
        found = parse(text)
    except RecursionError:
        raise _too_deep() from None
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += cast("dict[str, Any]", one).values()
            elif isinstance(one, list):
                below += cast("list[Any]", one)
            elif isinstance(one, int) and one.bit_length() > MAX_BITS:
                raise ValueError(f"it holds a whole number of more than {MAX_BITS} bits")
        if not below:
            return found
        level = below
    raise _too_deep()
