"""Stopping and resuming equals never having stopped, bit for bit."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import (
    SMALL,
    assert_resumes,
    assert_same,
    assert_same_state,
    config,
    log_of,
    state_of,
)
from sessions import QUICK, slow, summary_of

from gossamer import cli
from gossamer.config import TrainConfig, make_config
from gossamer.record.checkpoint import CheckpointStore
from gossamer.record.folder import RunFolder
from gossamer.record.runs import find_runs
from gossamer.run.train import train, train_command


@pytest.mark.parametrize(
    ("env_id", "first", "whole", "lag", "placement"),
    [
        *itertools.product(["CartPole-v1"], [192], [448], "01", ["inline", "local"]),
        ("PongNoFrameskip-v4", 48, 96, "0", "inline"),
        ("PongNoFrameskip-v4", 48, 96, "1", "local"),
        slow("PongNoFrameskip-v4", 48, 96, "1", "inline"),
        slow("PongNoFrameskip-v4", 48, 96, "0", "local"),
    ],
)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, env_id: str, first: int, whole: int, placement: str, lag: str
) -> None:
    """Inline it is never stopped, so that threads are compared with none too."""
    num_envs = 4 if env_id == "CartPole-v1" else 2
    common: dict[str, Any] = {"lag": lag, "num_envs": num_envs, "learner_threads": 3}
    one = config(env_id, tmp_path / "one", whole, placement="inline", **common)
    two = config(env_id, tmp_path / "two", whole, placement=placement, **common)
    assert_resumes(one, two, first)


OUTER = {"outer_momentum": 0.6, "outer_rate": 0.8, "outer_nesterov": True}


TOPOLOGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "allreduce": {},
    "gossip": {"max_staleness": 0},
    "diffusion": {"mix_optimizer": True},
}


@pytest.mark.parametrize(
    ("topology", "placement"),
    [
        *itertools.product(TOPOLOGIES, ["inline"]),
        ("single", "local"),
        ("gossip", "local"),
        slow("allreduce", "local"),
        slow("diffusion", "local"),
    ],
)
def test_an_outer_step_is_resumed_in_its_midst(
    tmp_path: Path, topology: str, placement: str
) -> None:
    mixing, size = {"name": topology, **TOPOLOGIES[topology]}, 1 if topology == "single" else 2

    def run(name: str, versions: int) -> TrainConfig:
        given = {**SMALL, "topology": mixing, "num_learners": size}
        given["placement"] = "inline" if name == "one" else placement
        made = make_config("CartPole-v1", {**given, "lag": "1", "learner_threads": 1})
        optimizer = dataclasses.replace(made.optimizer, **OUTER)
        made = dataclasses.replace(made, run_folder=str(tmp_path / name), optimizer=optimizer)
        return dataclasses.replace(made, total_env_steps=60 * versions * size)

    train(run("one", 5), quiet=True)
    train(run("two", 2), quiet=True)
    held = state_of(tmp_path / "two")
    assert held["learner.outer.1"].abs().max() > 0.0
    train(run("two", 5), resume=str(tmp_path / "two"), quiet=True)
    assert_same_state(tmp_path / "one", tmp_path / "two")
    ended = state_of(tmp_path / "one")
    assert not torch.equal(ended["learner.outer.1"], held["learner.outer.1"])


def test_an_outer_step_may_begin_and_end_with_changed_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    base = config("CartPole-v1", folder, 128, placement="inline")
    for steps, settings in ((128, {}), (256, OUTER), (384, {"outer_rate": 1.5}), (512, {})):
        optimizer = dataclasses.replace(base.optimizer, **settings)
        now = dataclasses.replace(base, total_env_steps=steps, optimizer=optimizer)
        train(now, resume=str(folder) if steps > 128 else None, quiet=True)
        kept = [name for name in state_of(folder) if name.startswith("learner.outer.")]
        assert bool(kept) == (settings is OUTER)


@pytest.mark.parametrize("topology", ["gossip", "diffusion"])
def test_learners_whose_versions_end_early_are_resumed_in_their_midst(
    tmp_path: Path, topology: str
) -> None:
    """What they have not heard of each other by then is in no checkpoint."""
    mixing = {"name": topology, "max_staleness": "never", "every": "versions"}
    ppo = {"passes": 2, "num_minibatches": 2, "max_kl_nats": 1e-4}
    given = {**SMALL, "topology": mixing, "num_learners": 3, "algorithm": {"ppo": ppo}}
    made = make_config("CartPole-v1", {**given, "placement": "inline", "learner_threads": 1})
    optimizer = dataclasses.replace(made.optimizer, learning_rate=(3e-3,))
    made = dataclasses.replace(made, optimizer=optimizer, total_env_steps=64 * 3 * 12)
    one, two = (dataclasses.replace(made, run_folder=str(tmp_path / x)) for x in ("one", "two"))
    assert_resumes(one, two, 64 * 3 * 4)


def test_what_waits_and_is_not_learnt_is_not_counted(tmp_path: Path) -> None:
    for steps, lag, resume in ((256, "1", None), (512, "0", str(tmp_path))):
        changed = config("CartPole-v1", tmp_path, steps, placement="inline", lag=lag)
        train(changed, resume=resume, quiet=True)
    held = CheckpointStore(tmp_path / "checkpoints", 0).load("last").state["held"]
    assert held["actor.env_steps"] == held["learner.own_env_steps"]
    (said,) = [line for line in log_of(tmp_path) if line.startswith("resumed ")]
    assert said.startswith("resumed (not exactly: lag 1 -> 0) at ")


def test_another_seed_differs(tmp_path: Path) -> None:
    """The comparison can fail."""
    for seed in (1, 2):
        train(config("CartPole-v1", tmp_path / str(seed), 128, seed=seed), quiet=True)
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "1", tmp_path / "2")


def test_noise_may_begin_and_end_with_a_changed_setting(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    base = config("Pendulum-v1", folder, 128, placement="inline")
    for steps, correlation in ((128, 0.0), (256, 0.6), (384, 0.0)):
        policy = dataclasses.replace(base.policy, noise_correlation=correlation)
        now = dataclasses.replace(base, total_env_steps=steps, policy=policy)
        summary = train(now, resume=str(folder) if steps > 128 else None, quiet=True).summary
        assert summary["env_steps"] >= steps
    assert "actor.0.noise" not in state_of(folder)


def test_a_last_checkpoint_that_takes_longer_than_anyones_patience_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = CheckpointStore.save

    def slowly(store: CheckpointStore, updates: int, *what: Any) -> Path:
        for _ in range(20 if updates else 0):
            time.sleep(0.1)
            store.written_bytes += 1
        return save(store, updates, *what)

    monkeypatch.setattr(CheckpointStore, "save", slowly)
    run = config("CartPole-v1", tmp_path / "run", 640, placement="local", lag="1")
    run = dataclasses.replace(run, patience_seconds=1.0, checkpoint_every_seconds=0.01)
    assert train(run, quiet=True).summary["exit_reason"] == "done: total_env_steps reached"


def test_last_is_the_run_that_was_last_when_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may begin while torch is imported."""
    monkeypatch.chdir(tmp_path)
    for seed in ("1", "2"):
        words = ["CartPole-v1", "--seed", seed, "--total-env-steps", "64", *QUICK]
        assert cli.main(["train", *words]) == 0
    first, last = sorted(find_runs(Path("runs")), key=lambda x: x.name[-1])
    later: list[RunFolder] = []

    def train_later(*args: Any, **named: Any) -> Any:
        later.append(folder := RunFolder(first))
        meta = folder.read_json("meta.json")
        meta["sessions"][-1]["time_unix"] = 4e9
        folder.write_json("meta.json", meta)
        return train_command(*args, **named)

    monkeypatch.setattr("gossamer.run.train.train_command", train_later)
    assert cli.main(["train", "--resume", "last", "--total-env-steps", "128"]) == 0
    assert [summary_of(run)["env_steps"] >= 128 for run in (first, last)] == [False, True]
    assert later
