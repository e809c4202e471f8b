"""The folder that is watched: every file is opened part by part from it, so that no link and no name leads out of it."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gossamer.errors import ConfigError
from gossamer.record.files import LOCK, is_locked, write_whole_in
from gossamer.system.reading import MAX_TEXT_BYTES, clipped, parse_json, read_whole

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

SWEEP = "sweep.json"
"""File by which the folder of a sweep is known."""
HERE = "."
"""Id of a run that is the folder itself."""
MAX_DEPTH = 6
"""Folders between the root and a run."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""With which a folder is opened: no link is followed."""
LAST_BYTES = 256
"""Of what was read of a file, which tell whether it is still the same one: a row or a part of it, with its time."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Root:
    """A folder of runs.

    Args:
        path: of the folder, which need not exist yet.
    """

    def __init__(self, path: Path):
        self.path = path.absolute()

    @contextmanager
    def run(self, run: str) -> Generator[RunFiles]:
        """Context with a run's files.

        Args:
            run: path of its folder below the root, or HERE.

        Raises:
            OSError: there is no such folder below the root, or a link is on the way to it.
        """
        with self.folder(run) as handle:
            yield RunFiles(handle)

    @contextmanager
    def folder(self, name: str = HERE) -> Generator[int]:
        """Context with the descriptor of a folder below the root, or of the root itself.

        Args:
            name: its path below the root, or HERE.

        Raises:
            OSError: there is no such folder below the root, or a link is on the way to it.
        """
        parts = () if name == HERE else _parts(name)
        top = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with _below(top, parts) as handle:
            yield handle

    def find(self) -> Iterator[str]:
        """Yield the id of every run, and of what is left of one, below the root; links are not followed.

        A folder whose name is not UTF-8 is passed over: no answer could hold its id.
        """
        yield from (name or HERE for name, names, _ in self._walk("", MAX_DEPTH) if _is_run(names))

    def find_sweeps(self) -> Iterator[str]:
        """Yield the id of every folder of a sweep likewise."""
        walk = self._walk("", MAX_DEPTH, trials=False)
        yield from (name or HERE for name, names, _ in walk if SWEEP in names)

    def find_hidden(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield folders that are hidden beside runs, each as the folder that it is in and its name; links are not followed.

        Args:
            prefix: beginning of their names.
        """
        for name, names, hidden in self._walk("", MAX_DEPTH):
            if not _is_run(names):
                yield from ((name or HERE, x) for x in hidden if x.startswith(prefix))

    def runs_below(self, run: str) -> list[str]:
        """Return the runs that are hidden in a run's own folder, as no run is looked for inside of another."""
        folders = self._folders(run)[1]
        found = (self._walk(f"{run}/{x}", MAX_DEPTH) for x in folders if not x.startswith("."))
        return [name for walk in found for name, names, _ in walk if _is_run(names)]

    def _walk(
        self, name: str, depth: int, *, trials: bool = True
    ) -> Iterator[tuple[str, set[str], list[str]]]:
        """Yield every folder that may hold runs: its path, all names in it, and those of hidden folders.

        Args:
            name: path of the folder to begin with.
            depth: of folders below it that are looked into.
            trials: whether folders of a sweep's trials are looked into, of which there may be thousands.
        """
        names, folders = self._folders(name)
        yield name, names, [x for x in folders if x.startswith(".")]
        if _is_run(names) or not depth:
            return
        for child in folders:
            is_trial = SWEEP in names and child.isdecimal()
            if not child.startswith(".") and (trials or not is_trial):
                below = f"{name}/{child}" if name else child
                yield from self._walk(below, depth - 1, trials=trials)

    def _folders(self, name: str) -> tuple[set[str], list[str]]:
        """Return all names in a folder, and those of folders, sorted."""
        names: set[str] = set()
        folders: list[str] = []
        with suppress(OSError), os.scandir(f"{self.path}/{name}") as entries:
            for entry in entries:
                names.add(entry.name)
                if _is_text(entry.name) and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
        return names, sorted(folders)


