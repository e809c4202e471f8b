"""Everything public says what it is, and every setting says what it means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gossamer"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SETTINGS = [
    *sorted((PACKAGE / "algorithms").glob("*.py")),
    *sorted((PACKAGE / "config").glob("train*.py")),
    PACKAGE / "envs" / "settings.py",
    PACKAGE / "roles" / "optimizers.py",
    PACKAGE / "policies" / "settings.py",
    PACKAGE / "replay" / "settings.py",
    *sorted((PACKAGE / "replay" / "selectors").glob("*.py")),
    *sorted((PACKAGE / "topology").glob("*.py")),
]


def public_definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the module, its public functions and classes, and public methods of plain classes."""
    tree = ast.parse(path.read_text())
    yield "module", tree
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        yield node.name, node
        # An override may rely on the docstring of what it overrides.
        if isinstance(node, ast.ClassDef) and all(_plain(base) for base in node.bases):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield f"{node.name}.{member.name}", member


def _plain(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and base.id in {"Protocol", "NamedTuple"}


def is_frozen_dataclass(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        isinstance(mark, ast.Call)
        and isinstance(mark.func, ast.Name)
        and mark.func.id == "dataclass"
        and any(
            word.arg == "frozen" and isinstance(word.value, ast.Constant) and word.value.value
            for word in mark.keywords
        )
        for mark in node.decorator_list
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_public_names_have_docstrings(path: Path) -> None:
    if not path.read_text().strip():
        return
    missing = [name for name, node in public_definitions(path) if not ast.get_docstring(node)]
    assert missing == []


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_setting_has_a_docstring_beneath(path: Path) -> None:
    missing: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if not is_frozen_dataclass(node):
            continue
        assert isinstance(node, ast.ClassDef)
        for member, following in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(member, ast.AnnAssign) or not isinstance(member.target, ast.Name):
                continue
            if "ClassVar" in ast.unparse(member.annotation):
                continue
            documented = (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            )
            if not documented:
                missing.append(f"{node.name}.{member.target.id}")
    assert missing == []
