"""Everything public says what it is, and every setting says what it means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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


def public_methods(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the public methods of public classes that are plain: an override may rely on what it overrides."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in node.body if all(map(_plain, node.bases)) else ():
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield f"{path.name}: {node.name}.{member.name}", member


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


def test_public_methods_have_docstrings() -> None:
    """The linter asks for those of modules, classes and functions."""
    methods = [method for path in SOURCES for method in public_methods(path)]
    assert len(methods) > 100
    assert [name for name, node in methods if not ast.get_docstring(node)] == []


def test_every_setting_has_a_docstring_beneath() -> None:
    missing: list[str] = []
    for node in [node for path in SETTINGS for node in ast.parse(path.read_text()).body]:
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
