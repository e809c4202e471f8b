"""Learners in processes of their own: what they compute, what a checkpoint holds, who may die."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from sittings import QUICK, Sitting, checkpoints, summary_of, wait_for
from test_exact_resume import SMALL, assert_same, state_of

from gossamer.config import TrainConfig, make_config
from gossamer.launch.run import train
from gossamer.launch.snapshot import policy_of
from gossamer.types import RunFailed

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"name": "allreduce"},
    "gossip in step": {"name": "gossip", "max_staleness": 0},
    "diffusion": {"name": "diffusion", "adjacency": "complete", "link_drop": 0.3},
}


def config(folder: Path, topology: dict[str, Any], steps: int, **settings: Any) -> TrainConfig:
    given = {
        **SMALL,
        "num_learners": 3,
        "topology": topology,
        "learner_threads": 1,
        "run_folder": str(folder),
        "total_env_steps": steps,
        **settings,
    }
    return make_config("CartPole-v1", given)


@pytest.mark.parametrize(
    ("topology", "lag"), [("allreduce", "1"), ("gossip in step", "0"), ("diffusion", "1")]
)
def test_processes_compute_what_lock_step_computes(tmp_path: Path, topology: str, lag: str) -> None:
    for placement in ("inline", "local"):
        made = config(
            tmp_path / placement, TOPOLOGIES[topology], 3 * 640, placement=placement, lag=lag
        )
        train(made, quiet=True)
    one, other = state_of(tmp_path / "inline"), state_of(tmp_path / "local")
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize(("topology", "per_process"), [("allreduce", 1), ("diffusion", 2)])
def test_resumed_equals_uninterrupted(tmp_path: Path, topology: str, per_process: int) -> None:
    common = {"learners_per_process": per_process}
    train(config(tmp_path / "one", TOPOLOGIES[topology], 3 * 640, **common), quiet=True)
    train(config(tmp_path / "two", TOPOLOGIES[topology], 3 * 256, **common), quiet=True)
    longer = config(tmp_path / "two", TOPOLOGIES[topology], 3 * 640, **common)
    train(longer, resume=str(tmp_path / "two"), quiet=True)
    state = state_of(tmp_path / "one")
    assert_same_rows(tmp_path / "one", tmp_path / "two")
    if topology == "allreduce":
        learners = [policy_of(state, rank) for rank in range(3)]
        for held in learners[1:]:
            assert all(torch.equal(x, learners[0][name]) for name, x in held.items())


def assert_same_rows(one: Path, other: Path) -> None:
    """Processes tell their episodes in any order."""
    for folder in (one, other):
        path = folder / "episodes.jsonl"
        lines = sorted(path.read_text().splitlines(), key=lambda x: _order(json.loads(x)))
        path.write_text("\n".join(lines) + "\n")
    assert_same(one, other)


def _order(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["learner"], row["env"], row["env_steps"]


WORDS = ["CartPole-v1", *QUICK, "--num-learners", "3", "--checkpoint-every-seconds", "0.5"]


def pids_of(folder: Path) -> list[int]:
    try:
        rows = json.loads((folder / "processes.json").read_text())
    except (OSError, ValueError):
        return []
    return [row["pid"] for row in rows if row["role"] == "learner"]


@pytest.mark.parametrize(("topology", "deaths"), [("gossip", 2), ("diffusion", 1), ("single", 1)])
def test_a_dead_learner_is_replaced_while_the_others_go_on(
    tmp_path: Path, topology: str, deaths: int
) -> None:
    folder = tmp_path / "run"
    words = [*WORDS, f"topology:{topology}", "--total-env-steps", "90000"]
    words += ["--run-folder", str(folder)]
    with Sitting(words, tmp_path) as sitting:
        for _ in range(deaths):
            sitting.wait_for(lambda: len(set(pids_of(folder))) == 3, "three processes")
            before = pids_of(folder)
            seen = _rows(folder)
            sitting.wait_for(lambda seen=seen: _rows(folder) > seen + 1, "progress")
            os.kill(before[1], signal.SIGKILL)
            sitting.wait_for(lambda before=before: pids_of(folder)[1] != before[1], "a new process")
        code, out, err = sitting.end(120.0)
    assert code == 0, (out, err)
    summary = summary_of(folder)
    assert summary["restarts"] == deaths
    assert summary["env_steps"] >= 90_000
    assert summary["exit_reason"] == "done: total_env_steps reached"
    assert len({name.split("/")[0] for name in state_of(folder) if name[1] == "/"}) == 2


def test_an_all_reduced_group_starts_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *WORDS,
        "topology:allreduce",
        "--total-env-steps",
        "60000",
        "--run-folder",
        str(folder),
    ]
    with Sitting(words, tmp_path) as sitting:
        sitting.wait_for(lambda: checkpoints(folder)[-1:] > [0], "a checkpoint")
        before = pids_of(folder)
        os.kill(before[2], signal.SIGKILL)
        sitting.wait_for(lambda: not set(pids_of(folder)) & set(before), "new processes")
        code, out, err = sitting.end(120.0)
    assert code == 0, (out, err)
    assert summary_of(folder)["restarts"] == 1
    assert summary_of(folder)["env_steps"] >= 60_000
    learners = [policy_of(state_of(folder), rank) for rank in range(3)]
    for held in learners[1:]:
        assert all(torch.equal(x, learners[0][name]) for name, x in held.items())
    steps = [
        json.loads(x)["env_steps"] for x in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == sorted(steps)


def _rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_everyone_goes_with_the_launcher(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *WORDS,
        "topology:gossip",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
    with Sitting(words, tmp_path) as sitting:
        sitting.wait_for(lambda: checkpoints(folder)[-1:] > [0], "a checkpoint")
        pids = pids_of(folder)
        assert all(map(psutil.pid_exists, pids))
        sitting.process.kill()
        wait_for(lambda: not any(map(_runs, pids)), "the end of all learners")
        rows = _rows(folder)
        time.sleep(0.5)
        assert _rows(folder) == rows


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_saves_and_stops_everyone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *WORDS,
        "topology:diffusion",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
    with Sitting(words, tmp_path) as sitting:
        sitting.wait_for(lambda: _rows(folder) > 1, "progress")
        sitting.process.send_signal(signal.SIGINT)
        code, out, err = sitting.end(60.0)
    assert code == 0, (out, err)
    summary = summary_of(folder)
    assert summary["exit_reason"] == "stopped by SIGINT"
    assert checkpoints(folder)[-1] == summary["updates"]


def test_what_a_learner_cannot_do_ends_the_run_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_config(
        "broken_envs:Raises",
        {"num_learners": 2, "topology": {"name": "gossip"}, "num_envs": 4,
         "run_folder": str(tmp_path / "run"), "total_env_steps": 100_000},
    )  # fmt: skip
    with pytest.raises(RunFailed):
        train(made, quiet=True)
    assert "Traceback" in capsys.readouterr().err
    assert summary_of(tmp_path / "run")["exit_reason"].startswith("failed: ")