class RunFiles:
    """Files of a run, by their names in its folder.

    Args:
        handle: descriptor of the folder, which is lent.
    """

    def __init__(self, handle: int):
        self._handle = handle

    def open(self, name: str) -> BinaryIO:
        """Open a plain file; OSError or ValueError if there is none, or a link leads to it."""
        *folders, last = _parts(name)
        with _below(os.dup(self._handle), folders) as at:
            handle = os.open(last, _FILE, dir_fd=at)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise ValueError("it is not a plain file")
        return os.fdopen(handle, "rb")

    @contextmanager
    def folder(self, name: str) -> Generator[RunFiles]:
        """Context with the files of a folder in the run's; OSError if there is none, or a link is on the way to it."""
        with _below(os.dup(self._handle), _parts(name)) as handle:
            yield RunFiles(handle)

    def json_to_change(self, name: str, max_bytes: int = MAX_TEXT_BYTES) -> dict[str, Any]:
        """Return the object in a JSON file that is to be written again; empty without the file.

        Args:
            name: of the file.
            max_bytes: of the file.

        Raises:
            ConfigError: it cannot be read, so that what it holds would be lost.
        """
        if self.stat(name) is None:
            return {}
        try:
            with self.open(name) as file:
                content = parse_json(read_whole(file, max_bytes))
            if not isinstance(content, dict):
                raise ValueError("it holds no object")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise ConfigError(
                f"{name} cannot be read ({clipped(reason)}); repair or remove it"
            ) from None
        return cast("dict[str, Any]", content)

    def stat(self, name: str) -> os.stat_result | None:
        """Return what the file system says of a file; None without one."""
        try:
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except OSError:
            return None

    def signature(self, name: str) -> tuple[int, ...] | None:
        """Return what changes when a file is written or replaced; None without one."""
        return signature_of(self.stat(name))

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder of the run, sorted, but those that are not UTF-8; none without one."""
        try:
            parts = _parts(folder) if folder else ()
            with _below(os.dup(self._handle), parts) as at:
                return sorted(filter(_is_text, os.listdir(at)))  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def write(self, name: str, content: bytes) -> None:
        """Replace a file of the folder whole; OSError if it cannot be, or something else than a plain file has its name."""
        write_whole_in(self._handle, name, content)

    def remove(self, name: str) -> None:
        """Remove a file of the folder, if there is one; of a link the link."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    @property
    def running(self) -> bool:
        """Whether some process holds the run's lock."""
        return is_locked(LOCK, flags=_FILE, dir_fd=self._handle)


def last_bytes(file: BinaryIO, end: int) -> bytes:
    """Return the last bytes before a place in a file; they differ in another one that has got its name, and its inode too."""
    begin = max(end - LAST_BYTES, 0)
    return os.pread(file.fileno(), end - begin, begin)


def signature_of(status: os.stat_result | None) -> tuple[int, ...] | None:
    """Return what of a file's status changes when it is written or replaced; None without a file."""
    return status and (status.st_mtime_ns, status.st_size, status.st_ino)


def _is_run(names: set[str]) -> bool:
    if "config.json" in names:
        return bool(names & {"meta.json", "metrics.jsonl", "checkpoints"})
    return "metrics.jsonl" in names or {"meta.json", "log.txt"} <= names


def _is_text(name: str) -> bool:
    """Whether a name of the disk is UTF-8; bytes that are not were made surrogates, which JSON cannot hold."""
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise FileNotFoundError(name)
    return parts


@contextmanager
def _below(handle: int, parts: Sequence[str]) -> Generator[int]:
    """Context with the descriptor of a folder below another one, which is closed even if there is no such folder."""
    try:
        for part in parts:
            below = os.open(part, FOLDER_FLAGS, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)
