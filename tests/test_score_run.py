"""The benchmark that scores a run's checkpoints reads what a run writes."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.config import make_config
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.train import train

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "score_run.py"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    given = {
        "placement": "inline", "evaluation.every_seconds": 0, "total_env_steps": 2048, "num_envs": 4,
        "run_folder": str(tmp_path / "run"), "keep_checkpoints": 0, "max_episode_steps": 30,
    }  # fmt: skip
    return train(make_config("CartPole-v1", given), quiet=True).folder


@pytest.fixture
def told(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What the script says of the run."""

    def call(*more: str) -> str:
        words = [str(SCRIPT), str(run), "--target", "5", "--episodes", "2", *more]
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_checkpoints_are_scored_from_where_training_got_somewhere(
    run: Path, told: Callable[..., str]
) -> None:
    of_all = told("--skip-below", "1")
    assert '"training_return"' in of_all
    assert '"training_return"' not in told("--skip-below", "400")
    # what training games came to, over the last of them only
    games = [json.loads(x) for x in (run / "episodes.jsonl").read_text().splitlines()]
    last = round(sum(x["return"] for x in games[-3:]) / 3, 2)
    rows = [json.loads(x) for x in told("--window", "3", "--all").splitlines() if x[0] == "{"]
    assert rows[-1]["training_return"] == last


def test_two_in_a_row_have_none_between_them_that_was_skipped(
    run: Path, told: Callable[..., str]
) -> None:
    store = CheckpointStore(run / "checkpoints", 0)
    last = store.load("last")
    for updates in store.list():
        store.discard_after(updates - 1)
    for updates, training_return in enumerate((100.0, 1.0, 100.0, 1.0, 100.0, 100.0)):
        window = [[0, [training_return], [20]]]
        recorder = {**last.state["recorder"], "window": window, "seconds": 10.0 * updates}
        held = {**last.state["held"], "learner.update": updates}
        store.save(updates, last.tensors, {**last.state, "held": held, "recorder": recorder})
    assert "reached 5 at 0.0 s" in told()
    assert "reached 5 at 40.0 s" in told("--skip-below", "50")
    assert "reached 5 at 40.0 s" in told("--skip-below", "50", "--all")
    store.discard_after(4)
    assert "5 not reached" in told("--skip-below", "50")
