"""Folders of checkpoints, whole or absent: atomic save, manifest, load against their hashes, keep-last and best.

A checkpoint is a folder of one safetensors file and one JSON file; nothing in it is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, TypeVar

from gossamer.errors import ConfigError
from gossamer.record.files import ABSENT, is_there, sync_folder, write_hashed
from gossamer.record.safetensors import read_safetensors, safetensors_chunks
from gossamer.system.reading import mapping, open_plain, parse_json, read_plain, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

T = TypeVar("T")
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
MAX_STATE_BYTES = 64 << 20
"""Largest state.json, in bytes; that of a hundred thousand learners is smaller."""
GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.ENXIO}
"""Errors that come again: the bytes are lost. Others (memory, descriptors, permissions, network) may pass."""
FORMAT = 1
"""Version of the layout; a reader refuses any other."""
BEST, CANDIDATE = "best", "candidate"
"""Checkpoints with a score in place of a number: the best policy, and the one that has yet to be confirmed."""
PARTIAL = ".partial"
"""How the name of a checkpoint ends that is being written."""
Scored = Literal["best", "candidate"]


class Score(NamedTuple):
    """Score of a policy in evaluation."""

    mean: float
    """Mean return."""
    episodes: int | None = None
    """Behind that mean; None: an older run has not said."""
    half_width: float | None = None
    """Half the width of the mean's 95 % interval; None: it is not known."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint, read from disk."""

    updates: int
    """Updates of learner 0 behind it."""
    tensors: dict[str, Tensor]
    """Tensors on the CPU, contiguous, writable; those that were not wanted on device meta, which holds nothing."""
    state: dict[str, Any]
    """As saved; JSON has made tuples lists and keys strings."""
    path: Path
    """Its folder."""
    score: float | None = None
    """Mean return of the best policy and of the candidate, by which they are; None for the others."""
    warnings: tuple[str, ...] = ()
    """One line for each newer checkpoint that was damaged and passed over, or that may be better."""

    def nbytes(self, *, loaded: bool) -> int:
        """Return the bytes of all tensors, or of those loaded."""
        return sum(x.nbytes for x in self.tensors.values() if not (loaded and x.is_meta))

    def only(self, wanted: Callable[[str], bool]) -> Checkpoint:
        """Return the checkpoint with those tensors alone whose names are wanted."""
        return replace(self, tensors={name: x for name, x in self.tensors.items() if wanted(name)})


class DamagedError(Exception):
    """A checkpoint is incomplete or its bytes are not those that were saved."""


class UnreadableError(ConfigError):
    """A checkpoint may be whole, and cannot be read for now."""


