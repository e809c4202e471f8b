"""Tests hold on to behaviour: they read and patch no underscore name of another module, and import no other test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
NOT_OURS = {"_replace", "_asdict", "_fields", "_exit", "_getframe", "_dynamo"}
"""Underscore names of the standard library and of torch."""
FAKES = {"fake_gpu.py", "recorder.py"}
"""Stand in for torch's dispatcher, which has underscore names alone."""


def private(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__") and name != "__new__"
    return name.startswith("_") and not dunder and not name.startswith("_foreach_")


def offences(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in NOT_OURS:
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
            if any(private(name) or name.startswith("test_") for name in names):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "delattr")):
            for word in node.args:
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    last = word.value.rpartition(".")[2]
                    if private(last) and last not in NOT_OURS:
                        found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_tests_know_no_privates() -> None:
    found = {
        path: offences(ast.parse(path.read_text())) for path in FILES if path.name not in FAKES
    }
    assert {path: told for path, told in found.items() if told} == {}


@pytest.mark.parametrize(
    "text",
    [
        "thing._hidden",
        "Thing.__new__(Thing)",
        "monkeypatch.setattr(thing, '_hidden', 1)",
        "monkeypatch.setattr('gossamer.machine._hidden', 1)",
        "from gossamer.machine import _hidden",
        "from test_other import helper",
    ],
)
def test_offences_are_found(text: str) -> None:
    assert len(offences(ast.parse(text))) == 1


@pytest.mark.parametrize("text", ["self._own", "thing.public", "os._exit(1)", "x.__class__"])
def test_what_is_allowed_is_no_offence(text: str) -> None:
    assert offences(ast.parse(text)) == []
