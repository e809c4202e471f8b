"""A run that was resumed with other settings: which network a checkpoint is of, and by which scores a policy is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL

import gossamer
from gossamer.config import from_dict, make_config
from gossamer.errors import ConfigError
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.train import train

OBS = torch.linspace(-2.0, 2.0, 32).reshape(1, 8, 4)
OFTEN = {"every_seconds": 1e-9, "max_time_fraction": 1.0, "episodes": 2}
OTHER: list[dict[str, Any]] = [
    {"policy": {"activation": "relu"}},
    {"policy": {"obs_clip": 0.5}},
    {"policy": {"normalize_obs": False}},
    {"algorithm": {"name": "a2c", "num_minibatches": 1, "value_norm": False}},
]
"""Settings that make another function of the same parameters."""


def trained(folder: Path, **settings: Any) -> Path:
    learns = {"name": "a2c", "num_minibatches": 1, "value_norm": True}
    given = {**SMALL, "algorithm": learns, "placement": "inline", "total_env_steps": 128}
    train(make_config("CartPole-v1", {**given, **settings, "run_folder": str(folder)}), quiet=True)
    return folder


def updates_of(run: Path) -> list[int]:
    return CheckpointStore(run / "checkpoints", 0).list()


def outputs(run: Path, checkpoint: int | str = "last") -> torch.Tensor:
    """Return what a policy makes of some observations: actions' numbers, and values in the units of returns."""
    policy = gossamer.load_policy(run, checkpoint)
    with torch.no_grad():
        starts = torch.zeros(OBS.shape[:2], dtype=torch.bool)
        out = policy(OBS, starts, policy.initial_state(OBS.shape[1]))
        return torch.cat([out.action_params, out.value[..., None]], -1)


@pytest.mark.parametrize("changed", OTHER)
def test_a_checkpoint_is_played_as_it_was_learnt(tmp_path: Path, changed: dict[str, Any]) -> None:
    run = trained(tmp_path / "run")
    (*_, first), before = updates_of(run), outputs(run)
    again: dict[str, Any] = {"total_env_steps": 256, "keep_checkpoints": 0, **changed}
    gossamer.train(resume=run, quiet=True, **again)
    assert torch.equal(outputs(run, first), before)
    # A network that is made of the new settings alone computes what the newest checkpoint does.
    newest = outputs(run)
    (run / "checkpoints" / str(first)).rename(tmp_path / "gone")
    assert torch.equal(outputs(run), newest)
    assert not torch.equal(newest, before)


@pytest.mark.parametrize("changed", OTHER)
def test_a_session_that_saved_nothing_changes_no_policy(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """As one that was killed: its settings are the run's, and its checkpoints are those of before."""
    run = trained(tmp_path / "run")
    before, score = outputs(run), gossamer.evaluate(run, episodes=3).mean
    saved = json.loads((run / "config.json").read_text())
    learnt = from_dict(saved)
    for section, values in changed.items():
        saved[section] |= values
    (run / "config.json").write_text(json.dumps(saved))
    assert torch.equal(outputs(run), before)
    assert gossamer.evaluate(run, episodes=3).mean == score
    begun = make_config("CartPole-v1", {"init_from": str(run)})
    assert (begun.policy, begun.algorithm.value_norm) == (learnt.policy, True)


def test_damaged_settings_of_a_checkpoint_are_told(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    store = CheckpointStore(run / "checkpoints", 0)
    last = store.load("last")
    state = json.loads(json.dumps(last.state))
    state["settings"]["policy"]["obs_clip"] = "wide"
    store.save(last.updates, last.tensors, state)
    with pytest.raises(ConfigError, match=rf"checkpoints.{last.updates} is damaged: .*obs_clip"):
        gossamer.load_policy(run)


@pytest.mark.parametrize(
    ("changed", "kept"),
    [({"max_episode_steps": 20}, False), ({"evaluation": {"every_seconds": 0.0}}, True)],
)
def test_scores_that_compare_no_more_choose_no_learner(
    tmp_path: Path, changed: dict[str, Any], kept: bool
) -> None:
    learners = {"topology": {"name": "single"}, "num_learners": 2, "evaluation": OFTEN}
    run = trained(tmp_path / "run", total_env_steps=512, **learners)
    before = CheckpointStore(run / "checkpoints", 0).load("last").state["scores"]
    assert len(before) == 2
    none = {"total_env_steps": 1024, "evaluation": {"every_seconds": 0.0}}
    gossamer.train(resume=run, quiet=True, **{**none, **changed})
    after = CheckpointStore(run / "checkpoints", 0).load("last").state["scores"]
    assert after == (before if kept else [])
