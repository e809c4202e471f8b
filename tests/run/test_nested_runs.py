"""Runs whose environments observe several arrays: exact wherever they run, resumed, replayed, killed, evaluated, acted with."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import nested_envs
import numpy as np
import pytest
from runs import assert_resumes, assert_same, assert_same_state, state_of
from sessions import QUICK, Session, run_session, summary_of

import gossamer
from gossamer import cli
from gossamer.config import TrainConfig, make_config
from gossamer.run.train import train

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 8,
    "checkpoint_every_seconds": 0.0,
    "evaluation.every_seconds": 0.0,
    "optimizer.schedule": "constant",
    "policy.fc_size": 16,
    "policy.hidden_sizes": [12],
    "policy.core_size": 8,
    "learner_threads": 1,
}
PPO = {"algorithm": {"name": "ppo", "passes": 2, "num_minibatches": 2}}
LASER: dict[str, Any] = {
    "algorithm": "laser",
    "checkpoint_replay": True,
    "replays": [
        {"name": "queue", "fraction": 0.25},
        {"name": "uniform", "fraction": 0.5, "capacity": 40},
        {"name": "elite", "fraction": 0.25, "capacity": 40, "anneal_updates": 12},
    ],
}


def config(folder: Path, steps: int, name: str = "Everything", **settings: Any) -> TrainConfig:
    given = {**SMALL, **settings, "run_folder": str(folder), "total_env_steps": steps}
    return make_config(f"nested_envs:{name}", given)


def run(folder: Path, steps: int, name: str = "Everything", **settings: Any) -> Path:
    return train(config(folder, steps, name, **settings), quiet=True).folder


@pytest.mark.parametrize(
    ("settings", "placement"),
    [
        ({**PPO, "policy.core": "lstm"}, "inline"),
        ({**LASER, "lag": "1"}, "local"),
        ({**LASER, "lag": "0", "policy.core": "gru", "env.workers": 2}, "inline"),
    ],
)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, settings: dict[str, Any], placement: str
) -> None:
    """Without processes it is never stopped, so that processes are compared with none too."""
    settings = {**settings, "placement": placement}
    alone = {**settings, "placement": "inline", "env.workers": 0}
    whole = config(tmp_path / "whole", 256, **alone)
    assert_resumes(whole, config(tmp_path / "parts", 256, **settings), 128)
    assert any("obs/pair/1" in x for x in state_of(tmp_path / "whole"))


def test_a_killed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    words = ["nested_envs:Vectors", "algorithm:ppo", *QUICK, "--policy.core", "lstm"]
    words += ["--policy.core-size", "8", "--total-env-steps", "2000", "--run-folder", "run"]
    words += ["--placement", "inline"]
    with Session([*words, "--checkpoint-every-seconds", "0.05"], tmp_path) as session:
        there = lambda: len(list((tmp_path / "run/checkpoints").glob("*"))) > 2  # noqa: E731
        session.wait_for(there, "checkpoints")
        session.signal(signal.SIGKILL)
        session.end()
    again = ["--resume", "run", "--checkpoint-every-seconds", "60"]
    assert "resumed exactly" in run_session(again, tmp_path)
    run_session([x if x != "run" else "whole" for x in words], tmp_path)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_learners_in_processes_compute_what_one_process_does(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**PPO, "num_learners": 2, "topology.name": "diffusion", "lag": "0"}
    for placement in ("inline", "local"):
        run(tmp_path / placement, 256, "Vectors", **settings, placement=placement)
    assert_same_state(tmp_path / "inline", tmp_path / "local")


def test_actors_in_processes_collect_what_one_does(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": "vtrace", "env_groups": 2, "lag": "1"}
    alone = run(tmp_path / "alone", 256, **settings, placement="inline")
    settings |= {"actors_per_learner": 2, "placement": "local"}
    assert_same(alone, run(tmp_path / "several", 256, **settings))


def test_it_learns_what_its_first_leaf_names(tmp_path: Path) -> None:
    """Every step pays for the action that `state/position` names: 7 at most, a third of it by chance."""
    settings: dict[str, Any] = {**PPO, "num_envs": 8, "unroll_length": 16}
    settings |= {"optimizer.learning_rate": 0.02}
    folder = run(tmp_path / "run", 4_000, "Vectors", placement="inline", **settings)
    assert summary_of(folder)["mean_return_last_100"] > 6.0


def test_its_policy_is_evaluated_and_acts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path / "run", 64, **PPO, placement="inline")
    assert cli.main(["eval", str(folder), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    policy = gossamer.load_policy(folder)
    env = nested_envs.Everything()
    obs, _ = env.reset(seed=1)
    action, state = policy.act(obs)
    assert env.action_space.contains(np.int64(action))
    two = {
        **{name: np.stack([obs[name]] * 2) for name in ("image", "switches", "type")},
        "pair": (np.array([obs["pair"][0]] * 2), np.stack([obs["pair"][1]] * 2), ("x", "x")),
        "mission": ["", ""],
    }
    actions, _ = policy.act(two)
    assert actions.tolist() == [int(action)] * 2
    with pytest.raises(ValueError, match=r"its type: it has shape \(3,\), declared is \(2,\)"):
        policy.act({**obs, "type": np.zeros(3, np.float32)}, state)
    with pytest.raises(ValueError, match="its image: there is no 'image' in it"):
        policy.act({"type": obs["type"]})
    with pytest.raises(
        ValueError, match=r"its switches has shape \(1, 4\), and others are of 2 environments"
    ):
        policy.act({**two, "switches": two["switches"][:1]})
