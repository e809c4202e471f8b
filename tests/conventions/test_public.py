"""The public surface: what `import gossamer` promises, and nothing by accident."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import gossamer

ROOT = Path(__file__).parents[2]
PROMISED = {"ConfigError", "RunFailed", "TrainConfig", "evaluate", "load_policy", "train"}


def test_promised_names_are_public() -> None:
    assert set(gossamer.__all__) >= PROMISED
    assert len(gossamer.__all__) == len(set(gossamer.__all__))
    assert set(dir(gossamer)) >= set(gossamer.__all__)


@pytest.mark.parametrize("name", sorted(gossamer.__all__))
def test_public_name_resolves_and_is_documented(name: str) -> None:
    found = getattr(gossamer, name)
    if name.startswith("__"):
        return
    assert inspect.getdoc(found), f"gossamer.{name} has no docstring"
    assert found.__module__.startswith("gossamer"), f"gossamer.{name} is not ours"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        gossamer.no_such_name  # noqa: B018


def test_the_package_is_typed() -> None:
    assert (ROOT / "src" / "gossamer" / "py.typed").exists()


def test_one_version() -> None:
    """pyproject.toml, CITATION.cff and the package agree."""
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', project, flags=re.MULTILINE)
    assert version
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
    assert gossamer.__version__ == version[1]
