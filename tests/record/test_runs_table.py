"""`gossamer runs`: what run folders say, quickly and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import ConfigError
from gossamer.record.checkpoint import Score
from gossamer.record.folder import RunFolder
from gossamer.record.metrics import MetricLog
from gossamer.record.runs import list_runs, runs_text


def make(root: Path, name: str, summary: dict[str, Any] | None) -> RunFolder:
    run = RunFolder.create(
        str(root / name), env_id="CartPole-v1", algorithm="ppo", topology="single", seed=1
    )
    config = {
        "env_id": "CartPole-v1",
        "algorithm": {"name": "ppo"},
        "topology": {"name": "single"},
    }
    run.write_start(config, {}, [])
    log = MetricLog(run.path / "metrics.jsonl")
    log.write({"env_steps": 640, "time_s": 1.5, "steps_per_second": 500.0, "return_mean_100": 42})
    log.close()
    run.checkpoints().save_scored("best", 1, {}, {}, Score(99.0, 20))
    if summary is not None:
        run.write_json("summary.json", summary)
    return run


SUMMARY = {
    "env_steps": 1000,
    "updates": 10,
    "restarts": 0,
    "seconds": 12.5,
    "steps_per_second": 321.5,
    "mean_return_last_100": 480.25,
    "best_evaluation": 500.0,
    "exit_reason": "done: total_env_steps reached",
    "exit": {"kind": "done", "cause": "total_env_steps"},
}


def test_a_finished_run_is_read_from_its_summary(tmp_path: Path) -> None:
    make(tmp_path, "a", SUMMARY).unlock()
    (row,) = list_runs(str(tmp_path))
    assert (row.env, row.algorithm, row.topology) == ("CartPole-v1", "ppo", "single")
    assert (row.env_steps, row.seconds, row.steps_per_second) == (1000, 12.5, 321.5)
    assert (row.mean_return_last_100, row.best_evaluation) == (480.25, 500.0)
    assert row.state == "done"
    assert row.run == str(tmp_path / "a")


def test_replays_and_seeds_are_told_where_some_run_says_them(tmp_path: Path) -> None:
    one, two = make(tmp_path, "one", SUMMARY), make(tmp_path, "two", SUMMARY)
    assert "replay" not in runs_text(list_runs(str(tmp_path))).splitlines()[0].split()
    config = json.loads((two.path / "config.json").read_text())
    mix = [{"name": "queue"}, {"name": "elite"}, {"name": "module:Mine"}]
    two.write_json("config.json", {**config, "replays": mix, "seed": 7})
    plain, mixed = list_runs(str(tmp_path))
    assert (plain.replays, plain.seed) == ((), None)
    assert (mixed.replays, mixed.seed) == (("elite", "module:Mine"), 7)
    head, first, last = runs_text([plain, mixed]).splitlines()
    assert head.split()[:5] == ["env", "algorithm", "replay", "seed", "steps"]
    assert first.split()[2:4] == ["-", "-"]
    assert last.split()[2:4] == ["elite+module:Mine", "7"]
    one.unlock()
    two.unlock()


def test_a_running_or_killed_run_is_read_from_its_logs(tmp_path: Path) -> None:
    run = make(tmp_path, "a", None)
    (row,) = list_runs(str(tmp_path))
    assert row.state == "running"
    assert (row.env_steps, row.seconds) == (640, 1.5)
    assert (row.mean_return_last_100, row.best_evaluation) == (42, 99.0)
    run.unlock()
    assert list_runs(str(tmp_path))[0].state == "killed"


def test_a_resumed_run_is_not_shown_by_its_old_summary(tmp_path: Path) -> None:
    run = make(tmp_path, "a", {**SUMMARY, "env_steps": 100, "best_evaluation": 9.0})
    (row,) = list_runs(str(tmp_path))
    assert (row.state, row.env_steps, row.best_evaluation) == ("running", 640, 99.0)
    run.unlock()


def test_damaged_files_do_not_hide_a_run(tmp_path: Path) -> None:
    run = make(tmp_path, "a", SUMMARY)
    run.unlock()
    for name in ("config.json", "summary.json", "meta.json", "evaluation.jsonl", "metrics.jsonl"):
        (run.path / name).write_bytes(b'\xff{"a')
    (row,) = list_runs(str(tmp_path))
    assert (row.env_steps, row.mean_return_last_100, row.state) == (0, None, "killed")


def test_table_and_json(tmp_path: Path) -> None:
    for i, name in enumerate(("z", "a")):
        run = make(tmp_path, name, SUMMARY)
        run.write_json("meta.json", {"started_unix": float(i)})
        run.unlock()
    rows = list_runs(str(tmp_path))
    assert [row.run[-1] for row in rows] == ["z", "a"]  # in order of starting
    head, *lines = runs_text(rows).splitlines()
    words = "env algorithm steps seconds steps/s return best eval state run"
    assert " ".join(head.split()) == words
    assert lines[0].split()[:8] == [
        "CartPole-v1", "ppo-single", "1,000", "12", "322", "480.2", "500", "done",
    ]  # fmt: skip
    loaded = json.loads(runs_text(rows, as_json=True))
    assert loaded[1]["best_evaluation"] == 500.0
    assert set(loaded[0]) >= {"run", "env", "algorithm", "env_steps", "seconds", "state"}


def test_several_learners_have_a_column(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path, name, SUMMARY).unlock()
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps({**config, "num_learners": 4}))
    rows = list_runs(str(tmp_path))
    head, *lines = runs_text(rows).splitlines()
    assert head.split()[:4] == ["env", "algorithm", "learners", "steps"]
    assert [line.split()[2:4] for line in lines] == [["1", "1,000"], ["4", "1,000"]]
    assert [row["num_learners"] for row in json.loads(runs_text(rows, as_json=True))] == [1, 4]


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = runs_text(list_runs())
    assert text.startswith(f"no runs in {Path.cwd() / 'runs'}; type: ")
    assert json.loads(runs_text([], as_json=True)) == []
    with pytest.raises(ConfigError, match="no run 'elsewhere'"):
        list_runs("elsewhere")


def test_runs_are_listed_by_a_part_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CartPole-v1/ppo-single/s1", "CartPole-v1/a2c-single/s1", "Pong/ppo-single/s1"):
        make(tmp_path / "runs", name, SUMMARY).unlock()
    assert len(list_runs("cartpole")) == 2, "as other commands find them"
    assert [row.run for row in list_runs("*ppo*")] == [row.run for row in list_runs("ppo")]


def test_a_fresh_process_lists_runs_without_torch(tmp_path: Path) -> None:
    for i in range(50):
        make(tmp_path, f"run{i}", SUMMARY).unlock()
    code = (
        "import sys; from gossamer.record.runs import list_runs, runs_text; "
        "rows = list_runs(sys.argv[1]); assert len(rows) == 50; runs_text(rows); "
        "heavy = {'torch', 'numpy', 'gymnasium', 'ale_py', 'safetensors', 'rich', 'tensorboard'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=env)


@pytest.mark.parametrize("name", ["folder", "checkpoint", "metrics", "progress", "tensorboard"])
def test_importing_loads_nothing_heavy(name: str) -> None:
    code = (
        f"import sys, gossamer.record.{name}; "
        "assert not {'torch', 'numpy', 'rich', 'safetensors', 'tensorboard'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
