"""The package stays small enough to read: few modules, none of them long, plain ASCII."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "gossamer").rglob("*.py"))
MAX_LINES = 700
MAX_MODULES = 120


def with_code(path: Path) -> bool:
    """A package's `__init__` that only names it is no module to read."""
    return path.name != "__init__.py" or len(path.read_text().splitlines()) > 5


def test_number_of_modules() -> None:
    modules = [path for path in SOURCES if with_code(path)]
    assert modules
    assert len(modules) <= MAX_MODULES, f"{len(modules)} modules: merge before adding"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_is_short_and_ascii(path: Path) -> None:
    text = path.read_bytes().decode("ascii")
    assert len(text.splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_test_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_test_names_are_unique() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
