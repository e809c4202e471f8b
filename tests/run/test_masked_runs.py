"""Training where some actions are forbidden: the environment raises where one is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from masked_envs import LENGTH, Combined, Forbids, Maze, Observed, Parts
from runs import SMALL, assert_resumes
from sessions import slow

import gossamer
from gossamer.config import make_config
from gossamer.run.train import train

NAMES = ["a2c", "vtrace", "laser", "ppo", "impact"]


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    evaluation = {"evaluation.episodes": 3, "evaluation.every_seconds": 0.5}
    return {**SMALL, "run_folder": str(folder), "total_env_steps": 512, **evaluation, **more}


USUAL = [*zip(NAMES, ["none", "lstm", "none", "lstm", "lstm"], strict=True)]
OTHERS = [
    slow(algorithm, core)
    for algorithm in NAMES
    for core in ("none", "lstm", "gru")
    if (algorithm, core) not in USUAL
]


@pytest.mark.parametrize(("algorithm", "core"), [*USUAL, *OTHERS])
def test_no_forbidden_action_is_taken(tmp_path: Path, algorithm: str, core: str) -> None:
    """Neither in training nor in greedy and sampled evaluations, from replays that hold other policies' rows too."""
    more: dict[str, Any] = {"algorithm.name": algorithm, "policy.core": core}
    if algorithm in ("laser", "vtrace"):
        quarter = {"fraction": 0.25, "capacity": 20}
        kinds = ("uniform", "elite", "attentive")
        more["replays"] = [
            {"name": "queue", "fraction": 0.25},
            *({"name": x, **quarter} for x in kinds),
        ]
    names = {"ppo": "Parts", "impact": "Combined"}
    env_id = f"masked_envs:{names.get(algorithm, 'Forbids')}"
    result = train(make_config(env_id, settings(tmp_path / "run", **more)), quiet=True)
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    for sample in (False, True):
        scored = gossamer.evaluate(result, episodes=5, sample=sample)
        assert set(scored.lengths) == {LENGTH}


MIXED = {
    "a2c": {"name": "allreduce"},
    "vtrace": {"name": "gossip"},
    "impact": {"name": "diffusion", "adjacency": "ring"},
}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["Forbids", "Combined"])
@pytest.mark.parametrize("algorithm", NAMES)
def test_no_forbidden_action_is_taken_in_a_hundred_thousand_steps(
    tmp_path: Path, algorithm: str, env_id: str
) -> None:
    """A million of all cases, while policies become as sure of an action as they will be."""
    more: dict[str, Any] = {"algorithm": {"name": algorithm}, "optimizer.learning_rate": 3e-3}
    if algorithm == "laser":
        fifth = {"fraction": 0.2, "capacity": 100}
        kinds = ("uniform", "circular", "elite", "attentive")
        more["replays"] = [
            {"name": "queue", "fraction": 0.2},
            *({"name": x, **fifth} for x in kinds),
        ]
    if algorithm in MIXED:
        more |= {"num_learners": 2, "topology": MIXED[algorithm]}
    more |= {"placement": "inline", "num_envs": 16, "total_env_steps": 100_000}
    given = settings(tmp_path / "run", **more)
    result = train(make_config(f"masked_envs:{env_id}", given), quiet=True)
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    for sample in (False, True):
        scored = gossamer.evaluate(result, episodes=200, sample=sample)
        assert set(scored.lengths) == {LENGTH}


@pytest.mark.parametrize("env_id", ["masked_envs:Observed", "joint_envs:Forbidding"])
@pytest.mark.parametrize("topology", MIXED.values(), ids=lambda x: x["name"])
def test_learners_mix_masked_policies(
    tmp_path: Path, topology: dict[str, Any], env_id: str
) -> None:
    given = settings(tmp_path / "run", num_learners=3, topology=topology, placement="inline")
    result = train(make_config(env_id, given), quiet=True)
    assert result.summary["exit_reason"] == "done: total_env_steps reached"


def test_a_run_keeps_where_its_mask_was_and_resumes_to_the_bit(tmp_path: Path) -> None:
    given = settings(
        tmp_path / "run", placement="inline", algorithm={"name": "vtrace"},
        **{"policy.core": "lstm", "evaluation.every_seconds": 0.0, "total_env_steps": 512},
    )  # fmt: skip
    parts = make_config("masked_envs:Forbids", given)
    assert_resumes(replace(parts, run_folder=str(tmp_path / "whole")), parts, 256)
    assert '"mask": "info"' in (tmp_path / "run" / "config.json").read_text()