class CheckpointStore:
    """The checkpoints of one run: `<updates>/` for the newest ones, `best/` and `candidate/`.

    One process writes (from any of its threads); any number may read meanwhile.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        """Look at a folder that need not exist yet.

        Args:
            folder: The run's `checkpoints` folder.
            keep: How many of the newest stay; 0 keeps all.
        """
        assert keep >= 0
        self.folder = folder
        self._keep = keep
        self._writing = threading.Lock()
        self.written_bytes = 0
        """Bytes that have reached the disk so far, over all checkpoints: it grows while one is being written."""

    def save(self, updates: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Save, then remove what is too old; return the checkpoint's folder.

        The tensors must not change meanwhile. On a full disk the older checkpoints stay as they
        are, the partial one is removed and OSError is raised.

        Args:
            updates: of learner 0 so far, the checkpoint's name.
            tensors: Any device and memory format; shared storage is stored twice.
            state: Whatever JSON holds, floats exactly.
        """
        with self._writing:
            path = self._write(str(updates), updates, tensors, state, {})
            with suppress(UnreadableError):  # what is too old goes next time
                for number in self.list()[: -self._keep] if self._keep else []:
                    _remove(self.folder / str(number))
        return path

    def save_scored(
        self,
        name: Scored,
        updates: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        score: Score,
    ) -> None:
        """Save as the best policy, or as the candidate, in place of the one before."""
        with self._writing:
            mean, episodes, half_width = score
            facts = {"score": mean, "episodes": episodes, "half_width": half_width}
            self._write(name, updates, tensors, state, facts)

    def score(self, name: Scored = BEST) -> Score | None:
        """Return the score of the best policy, or of the candidate; None if there is none.

        Raises:
            UnreadableError: there may be one.
        """
        try:
            manifest = self._read_manifest(self._find(name))
            episodes, width = manifest.get("episodes"), manifest.get("half_width")
            return Score(
                float(manifest["score"]),
                episodes if type(episodes) is int else None,
                width if type(width) is float and width >= 0.0 else None,
            )
        except UnreadableError:
            raise
        except (DamagedError, ConfigError, KeyError, TypeError, ValueError, OverflowError):
            return None

    def discard(self, name: Scored) -> None:
        """Remove the best policy, or the candidate, if there is one."""
        with self._writing:
            self._discard(name)

    def list(self) -> list[int]:
        """Updates of the checkpoints that exist, ascending; whether they are intact shows on load."""
        try:
            names = {path.name.removesuffix(".old") for path in self._folders()}
        except OSError as error:
            raise UnreadableError(f"{self.folder} cannot be read: {_reason(error)}") from None
        return sorted(int(name) for name in names if name.isdecimal() and self._exists(name))

    def load(
        self, which: str | int = "last", wanted: Callable[[str], bool] = lambda _: True
    ) -> Checkpoint:
        """Read and verify a checkpoint; "last" falls back to the newest one that is intact.

        Args:
            which: "last", "best", "candidate" or a number of updates.
            wanted: which tensors, by name, take memory.
        """
        if which == "last":
            return self._load_last(wanted)
        if not is_checkpoint(str(which)):
            raise ConfigError(
                f"checkpoint {which!r} is not one of last, best, candidate or a number of updates"
            )
        name = str(which)
        if not self._exists(name):
            have = ", ".join(map(str, self.list()[-5:])) or "none"
            raise ConfigError(f"no checkpoint {name} in {self.folder} (there: {have}); use last")
        try:
            found = self._read(name, wanted)
            return replace(found, warnings=self._rivals()) if name == BEST else found
        except DamagedError as error:
            with suppress(DamagedError):
                return self._read(name, wanted)  # the writer may have replaced it while we read
            raise ConfigError(
                f"checkpoint {name} in {self.folder} is damaged ({error}); use last"
            ) from None

    def discard_after(self, updates: int) -> list[int]:
        """Remove the checkpoints newer than `updates`, which another future will overwrite.

        Call it when a run resumes from `updates`, or "last" would later find the abandoned future.
        The best one stays.
        """
        with self._writing:
            newer = [number for number in self.list() if number > updates]
            for number in newer:
                self._discard(str(number))
        return newer

    def _discard(self, name: str) -> None:
        _remove(self.folder / f"{name}.old")  # first, or a kill would bring it back
        _remove(self.folder / name)

    def _rivals(self) -> tuple[str, ...]:
        """Return a line about the policy that may be better than the best; nothing if there is none."""
        with suppress(UnreadableError):
            if (waiting := self.score(CANDIDATE)) is not None:
                return (
                    f"a policy that was evaluated higher, {waiting.mean:.4g} over {waiting.episodes} episodes, "
                    f"has not been confirmed as the best; to play with it: --checkpoint {CANDIDATE}",
                )
        return ()

    def _load_last(self, wanted: Callable[[str], bool]) -> Checkpoint:
        damaged: dict[int, str] = {}
        # Looked for again each time: the writer may have put newer ones in place of what is read.
        while left := [number for number in self.list() if number not in damaged]:
            number = left[-1]
            try:
                found = self._read(str(number), wanted)
            except DamagedError as error:
                damaged[number] = str(error)
                continue
            warnings = tuple(
                f"checkpoint {newer} in {self.folder} is damaged ({reason}); using {number} instead"
                for newer, reason in damaged.items()
                if newer > number
            )
            return replace(found, warnings=warnings)
        if damaged:
            reasons = "; ".join(f"{number}: {reason}" for number, reason in damaged.items())
            raise ConfigError(
                f"no intact checkpoint in {self.folder} ({reasons}): "
                "start a new run, with --init-from RUN to begin with another run's parameters"
            )
        raise ConfigError(
            f"no checkpoint in {self.folder}: the run ended before its first; start a new run"
        )

    def _write(
        self,
        name: str,
        updates: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> Path:
        state_bytes = json.dumps(dict(state)).encode()  # what is not JSON fails before any write
        self.folder.mkdir(
            exist_ok=True
        )  # of a run that was moved meanwhile there is no place for it
        self._tidy()
        partial = self.folder / f"{name}{PARTIAL}"
        try:
            partial.mkdir()
            files = {
                TENSORS: write_hashed(partial / TENSORS, safetensors_chunks(tensors), self._count),
                STATE: write_hashed(partial / STATE, [state_bytes], self._count),
            }
            manifest = {"format": FORMAT, "updates": updates, "files": files, **facts}
            write_hashed(partial / MANIFEST, [json.dumps(manifest, indent=1).encode()])
            sync_folder(partial)
        except BaseException:
            _remove(partial)
            raise
        return self._swap_in(partial, self.folder / name)

    def _count(self, num_bytes: int) -> None:
        self.written_bytes += num_bytes

    def _swap_in(self, partial: Path, final: Path) -> Path:
        # A folder cannot be replaced in one step: between the two renames `_find` reads the old one.
        old = final.with_name(final.name + ".old")
        if is_there(final):
            final.rename(old)
        partial.rename(final)
        sync_folder(self.folder)
        _remove(old)
        return final

    def _tidy(self) -> None:
        """Remove what a killed process left half done; finish what it left half replaced."""
        for path in self._folders():
            final = path.with_name(path.name.removesuffix(".old"))
            if path.suffix == ".old" and not is_there(final / MANIFEST):
                _remove(final)
                path.rename(final)
            elif path.suffix in (".old", PARTIAL) or not is_there(path / MANIFEST):
                _remove(path)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if _ours(path))
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            return []

    def _find(self, name: str) -> Path:
        final, old = self.folder / name, self.folder / f"{name}.old"
        try:
            return old if not is_there(final) and is_there(old) else final
        except OSError as error:
            raise UnreadableError(f"{final} cannot be read: {_reason(error)}") from None

    def _exists(self, name: str) -> bool:
        """Whether a checkpoint has its manifest, without which it does not exist."""
        path = self._find(name)
        try:
            return is_there(path / MANIFEST)
        except OSError as error:
            raise UnreadableError(f"{path} cannot be read: {_reason(error)}") from None

    def _read_manifest(self, path: Path) -> dict[str, Any]:
        try:
            known = mapping(parse_json(read_plain(path / MANIFEST)))
        except OSError as error:
            raise _unreadable(path / MANIFEST, error) from None
        except ValueError as error:
            raise DamagedError(f"{MANIFEST}: {_reason(error)}") from None
        if not isinstance(known.get("files"), dict):
            raise DamagedError(f"{MANIFEST}: not a manifest")
        if known.get("format") != FORMAT:
            raise DamagedError(f"{MANIFEST}: format {known.get('format')!r:.40}, expected {FORMAT}")
        if type(known.get("updates")) is not int or known["updates"] < 0:
            raise DamagedError(f"{MANIFEST}: updates are {known.get('updates')!r:.40}")
        return known

    def _read(self, name: str, wanted: Callable[[str], bool]) -> Checkpoint:
        path = self._find(name)
        manifest = self._read_manifest(path)
        if name.isdecimal() and str(manifest.get("updates")) != name:
            raise DamagedError(f"{MANIFEST}: it belongs to {manifest.get('updates')} updates")
        files = manifest["files"]
        tensors = _read_hashed(path, TENSORS, files, lambda x: read_safetensors(x, wanted))
        state = _read_hashed(
            path, STATE, files, lambda x: parse_json(read_whole(x, MAX_STATE_BYTES))
        )
        if not isinstance(state, dict):
            raise DamagedError(f"{STATE}: it holds no object")
        return Checkpoint(manifest["updates"], tensors, state, path, manifest.get("score"))


