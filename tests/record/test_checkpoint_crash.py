"""A process killed, or a power cut, at any moment of a save leaves a checkpoint to resume from."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gossamer.record.checkpoint import CheckpointStore, Score
from gossamer.record.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


class Camera:
    """Copies a folder before and after every change of the disk that a piece of code makes.

    Each copy is what a killed process leaves. Its twin is what a power cut leaves: files that were
    not synced lose their second half.
    """

    def __init__(self, folder: Path, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.album, self.shots = folder, album, 0
        self.synced: set[int] = set()
        self.off = False
        for name in CHANGES:
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.off:
                return real(*args, **kwargs)
            self.shoot()
            result = real(*args, **kwargs)
            if name == "fsync":
                self.synced.add(os.fstat(args[0]).st_ino)
            self.shoot()
            return result

        return call

    def shoot(self) -> None:
        self.off = True
        for kind in ("killed", "power"):
            copy = self.album / f"{self.shots:03}-{kind}"
            shutil.copytree(self.folder, copy)
            for path in self.folder.rglob("*"):
                if kind == "power" and path.is_file() and path.stat().st_ino not in self.synced:
                    os.truncate(copy / path.relative_to(self.folder), path.stat().st_size // 2)
        self.shots += 1
        self.off = False

    def pictures(self) -> list[Path]:
        self.off = True
        return sorted(self.album.iterdir())


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((50,), value), "b": torch.full((7,), int(value))}


def check(store: CheckpointStore, which: str | int) -> int:
    found = store.load(which)
    assert found.tensors["a"].unique().item() == found.state["n"] == found.updates
    return found.updates


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    (tmp_path / "live").mkdir()
    made = CheckpointStore(tmp_path / "live" / "checkpoints", keep=2)
    for n in (1, 2):
        made.save(n, tensors(n), {"n": n})
    made.save_scored("best", 2, tensors(2), {"n": 2}, Score(2.0))
    return made


def film(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> list[Path]:
    album = store.folder.parent.parent / "album"
    album.mkdir()
    with monkeypatch.context() as patch:
        camera = Camera(store.folder, album, patch)
        # What was there before is on the disk for good.
        camera.synced = {path.stat().st_ino for path in store.folder.rglob("*")}
        act()
        pictures = camera.pictures()
    assert len(pictures) > 20
    return pictures


def test_every_moment_of_a_save(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = film(store, monkeypatch, lambda: store.save(3, tensors(3), {"n": 3}))
    seen: list[int] = []
    for picture in pictures:
        after = CheckpointStore(picture, keep=2)
        found = check(after, "last")
        assert after.load("last").warnings == ()
        assert [check(after, n) for n in after.list()] == after.list()
        assert check(after, "best") == 2
        if picture.name.endswith("killed"):
            seen.append(found)
        after.save(4, tensors(4), {"n": 4})  # the next session goes on, and clears up
        assert check(after, "last") == 4
        left = {path.name for path in picture.iterdir()}
        assert left == {"4", "best", str(found)}
    assert seen == sorted(seen)
    assert set(seen) == {2, 3}


def test_every_moment_of_replacing_the_best(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = Score(3.0, 20)
    pictures = film(
        store, monkeypatch, lambda: store.save_scored("best", 3, tensors(3), {"n": 3}, better)
    )
    seen: list[int] = []
    for picture in pictures:
        after = CheckpointStore(picture, keep=2)
        found = check(after, "best")
        assert after.score() == (better if found == 3 else Score(2.0))
        assert check(after, "last") == 2
        if picture.name.endswith("killed"):
            seen.append(found)
        after.save(4, tensors(4), {"n": 4})
        assert check(after, "best") == found
        assert {path.name for path in picture.iterdir()} == {"2", "4", "best"}
    assert seen == sorted(seen)
    assert set(seen) == {2, 3}


def test_every_moment_of_saving_the_same_number_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = film(store, monkeypatch, lambda: store.save(2, tensors(2), {"n": 2}))
    for picture in pictures:
        after = CheckpointStore(picture, keep=2)
        assert check(after, "last") == 2
        assert after.list() == [1, 2]


def test_a_file_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "album").mkdir()
    path = tmp_path / "live" / "summary.json"
    write_whole(path, lambda file: file.write(b"old" * 1000))
    with monkeypatch.context() as patch:
        camera = Camera(tmp_path / "live", tmp_path / "album", patch)
        camera.synced = {path.stat().st_ino}
        write_whole(path, lambda file: file.write(b"new" * 1000))
        pictures = camera.pictures()
    contents = {(picture / "summary.json").read_bytes() for picture in pictures}
    assert contents == {b"old" * 1000, b"new" * 1000}
