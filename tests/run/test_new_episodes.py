"""Runs of environments that do not come back: it is told at the start, and no resume is refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, log_of, returns_of
from sessions import slow

from gossamer.config import TrainConfig, make_config
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.placements.this_process import ThisProcess
from gossamer.run.train import train

TOLD = "resumes with new episodes: an episode played again from its seed has another observation"


def alternating(*names: str) -> list[Any]:
    """Return every environment in one placement, and in the other for the slow tests."""
    placed = [*zip(names, ["inline", "local"] * len(names), strict=False)]
    return [*placed, *(slow(x, "local" if y == "inline" else "inline") for x, y in placed)]


def config(env_id: str, folder: Path, steps: int, **settings: Any) -> TrainConfig:
    given = {**SMALL, "lag": "1", "run_folder": str(folder), "total_env_steps": steps, **settings}
    return make_config(env_id, given)


def meta_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta.json").read_text())


def exact(folder: Path) -> bool:
    return CheckpointStore(folder / "checkpoints", 0).load("last").state["exact"]


@pytest.mark.parametrize(
    ("name", "placement"),
    alternating("LeaksBetweenEpisodes", "LeaksBetweenInstances", "Unseeded", "UnseededReward"),
)
def test_what_the_trial_finds_is_told_and_kept(tmp_path: Path, name: str, placement: str) -> None:
    env_id = f"leaky_envs:{name}"
    train(config(env_id, tmp_path, 128, placement=placement), quiet=True)
    (told,) = [line for line in log_of(tmp_path) if "resumes with" in line]
    assert told.startswith(f"{env_id} resumes with new episodes: an episode played again from its")
    assert not meta_of(tmp_path)["env_comes_back"]
    assert told.endswith(meta_of(tmp_path)["env_differs"])
    assert not exact(tmp_path)
    longer = config(env_id, tmp_path, 256, placement=placement)
    assert train(longer, resume=str(tmp_path), quiet=True).summary["env_steps"] >= 256
    told = meta_of(tmp_path)["env_differs"]
    (said,) = [line for line in log_of(tmp_path) if line.startswith("resumed ")]
    assert said.startswith(f"resumed with new episodes (not exactly: {told}) at ")
    assert not exact(tmp_path)


def test_of_one_that_comes_back_nothing_is_said(tmp_path: Path) -> None:
    for steps, resume in ((128, None), (256, str(tmp_path))):
        train(config("leaky_envs:Repeats", tmp_path, steps), resume=resume, quiet=True)
        assert meta_of(tmp_path)["env_comes_back"]
        assert exact(tmp_path)
    assert not [line for line in log_of(tmp_path) if "new episodes" in line]
    assert [line for line in log_of(tmp_path) if line.startswith("resumed exactly at ")]


@pytest.mark.parametrize(("name", "placement"), alternating("LeaksUnseen", "EndsSooner"))
def test_what_only_a_resume_finds_does_not_end_the_run(
    tmp_path: Path, name: str, placement: str
) -> None:
    env_id = f"leaky_envs:{name}"
    # Far into the second episode of LeaksUnseen, and of EndsSooner.
    steps = 2 * (400 + 240 if name == "LeaksUnseen" else 110 + 146)
    rows: dict[str, Any] = {"placement": placement, "num_envs": 2, "unroll_length": 32}
    train(config(env_id, tmp_path, steps, **rows), quiet=True)
    assert meta_of(tmp_path)["env_comes_back"], "the trial is too short to see it"
    assert exact(tmp_path)
    begun = len(returns_of(tmp_path))
    for session in (1, 2):
        longer = config(env_id, tmp_path, steps + 1024 * session, **rows)
        summary = train(longer, resume=str(tmp_path), quiet=True).summary
        assert summary["env_steps"] >= steps + 1024 * session
        said = [line for line in log_of(tmp_path) if line.startswith("resumed ")][-1]
        told = "environments did not come back to where they were"
        assert said.startswith(f"resumed with new episodes (not exactly: {told}) at")
        assert not meta_of(tmp_path)["env_comes_back"]
        assert not exact(tmp_path)
    assert len(returns_of(tmp_path)) > begun


def test_what_waits_to_be_learnt_is_learnt_though_environments_are_elsewhere(
    tmp_path: Path,
) -> None:
    steps = 4 * 608
    train(config("leaky_envs:LeaksUnseen", tmp_path, steps, placement="inline"), quiet=True)
    held = CheckpointStore(tmp_path / "checkpoints", 0).load("last")
    assert "queue.0.obs" in held.tensors
    longer = config("leaky_envs:LeaksUnseen", tmp_path, steps + 64, placement="inline")
    train(longer, resume=str(tmp_path), quiet=True)
    after = CheckpointStore(tmp_path / "checkpoints", 0).load("last").state["held"]
    # One version from what waited; inline the next trajectory is collected before it is learnt.
    assert after["actor.env_steps"] == held.state["held"]["actor.env_steps"] + 64


@pytest.mark.parametrize("staleness", [0, "never"])
def test_processes_try_by_themselves(tmp_path: Path, staleness: Any) -> None:
    settings: dict[str, Any] = {
        "num_learners": 2,
        "topology": {"name": "gossip", "max_staleness": staleness},
    }
    env_id = "leaky_envs:LeaksBetweenEpisodes"
    train(config(env_id, tmp_path, 2 * 128, **settings), quiet=True)
    assert [TOLD in line for line in log_of(tmp_path)].count(True) == 1
    assert not meta_of(tmp_path)["env_comes_back"]
    assert not exact(tmp_path)
    longer = config(env_id, tmp_path, 2 * 256, **settings)
    train(longer, resume=str(tmp_path), quiet=True)
    assert [TOLD in line for line in log_of(tmp_path)].count(True) == 1, "it is known"
    assert [line for line in log_of(tmp_path) if line.startswith("resumed with new episodes (not")]


def test_processes_go_on_where_environments_do_not_come_back(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "num_learners": 2,
        "topology": {"name": "gossip", "max_staleness": 0},
        "num_envs": 2,
        "unroll_length": 32,
    }
    steps = 2 * 2 * 640
    train(config("leaky_envs:LeaksUnseen", tmp_path, steps, **settings), quiet=True)
    assert meta_of(tmp_path)["env_comes_back"]
    assert exact(tmp_path)
    longer = config("leaky_envs:LeaksUnseen", tmp_path, steps + 256, **settings)
    assert train(longer, resume=str(tmp_path), quiet=True).summary["env_steps"] >= steps + 256
    told = "not resumed exactly after all: environments did not come back to where they were"
    assert [line.startswith(told) for line in log_of(tmp_path)].count(True) == 1
    assert not meta_of(tmp_path)["env_comes_back"]
    assert not exact(tmp_path)


def test_a_run_of_before_the_trial_is_tried_when_it_is_resumed(tmp_path: Path) -> None:
    env_id = "leaky_envs:LeaksBetweenEpisodes"
    train(config(env_id, tmp_path, 128), quiet=True)
    meta = meta_of(tmp_path)
    del meta["env_comes_back"], meta["env_differs"]
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    train(config(env_id, tmp_path, 256), resume=str(tmp_path), quiet=True)
    assert meta_of(tmp_path)["env_comes_back"] is False


@pytest.mark.parametrize(
    ("change", "told", "placement"),
    [
        # Ten steps of each episode were played at the checkpoint.
        ({"max_episode_steps": 6}, "max_episode_steps 0 -> 6", "inline"),
        ({"max_episode_steps": 6}, "max_episode_steps 0 -> 6", "local"),
        ({"env": {"stuck_steps": 6}}, "env.stuck_steps none -> 6", "inline"),
    ],
)
def test_where_other_limits_end_episodes_new_ones_begin(
    tmp_path: Path, change: dict[str, Any], told: str, placement: str
) -> None:
    name = "leaky_envs:Unpaid"
    settings: dict[str, Any] = {"placement": placement, "unroll_length": 10, "lag": "0"}
    train(config(name, tmp_path, 40, **settings), quiet=True)
    assert exact(tmp_path)
    changed = config(name, tmp_path, 120, **settings, **change)
    train(changed, resume=str(tmp_path), quiet=True)
    (said,) = [line for line in log_of(tmp_path) if line.startswith("resumed ")]
    assert said.startswith(f"resumed with new episodes (not exactly: {told}) at ")
    assert {length for _, _, length in returns_of(tmp_path)} == {6}
    assert meta_of(tmp_path)["env_comes_back"], "they would, with the same limits"
    assert exact(tmp_path)
    longer = config(name, tmp_path, 200, **settings, **change)
    train(longer, resume=str(tmp_path), quiet=True)
    said = [line for line in log_of(tmp_path) if line.startswith("resumed ")][-1]
    assert said.startswith("resumed exactly at ")
    assert {length for _, _, length in returns_of(tmp_path)} == {6}


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_a_resumed_run_may_be_stopped_before_it_learns(
    tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trajectory waits after a checkpoint that is not exact, and nobody acts before the first version."""
    settings: dict[str, Any] = {"placement": placement, "num_learners": 1}
    train(config("CartPole-v1", tmp_path, 128, **settings), quiet=True)
    store = CheckpointStore(tmp_path / "checkpoints", 0)
    saved = store.load("last")
    store.save(saved.updates, saved.tensors, {**saved.state, "exact": False})
    start = ThisProcess.start

    def start_and_stop(placed: ThisProcess, load: Any) -> None:
        start(placed, load)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ThisProcess, "start", start_and_stop)
    settings |= {"stop_within_seconds": 10.0}
    with pytest.raises(KeyboardInterrupt):
        train(config("CartPole-v1", tmp_path, 512, **settings), resume=str(tmp_path), quiet=True)
    log = (tmp_path / "log.txt").read_text()
    assert "stopped by SIGINT" in log
    assert "abandoned" not in log
    monkeypatch.undo()
    done = train(config("CartPole-v1", tmp_path, 512, **settings), resume=str(tmp_path), quiet=True)
    assert done.summary["env_steps"] >= 512