def is_checkpoint(name: str) -> bool:
    """Whether a name is one of a checkpoint's folder, or of a number of updates."""
    return name in (BEST, CANDIDATE) or (name.isascii() and name.isdecimal())


def _ours(path: Path) -> bool:
    name = path.name.removesuffix(".old").removesuffix(PARTIAL)
    return path.is_dir() and is_checkpoint(name)


def _remove(path: Path) -> None:
    # Without its manifest a half-removed checkpoint does not exist.
    with suppress(OSError):
        (path / MANIFEST).unlink()
    shutil.rmtree(path, ignore_errors=True)


def _unreadable(path: Path, error: OSError | MemoryError) -> DamagedError | UnreadableError:
    """Return the error for what cannot be read: damaged only if another try would not read it either."""
    if isinstance(error, OSError) and error.errno in GONE:
        return DamagedError(f"{path.name}: {_reason(error)}")
    # The checkpoint may be whole. To take an older one would give up what was learnt since.
    return UnreadableError(
        f"{path} cannot be read: {_reason(error) or 'there is too little memory'}"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "unreadable"
    return " ".join(str(error).split())[:100]


def _read_hashed(path: Path, name: str, files: Any, read: Callable[[BinaryIO], T]) -> T:
    try:
        with open_plain(path / name) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != str(files[name]["sha256"]):
                raise DamagedError(f"{name}: not the bytes that were saved")
            file.seek(0)
            return read(file)
    except (OSError, MemoryError) as error:
        raise _unreadable(path / name, error) from None
    except ValueError as error:
        raise DamagedError(f"{name}: {_reason(error)}") from None
    except (KeyError, TypeError):
        raise DamagedError(f"{MANIFEST}: no hash of {name}") from None
