"""A run is removed, and no folder that has got its name meanwhile."""

from __future__ import annotations

import errno
import fcntl
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from scored_runs import make_run

from gossamer.dashboard.removal import remove_run
from gossamer.dashboard.root import Root
from gossamer.errors import ConfigError
from gossamer.record.files import is_locked


def content(folder: Path) -> dict[str, bytes]:
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_another_run_that_has_taken_the_name_meanwhile_is_not_deleted(tmp_path: Path) -> None:
    """The user has looked at one run, and somebody moves another one there while it is deleted."""
    asked = make_run(tmp_path, "run", returns=(1.0,))
    other = make_run(tmp_path, "other", returns=(500.0,))
    before, of_other = content(asked), content(other)

    @contextmanager
    def moved_meanwhile() -> Generator[None]:
        asked.rename(tmp_path / "kept")
        other.rename(tmp_path / "run")
        yield

    with pytest.raises(ConfigError, match="another folder has taken its name, and nothing was del"):
        remove_run(Root(tmp_path), "run", moved_meanwhile())
    assert content(tmp_path / "run") == of_other
    assert content(tmp_path / "kept") == before
    assert sorted(x.name for x in tmp_path.iterdir()) == ["kept", "run"], "under no hidden name"


def test_a_run_that_somebody_looks_at_is_not_taken_for_one_that_runs(tmp_path: Path) -> None:
    """As `gossamer runs` and another server do: they hold its lock for an instant."""
    run = make_run(tmp_path, "run", returns=(1.0,))
    with (run / ".lock").open("w") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        looks = threading.Timer(0.05, fcntl.flock, (looked_at, fcntl.LOCK_UN))
        looks.start()
        try:
            remove_run(Root(tmp_path), "run", nullcontext())
        finally:
            looks.join()
    assert not run.exists()


def test_a_run_that_runs_is_not_deleted(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run", returns=(1.0,))
    with (run / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="it is running; stop it first"):
            remove_run(Root(tmp_path), "run", nullcontext())
    assert run.exists()


def test_on_a_file_system_without_locks_no_run_runs_and_none_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network disks are; gossamer does not train there, but runs are copied there."""

    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    run = make_run(tmp_path, "run", returns=(1.0,))
    (run / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", unknown)
    assert not is_locked(run / ".lock")
    with pytest.raises(ConfigError, match="it cannot be deleted: Function not implemented"):
        remove_run(Root(tmp_path), "run", nullcontext())
    assert run.exists()
