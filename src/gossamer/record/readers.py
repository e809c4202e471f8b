"""Reading a run's files, whoever finds them: by their paths, or as the dashboard does, which follows no link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from gossamer.errors import ConfigError
from gossamer.record.files import LOCK, is_locked
from gossamer.record.metrics import parse_row, rows_of, tells_of_run
from gossamer.system.reading import (
    MAX_TEXT_BYTES,
    listed,
    mapping,
    number,
    open_plain,
    parse_json,
    read_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NEWEST_BYTES = (16 << 10, 256 << 10, 4 << 20)
"""Last bytes of metrics.jsonl that are read for the newest row of the run; more where hundreds of learners write."""


class Reader(Protocol):
    """Opens the files of one folder."""

    def open(self, name: str) -> BinaryIO:
        """Open a plain file; OSError or ValueError if there is none of that name."""
        ...

    @property
    def running(self) -> bool:
        """Whether some process holds the folder's lock."""
        ...


class FolderReader:
    """Reads a folder by its path.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path):
        self._path = path

    def open(self, name: str) -> BinaryIO:
        """Open a plain file; OSError or ValueError if there is none of that name."""
        return open_plain(self._path / name)

    @property
    def running(self) -> bool:
        """Whether some process holds the folder's lock."""
        return is_locked(self._path / LOCK)


def json_in(files: Reader, name: str, folder: Path) -> Any:
    """Return the value in a JSON file; ConfigError, which names the folder, if it is missing or damaged."""
    try:
        with files.open(name) as file:
            return parse_json(read_whole(file))
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no {name}: not a whole run folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"{folder / name} is damaged: {reason}") from None


def object_in(files: Reader, name: str, folder: Path, what: str = "object") -> dict[str, Any]:
    """Return the object in a JSON file, called `what`; ConfigError, which names the folder, if it is missing or damaged."""
    found = json_in(files, name, folder)
    if not isinstance(found, dict):
        raise ConfigError(f"{folder / name} is damaged: it holds no {what}")
    return cast("dict[str, Any]", found)


def settings_in(files: Reader, folder: Path) -> dict[str, Any]:
    """Return what config.json holds; ConfigError, which names the folder, if it is missing or damaged."""
    return object_in(files, "config.json", folder, "settings")


def value_in(files: Reader, name: str, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Return the value in a JSON file; None if it is missing, damaged or longer than `max_bytes`."""
    try:
        with files.open(name) as file:
            return parse_json(read_whole(file, max_bytes))
    except (OSError, ValueError):
        return None


def table_in(files: Reader, name: str, max_bytes: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file likewise; empty without one."""
    return mapping(value_in(files, name, max_bytes))


def sessions_in(meta: Mapping[str, Any]) -> list[Any]:
    """Return what meta.json tells of a run's sessions; older runs call them sittings."""
    return listed(meta.get("sittings", meta.get("sessions")))


def last_session(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what meta.json tells of a run's last session; empty without one."""
    return mapping(next(reversed(sessions_in(meta)), None))


def score_in(files: Reader, checkpoint: str) -> float | None:
    """Return the score of a checkpoint that is kept for it, best or candidate; None if there is none."""
    return number(table_in(files, f"checkpoints/{checkpoint}/manifest.json").get("score"))


def rows_in(files: Reader, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file; one that cannot be opened has none, a broken line is skipped."""
    try:
        file = files.open(name)
    except (OSError, ValueError):
        return
    with file:
        yield from rows_of(file)


def tail(files: Reader, name: str, max_bytes: int) -> bytes:
    """Return the last bytes of a file, from the beginning of a line on; empty without one."""
    try:
        with files.open(name) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            found = file.read(max_bytes)
    except (OSError, ValueError):
        return b""
    return found if size <= max_bytes else found.partition(b"\n")[2]


def last_rows(files: Reader, name: str, max_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the whole rows among the last bytes of a file, the newest first."""
    for line in reversed(tail(files, name, max_bytes).splitlines(keepends=True)):
        if (row := parse_row(line)) is not None:
            yield row


def newest_row(files: Reader) -> dict[str, Any]:
    """Return the newest row of metrics.jsonl that tells of the run; empty without one."""
    for max_bytes in NEWEST_BYTES:
        for row in last_rows(files, "metrics.jsonl", max_bytes):
            if tells_of_run(row):
                return row
    return {}
