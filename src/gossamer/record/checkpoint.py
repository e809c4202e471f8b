"""Checkpoints that are whole or absent: atomic save, manifest, verified load, keep-last and best.

A checkpoint is a folder of one safetensors file and one JSON file; nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from gossamer.record.files import read_safetensors, safetensors_chunks, sync_folder, write_hashed
from gossamer.types import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

T = TypeVar("T")
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
FORMAT = 1
"""Version of the layout; a reader refuses a larger one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint, read from disk."""

    updates: int
    """Optimizer steps behind it."""
    tensors: dict[str, Tensor]
    """On the CPU, contiguous, writable; those that were not wanted on device meta, which holds nothing."""
    state: dict[str, Any]
    """As saved; JSON has made tuples lists and keys strings."""
    path: Path
    """Its folder."""
    score: float | None = None
    """The evaluation that made it the best; None for the others."""
    warnings: tuple[str, ...] = ()
    """One line for each newer checkpoint that was damaged and passed over."""

    def nbytes(self, *, loaded: bool) -> int:
        """Return the bytes of all tensors, or of those loaded."""
        return sum(x.nbytes for x in self.tensors.values() if not (loaded and x.is_meta))


class DamagedError(Exception):
    """A checkpoint is incomplete or its bytes are not those that were saved."""


class CheckpointStore:
    """The checkpoints of one run: `<updates>/` for the newest ones and `best/`.

    One process writes (from any of its threads); any number may read meanwhile.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        """Look at a folder that need not exist yet.

        Args:
            folder: The run's `checkpoints` folder.
            keep: How many of the newest stay, pinned ones not counted; 0 keeps all.
        """
        assert keep >= 0
        self.folder = folder
        self._keep = keep
        self._writing = threading.Lock()

    def save(
        self,
        updates: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        pin: bool = False,
    ) -> Path:
        """Save, then remove what is too old; return the checkpoint's folder.

        The tensors must not change meanwhile. On a full disk the older checkpoints stay as they
        are, the partial one is removed and OSError is raised.

        Args:
            updates: Optimizer steps so far, the checkpoint's name.
            tensors: Any device and memory format; shared storage is stored twice.
            state: Whatever JSON holds, floats exactly.
            pin: Never remove it.
        """
        with self._writing:
            path = self._write(str(updates), updates, tensors, state, {"pinned": pin})
            self._prune()
        return path

    def save_best(
        self,
        updates: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        score: float,
    ) -> bool:
        """Save as the best if `score` beats the best so far; return whether it did."""
        with self._writing:
            best = self.best_score()
            if math.isnan(score) or (best is not None and score <= best):
                return False
            self._write("best", updates, tensors, state, {"score": score})
        return True

    def best_score(self) -> float | None:
        """Score of the best checkpoint; None without one."""
        try:
            return float(self._read_manifest(self._find("best"))["score"])
        except (DamagedError, KeyError, TypeError, ValueError):
            return None

    def list(self) -> list[int]:
        """Updates of the checkpoints that exist, ascending; whether they are intact shows on load."""
        names = {path.name.removesuffix(".old") for path in self._folders()}
        found = (name for name in names if name.isdecimal())
        return sorted(int(name) for name in found if (self._find(name) / MANIFEST).is_file())

    def load(
        self, which: str | int = "last", wanted: Callable[[str], bool] = lambda _: True
    ) -> Checkpoint:
        """Read and verify a checkpoint; "last" falls back to the newest one that is intact.

        Args:
            which: "last", "best" or a number of updates.
            wanted: which tensors, by name, take memory.
        """
        if which == "last":
            return self._load_last(wanted)
        if which != "best" and not str(which).isdecimal():
            raise ConfigError(
                f"checkpoint {which!r} is not one of last, best or a number of updates"
            )
        name = str(which)
        if not (self._find(name) / MANIFEST).is_file():
            have = ", ".join(map(str, self.list()[-5:])) or "none"
            raise ConfigError(f"no checkpoint {name} in {self.folder} (there: {have}); use last")
        try:
            return self._read(name, wanted)
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
                _remove(self.folder / str(number))
                _remove(self.folder / f"{number}.old")
        return newer

    def _load_last(self, wanted: Callable[[str], bool]) -> Checkpoint:
        damaged: list[tuple[int, str]] = []
        for number in reversed(self.list()):
            try:
                found = self._read(str(number), wanted)
            except DamagedError as error:
                damaged.append((number, str(error)))
                continue
            warnings = tuple(
                f"checkpoint {newer} in {self.folder} is damaged ({reason}); using {number} instead"
                for newer, reason in damaged
            )
            return Checkpoint(
                found.updates, found.tensors, found.state, found.path, warnings=warnings
            )
        if damaged:
            reasons = "; ".join(f"{number}: {reason}" for number, reason in damaged)
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
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tidy()
        partial = self.folder / f"{name}.partial"
        try:
            partial.mkdir()
            files = {
                TENSORS: write_hashed(partial / TENSORS, safetensors_chunks(tensors)),
                STATE: write_hashed(partial / STATE, [state_bytes]),
            }
            manifest = {"format": FORMAT, "updates": updates, "files": files, **facts}
            write_hashed(partial / MANIFEST, [json.dumps(manifest, indent=1).encode()])
            sync_folder(partial)
        except BaseException:
            _remove(partial)
            raise
        return self._swap_in(partial, self.folder / name)

    def _swap_in(self, partial: Path, final: Path) -> Path:
        # A folder cannot be replaced in one step: between the two renames `_find` reads the old one.
        old = final.with_name(final.name + ".old")
        if final.exists():
            final.rename(old)
        partial.rename(final)
        sync_folder(self.folder)
        _remove(old)
        return final

    def _tidy(self) -> None:
        """Remove what a killed process left half done; finish what it left half replaced."""
        for path in self._folders():
            final = path.with_name(path.name.removesuffix(".old"))
            if path.suffix == ".old" and not (final / MANIFEST).is_file():
                _remove(final)
                path.rename(final)
            elif path.suffix in (".old", ".partial") or not (path / MANIFEST).is_file():
                _remove(path)

    def _prune(self) -> None:
        if not self._keep:
            return
        for number in self.list()[: -self._keep]:
            with suppress(DamagedError):
                if self._read_manifest(self.folder / str(number)).get("pinned"):
                    continue
            _remove(self.folder / str(number))

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if _ours(path))
        except OSError:
            return []

    def _find(self, name: str) -> Path:
        final, old = self.folder / name, self.folder / f"{name}.old"
        return old if not final.exists() and old.exists() else final

    def _read_manifest(self, path: Path) -> dict[str, Any]:
        try:
            manifest: Any = json.loads((path / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            raise DamagedError(f"{MANIFEST}: {_reason(error)}") from None
        if not isinstance(manifest, dict) or "files" not in manifest:
            raise DamagedError(f"{MANIFEST}: not a manifest")
        known = cast("dict[str, Any]", manifest)
        if known.get("format") != FORMAT:
            raise DamagedError(f"{MANIFEST}: format {known.get('format')}, expected {FORMAT}")
        return known

    def _read(self, name: str, wanted: Callable[[str], bool]) -> Checkpoint:
        path = self._find(name)
        manifest = self._read_manifest(path)
        if name != "best" and str(manifest.get("updates")) != name:
            raise DamagedError(f"{MANIFEST}: it belongs to {manifest.get('updates')} updates")
        files = manifest["files"]
        tensors = _read_hashed(path, TENSORS, files, lambda x: read_safetensors(x, wanted))
        state = _read_hashed(path, STATE, files, json.load)
        return Checkpoint(int(manifest["updates"]), tensors, state, path, manifest.get("score"))


def _ours(path: Path) -> bool:
    name = path.name.removesuffix(".old").removesuffix(".partial")
    return path.is_dir() and (name.isdecimal() or name == "best")


def _remove(path: Path) -> None:
    # Without its manifest a half-removed checkpoint does not exist.
    with suppress(OSError):
        (path / MANIFEST).unlink()
    shutil.rmtree(path, ignore_errors=True)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "unreadable"
    return " ".join(str(error).split())[:100]


def _read_hashed(path: Path, name: str, files: Any, read: Callable[[BinaryIO], T]) -> T:
    try:
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != str(files[name]["sha256"]):
                raise DamagedError(f"{name}: not the bytes that were saved")
            file.seek(0)
            return read(file)
    except OSError as error:
        raise DamagedError(f"{name}: {_reason(error)}") from None
    except ValueError as error:
        raise DamagedError(f"{path.name}: {_reason(error)}") from None
    except (KeyError, TypeError):
        raise DamagedError(f"{MANIFEST}: no hash of {name}") from None
