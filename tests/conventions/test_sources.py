"""Sources are plain ASCII, and no two test files have one name."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "gossamer").rglob("*.py"))


def test_modules_are_ascii() -> None:
    assert SOURCES
    assert [path for path in SOURCES if not path.read_bytes().isascii()] == []


def test_test_names_are_unique() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
