"""The examples of docs/python.md run as printed, and are as short as promised."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def run(code: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    exec(compile(code, "docs/python.md", "exec"), {"__name__": "example"})
    return capsys.readouterr().out.splitlines()


def test_a_run_is_trained_evaluated_loaded_acted_with_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(EXAMPLES[0], capsys) == ["done: total_env_steps reached", "3 Discrete(2)"]
    (score,) = run(EXAMPLES[3], capsys)
    assert 8 <= float(score) <= 500
    assert len([line for line in EXAMPLES[3].splitlines() if line.strip()]) < 20
    run(EXAMPLES[4], capsys)
    (steps,) = run(EXAMPLES[1], capsys)
    assert 4_000 <= int(steps) < 4_000 + 8 * 128


def test_learners_that_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (told,) = run(EXAMPLES[2], capsys)
    best, score = told.split()
    assert best in ("0", "1", "2")
    assert 8 <= float(score) <= 500


def test_own_environment_and_torso(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert run(EXAMPLES[5], capsys) == ["True"]
    finally:
        gymnasium.registry.pop("Corridor-v0", None)


def test_own_environment_takes_few_lines() -> None:
    """What is not the environment itself is under 20 lines, and the whole is under 30."""
    lines = [line for line in EXAMPLES[5].splitlines() if line.strip()]
    body = [line for line in lines if line.startswith((" ", "class"))]
    assert len(lines) < 30
    assert len(lines) - len(body) < 20
