"""Generated parts of the docs say what the program does."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gossamer
from gossamer.cli import COMMANDS
from gossamer.config import kinds, make_config, to_dict
from gossamer.config.names import flag
from gossamer.config.tree import flatten
from gossamer.envs.settings import SUITE_IDS

ROOT = Path(__file__).parents[2]
SUITES = ["other", "classic", "box2d", "mujoco", "atari", "minigrid", "toy"]
IDS = {
    "other": "my_envs:make",
    "classic": "CartPole-v1",
    "box2d": "LunarLander-v3",
    "mujoco": "HalfCheetah-v5",
    "atari": "PongNoFrameskip-v4",
    "minigrid": "MiniGrid-DoorKey-5x5-v0",
    "toy": "FrozenLake-v1",
}
WORDS = {"on": True, "off": False, "none": None}


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "scripts" / "gen_docs.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def value_of(cell: str, like: Any) -> Any:
    """Read a cell of a table as the kind of value that a config has."""
    text = cell.strip("` ")
    if isinstance(like, list):
        if text == "[]":
            return []
        return [float(x) for x in text.split()] if like and not isinstance(like[0], str) else text
    return WORDS[text] if text in WORDS else type(like)(text)


@pytest.mark.parametrize("algorithm", [*kinds("algorithm")])
def test_tables_of_defaults_are_what_make_config_returns(
    algorithm: str, generator: ModuleType
) -> None:
    lines = generator.PARTS[f"defaults {algorithm}"]().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `--")]
    trained = {
        suite: dict(flatten(to_dict(make_config(IDS[suite], {"algorithm": algorithm}))))
        for suite in SUITES
    }
    assert list(SUITE_IDS) == SUITES
    shown = set()
    for setting, *cells in rows:
        name = setting.strip("` -").replace("-", "_")
        shown.add(name)
        for suite, cell in zip(SUITES, cells, strict=True):
            value = trained[suite][name]
            if isinstance(value, str):
                assert cell.strip("` ") == value, (suite, name)
            else:
                assert value_of(cell, value) == value, (suite, name)
    for name, value in trained["other"].items():
        differs = any(trained[suite][name] != value for suite in SUITES)
        own = name.startswith("algorithm.") and name != "algorithm.name"
        if own or (differs and name != "env_id"):
            assert name in shown, name


def test_parts_are_filled_wherever_their_markers_stand(generator: ModuleType) -> None:
    text = "before\n<!-- generated: defaults ppo -->\nold\n<!-- end -->\nafter\n"
    filled = generator.filled(text)
    assert "old" not in filled
    assert filled.startswith("before\n")
    assert filled.endswith("<!-- end -->\nafter\n")
    assert filled == generator.filled(filled)
    with pytest.raises(KeyError):
        generator.filled("<!-- generated: nothing -->\n<!-- end -->")


def test_the_command_line_page_has_every_command_and_argument(generator: ModuleType) -> None:
    page = generator.pages()["docs/command-line.md"]
    sections = dict(
        re.findall(r"^## gossamer (\w+)\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    )
    assert set(sections) == set(COMMANDS)
    for name, command in COMMANDS.items():
        for word in command.words:
            if word.meaning:
                typed = word.typed.strip("[]").replace("|", "\\|")
                assert f"| `{typed}` |" in sections[name], (name, typed)
    for section in ("algorithm", "topology"):
        assert all(f"`{name}`" in sections["train"] for name in kinds(section))


def test_the_command_line_page_has_every_environment_variable(generator: ModuleType) -> None:
    page = generator.pages()["docs/command-line.md"].partition("## Environment variables")[2]
    # Of processes that gossamer starts, and of libraries.
    for_others = {"PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYGAME_HIDE_SUPPORT_PROMPT", "SDL_AUDIODRIVER"}  # fmt: skip
    read: set[str] = {"GOSSAMER_MACHINE"}
    for path in (ROOT / "src").rglob("*.py"):
        for line in path.read_text().splitlines():
            if "environ" in line:
                read |= set(re.findall(r'"([A-Z][A-Z0-9_]{3,})"', line))
    assert len(read) > 8
    for name in read - for_others:
        assert f"`{name}`" in page, name


def test_the_reference_has_every_public_name_with_its_arguments(generator: ModuleType) -> None:
    text = generator.PARTS["api"]()
    for name in gossamer.__all__:
        assert f"### gossamer.{name}\n" in text, name
        found = getattr(gossamer, name)
        if inspect.isfunction(found):
            section = text.partition(f"### gossamer.{name}\n")[2].partition("\n### ")[0]
            for argument in inspect.signature(found).parameters:
                assert re.search(rf"^\| `{argument}` \| `.+` \| .+ \|$", section, re.MULTILINE)
            assert "\nReturns: " in section
            assert "| `ConfigError` |" in section
    for name in ("TrainResult", "Evaluation", "gossamer.Policy"):
        assert f"### {name}\n" in text
    for attribute in ("folder", "summary", "returns", "mean", "held_out", "action_space"):
        assert f"| `{attribute}` |" in text


def test_flags_in_tables_are_settings(generator: ModuleType) -> None:
    known = {flag(x) for x, _ in flatten(to_dict(make_config("x:y", {"algorithm": "ppo"})))}
    shown = re.findall(r"^\| `(--[\w.-]+)`", generator.PARTS["defaults ppo"](), re.MULTILINE)
    assert len(shown) > 20
    assert set(shown) <= known