def test_it_learns_what_is_allowed(tmp_path: Path) -> None:
    """The last allowed action pays, so that a policy that does not see the mask should prefer late ones."""
    given = settings(
        tmp_path / "run", placement="inline", total_env_steps=4_000, num_envs=8, unroll_length=32,
        algorithm={"name": "ppo", "passes": 4, "num_minibatches": 2},
        **{"evaluation.every_seconds": 0.0, "optimizer.learning_rate": 1e-2},
    )  # fmt: skip
    result = train(make_config("masked_envs:Forbids", given), quiet=True)
    assert gossamer.evaluate(result, episodes=20).mean > 0.8 * LENGTH


OPTIMA: dict[str, dict[str, Any]] = {
    "ppo": {"passes": 4, "num_minibatches": 4},
    "vtrace": {"num_minibatches": 4, "passes": 2},
    "laser": {"num_minibatches": 4},
    "impact": {"num_minibatches": 4},
    "a2c": {"num_minibatches": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", NAMES)
def test_a_masked_bandit_is_solved_to_two_percent(tmp_path: Path, algorithm: str) -> None:
    given = settings(
        tmp_path / "run", placement="inline", total_env_steps=60_000, num_envs=16, unroll_length=16,
        algorithm={"name": algorithm, "entropy_cost": 0.003, "discount": 0.0, **OPTIMA[algorithm]},
        **{"evaluation.every_seconds": 0.0, "optimizer.learning_rate": 2e-3,
           "optimizer.schedule": "linear"},
    )  # fmt: skip
    result = train(make_config("masked_envs:Bandit", given), quiet=True)
    assert gossamer.evaluate(result, episodes=100).mean > 0.98 * LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", NAMES)
def test_a_masked_maze_is_solved_to_two_percent_by_who_remembers(
    tmp_path: Path, algorithm: str
) -> None:
    chosen: dict[str, Any] = {"name": algorithm, "entropy_cost": 0.003, **OPTIMA[algorithm]}
    rate = 2e-3
    if (
        algorithm == "ppo"
    ):  # with the others' rate and entropy it is sure of a way before it remembers
        chosen, rate = {**chosen, "passes": 2, "entropy_cost": 0.01}, 1e-3
    given = settings(
        tmp_path / "run", placement="inline", total_env_steps=40_000, num_envs=16, unroll_length=16,
        algorithm=chosen,
        **{"evaluation.every_seconds": 0.0, "optimizer.learning_rate": rate,
           "optimizer.schedule": "linear", "policy.core": "lstm"},
    )  # fmt: skip
    result = train(make_config("masked_envs:Maze", given), quiet=True)
    assert gossamer.evaluate(result, episodes=100).mean > 0.98 * Maze.best


@pytest.mark.parametrize("kind", [Forbids, Observed, Combined, Parts])
def test_act_obeys_the_mask_and_wants_it(
    tmp_path: Path, kind: type[gymnasium.Env[Any, Any]]
) -> None:
    given = settings(tmp_path / "run", total_env_steps=128, **{"evaluation.every_seconds": 0.0})
    result = train(make_config(f"masked_envs:{kind.__name__}", given), quiet=True)
    policy = gossamer.load_policy(result)
    env: Any = kind()
    obs, info = env.reset(seed=1)
    state = None
    for step in range(LENGTH):
        mask = {} if kind is Observed else {"mask": info["action_mask"]}
        action, state = policy.act(obs, state, deterministic=step % 2 == 0, **mask)
        obs, _, over, _, info = env.step(action)
    assert over
    if kind is Combined:
        action, _ = policy.act(obs, mask=np.arange(12).reshape(4, 3) == 7)
        assert action.tolist() == [2, 1 + 7]
    if kind is Forbids:
        with pytest.raises(
            ValueError, match=r"trained with a mask of actions: act\(obs, mask=info"
        ):
            policy.act(obs)
        several = np.stack([obs, obs])
        action, _ = policy.act(several, mask=[[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]])
        assert action.tolist() == [2, 1]
        with pytest.raises(ValueError, match="forbids every action"):
            policy.act(obs, mask=np.zeros(5))
    if kind is Parts:
        masks = tuple(np.eye(n, dtype=np.int8)[:2] for n in env.action_space.nvec)
        action, _ = policy.act(np.stack([obs, obs]), mask=masks)
        assert action.tolist() == [[0, 0, 0], [1, 1, 1]]
        chosen = [tuple(np.eye(n, dtype=np.int8)[i] for n in env.action_space.nvec) for i in (0, 1)]
        for form in (list, tuple):
            action, _ = policy.act(np.stack([obs, obs]), mask=form(chosen))
            assert action.tolist() == [[0, 0, 0], [1, 1, 1]]
