"""Commands that are refused: one clear line, exit code 2, nothing made or changed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gossamer import cli
from gossamer.record.folder import LOCK, MEMBERS

LINE = 400
"""Longest line that is still a clear one."""
BEGINS = ("making ", "bringing ")
"""Beginnings of the line of a run that is told before its environments are there, on a slow machine."""


def content_of(folder: Path) -> dict[str, bytes | None]:
    """Return every path below a folder, with what files hold; a lock holds the last user's pid."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name not in (LOCK, MEMBERS)
    }


def refused(words: str, capsys: pytest.CaptureFixture[str], *says: str) -> None:
    """Check that a command is refused in one line that says this, and that the present folder stays as it was."""
    capsys.readouterr()
    before = content_of(Path.cwd())
    code = cli.main(shlex.split(words))
    out, err = capsys.readouterr()
    assert (code, err.count("\n")) == (2, 1), err
    assert all(line.startswith(BEGINS) for line in out.splitlines()), out
    assert err.startswith("gossamer: ")
    assert len(err) < LINE
    for text in says:
        assert text in err
    assert content_of(Path.cwd()) == before
