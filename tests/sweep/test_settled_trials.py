"""Trials of a sweep that goes on: what was settled stays settled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.sweep.file import read_sweep
from gossamer.sweep.pool import PlannedRun
from gossamer.sweep.store import SweepFolder
from gossamer.sweep.trial_queue import TrialQueue

FILE = """
method = "{method}"
{more}
[settings]
env_id = "CartPole-v1"
num_envs = 4
[search]
"algorithm.passes" = [1, 2, 3, 4]
"""


def made(tmp_path: Path, method: str, more: str) -> SweepFolder:
    (tmp_path / "x.toml").write_text(FILE.format(method=method, more=more))
    found = SweepFolder(tmp_path / "x", read_sweep(str(tmp_path / "x.toml")))
    found.path.mkdir()
    return found


def next_of(queue: TrialQueue) -> PlannedRun:
    run = queue.next()
    assert run
    return run


def evaluated(queue: TrialQueue, run: PlannedRun, mark: int, mean: float) -> None:
    """Let a run have been evaluated at so many twentieths."""
    steps = mark * queue.trials[0].config.total_env_steps // 20
    row = {"mean": mean, "env_steps": steps, "time_s": 1.0, "learner": 0}
    run.folder.mkdir(parents=True, exist_ok=True)
    with (run.folder / "evaluation.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_a_trial_that_was_stopped_early_is_not_trained_by_the_next_sweep(tmp_path: Path) -> None:
    """Though the sweep that stopped it was killed at once."""
    pytest.importorskip("optuna", reason="Optuna is an optional extra")
    folder = made(tmp_path, "grid", 'pruner = "halving"')
    queue = TrialQueue(folder)
    queue.say = lambda _: None
    runs = [next_of(queue) for _ in range(4)]
    for run, mean in zip(runs, (100.0, 1.0, 100.0, 100.0), strict=True):
        evaluated(queue, run, 4, mean)
    assert [run.name for run in queue.unwanted(runs)] == ["001/s1"]
    again = TrialQueue(SweepFolder(folder.path, folder.sweep))
    assert [trial.state for trial in again.by_number()].count("pruned") == 1
    assert again.trials[1].state == "pruned"
    assert [next_of(again).name for _ in range(3)] == ["000/s1", "002/s1", "003/s1"]
