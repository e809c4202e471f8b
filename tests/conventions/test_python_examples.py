"""The examples of docs/python.md run as printed, and are as short as promised."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import pytest

import gossamer
from gossamer.run.train import TrainResult

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
WRITTEN = PAGE.partition("<!-- generated: api -->")[0]
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def example(mark: str) -> str:
    """Return the one example that has a text in it."""
    (found,) = [code for code in EXAMPLES if mark in code]
    return found


def run(mark: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    names = {"__name__": "example"}
    exec(compile(example(mark), "docs/python.md", "exec"), names)
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_a_run_from_its_first_step_to_its_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("len(scores.returns)", capsys) == ["done: total_env_steps reached", "3 Discrete(2)"]
    (steps,) = run('resume="runs/first"', capsys)
    assert 4_000 <= int(steps) < 4_000 + 8 * 128
    done = gossamer.train(resume=TrainResult(Path("runs/first")), quiet=True)
    assert done.summary["env_steps"] == int(steps)
    capsys.readouterr()
    (told,) = run("scores.standard_error", capsys)
    mean, error, *lengths = re.findall(r"[\d.]+", told)
    assert 8 <= float(mean) <= 500
    assert float(error) >= 0
    assert len(lengths) == 5
    (score,) = run("score, ended", capsys)
    assert 8 <= float(score) <= 500
    assert len([line for line in example("score, ended").splitlines() if line.strip()]) < 20
    assert run("make_vec", capsys) == []
    (told,) = run("def on_row", capsys)
    assert told.startswith("stopped by on_row ")
    (told,) = run("metrics.jsonl", capsys)
    assert told.split()[0] == steps
    assert 0 < float(told.split()[1]) <= 0.7


@pytest.mark.usefixtures("here")
def test_metrics_are_drawn() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    rows = [{"env_steps": 8}, {"env_steps": 16, "return_mean_100": 20.0}]
    names = {"__name__": "example", "rows": rows}
    exec(compile(example("savefig"), "docs/python.md", "exec"), names)
    assert [row["env_steps"] for row in names["seen"]] == [16]
    assert Path("first.svg").stat().st_size > 0
    names["plt"].close("all")


def test_settings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("make_config", capsys) == ["3 (0.0005,) 4000"]


@pytest.mark.usefixtures("here")
def test_trainings_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    told = run("for rate in", capsys)
    assert [line.split()[0] for line in told] == ["0.001", "0.0003"]
    assert len([*Path("runs").rglob("summary.json")]) == 2


@pytest.mark.usefixtures("here")
def test_learners_that_share(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = run("replays.1.shared", capsys)
    best, score = told.split()
    assert best in ("0", "1", "2")
    assert 8 <= float(score) <= 500


@pytest.mark.usefixtures("here")
def test_own_environment_and_torso(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert run("class Corridor", capsys) == ["True"]
    finally:
        gymnasium.registry.pop("Corridor-v0", None)


def test_own_environment_takes_few_lines() -> None:
    """What is not the environment itself is under 20 lines, and the whole is under 30."""
    lines = [line for line in example("class Corridor").splitlines() if line.strip()]
    body = [line for line in lines if line.startswith((" ", "class"))]
    assert len(lines) < 30
    assert len(lines) - len(body) < 20


@pytest.mark.usefixtures("here")
def test_a_mistake_is_told_and_nothing_is_created(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = run("except gossamer.ConfigError", capsys)
    assert "optimizer.learning_rate" in told
    assert not Path("runs").exists()


def test_every_example_is_run() -> None:
    marks = ("len(scores.returns)", 'resume="runs/first"', "scores.standard_error", "score, ended", "make_vec", "def on_row", "metrics.jsonl", "savefig", "make_config", "for rate in", "replays.1.shared", "class Corridor", "except gossamer.ConfigError")  # fmt: skip
    assert {example(mark) for mark in marks} == set(EXAMPLES)


def test_the_written_part_is_short() -> None:
    prose = re.sub(r"```.*?```", "", WRITTEN, flags=re.DOTALL)
    assert len(prose.split()) <= 850
