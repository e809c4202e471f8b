"""Runs of families of tasks: who plays which, what is recorded of it, and what a resumed run keeps."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from held_envs import steps_for
from runs import SMALL, pids_of, rows_of
from sessions import QUICK, Session, summary_of
from task_envs import Windy

from gossamer.cli import main
from gossamer.config import TrainConfig, make_config
from gossamer.errors import ConfigError, RunFailed
from gossamer.run.train import train


def config(folder: Path, env_id: str = "task_envs:Windy", **settings: Any) -> TrainConfig:
    given = {
        **SMALL,
        "num_learners": 2,
        "topology": {"name": "diffusion"},
        "env.family": True,
        "run_folder": str(folder),
        "total_env_steps": 2 * 128,
        **settings,
    }
    return make_config(env_id, given)


def test_everyone_plays_the_same_tasks_wherever_learners_are(tmp_path: Path) -> None:
    played: dict[str, set[tuple[Any, ...]]] = {}
    for name, settings in {
        "inline": {"placement": "inline"},
        "local": {"placement": "local", "env_groups": 2},
        "workers": {"placement": "local", "env.workers": 2},
    }.items():
        train(config(tmp_path / name, **settings), quiet=True)
        rows = rows_of(tmp_path / name, "episodes")
        played[name] = {(row["env"], row["task"], row["info"]["wind"]) for row in rows}
        for row in rows:
            info = row["info"]
            assert row["return"] == 5 * info["wind"]
            assert (info["steps"], info["gust"]) == (5.0, None)
        assert {env for env, _, _ in played[name]} == set(range(8))
        for env in range(8):
            lines = (tmp_path / name / f"monitor/{env}.monitor.csv").read_text().splitlines()[1:]
            for line in csv.DictReader(lines):
                assert list(line) == ["r", "l", "t", "wind", "steps", "gust"]
                assert float(line["r"]) == 5 * float(line["wind"])
                assert (line["steps"], line["gust"]) == ("5.0", "nan")
    assert {task for _, task, _ in played["inline"]} == set(range(8))
    assert played["inline"] == played["local"] == played["workers"]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_told_ends_the_run_in_words(tmp_path: Path, workers: int) -> None:
    made = config(tmp_path / "run", "task_envs:Breaks", **{"env.workers": workers})
    with pytest.raises(RunFailed, match=r"environment \d failed in episode 0:(.|\n)*no wind"):
        train(made, quiet=True)


def test_a_learner_that_took_over_plays_the_same_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        "held_envs:HeldWindy", *QUICK, "--num-learners", "2", "topology:gossip", "--env.family", "true",
        "--total-env-steps", str(steps_for(2, 120.0)), "--run-folder", str(folder),
    ]  # fmt: skip

    with Session(words, tmp_path) as session:
        session.wait_for(lambda: len(rows_of(folder, "episodes")) > 20, "episodes")
        victim = pids_of(folder)[1]
        os.kill(victim, signal.SIGKILL)
        session.wait_for(lambda: pids_of(folder)[1] not in (None, victim), "a new process")
        session.release()
        session.ends()
    assert summary_of(folder)["restarts"] == 1
    rows = rows_of(folder, "episodes")
    tasks = {(row["env"], row["task"], row["info"]["wind"]) for row in rows}
    assert len(tasks) == 8
    assert {(env, task) for env, task, _ in tasks} == {(i, i) for i in range(8)}


def test_a_resumed_run_keeps_its_tasks(tmp_path: Path) -> None:
    folder, settings = tmp_path / "run", {"placement": "inline", "total_env_steps": 2 * 64}
    train(config(folder, **settings), quiet=True)
    more = {**settings, "total_env_steps": 2 * 128}
    for name, value in {"env.task_seed": 5, "env.tasks_per_learner": 2}.items():
        says = f"^{name} is {value}, but this run was begun with none, which a resumed run keeps"
        with pytest.raises(ConfigError, match=says):
            train(config(folder, **more, **{name: value}), resume=str(folder), quiet=True)
    result = train(config(folder, **more), resume=str(folder), quiet=True)
    assert result.summary["env_steps"] >= 2 * 128


def test_scores_in_json_are_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class NeverPays(Windy):
        paid = 1.0

        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, self.paid, *rest

    gymnasium.register("NeverPays-v0", entry_point=NeverPays)
    try:
        made = config(tmp_path / "run", "NeverPays-v0", placement="inline")
        train(made, quiet=True)
        capsys.readouterr()
        NeverPays.paid = float("nan")
        assert main(["eval", str(tmp_path / "run"), "--episodes", "1", "--json"]) == 0
    finally:
        gymnasium.registry.pop("NeverPays-v0")
    row = json.loads(capsys.readouterr().out, parse_constant=lambda x: pytest.fail(x))
    assert row["mean"] is None
    assert row["returns"] == [None] * 8
    assert row["tasks"] == list(range(8))
