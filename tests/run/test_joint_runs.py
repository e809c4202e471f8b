"""Training where an action holds several of different kinds: the environment raises where one is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import joint_envs
import numpy as np
import pytest
from runs import SMALL, assert_resumes, rows_of
from sessions import slow

import gossamer
from gossamer.config import make_config
from gossamer.run.train import train

NAMES = ["a2c", "vtrace", "laser", "ppo", "impact"]


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    evaluation = {"evaluation.episodes": 3, "evaluation.every_seconds": 0.5}
    return {**SMALL, "run_folder": str(folder), "total_env_steps": 384, **evaluation, **more}


USUAL = [*zip(NAMES, ["Forbidding", "Joint", "ObservedParts", "Joint", "Pair"], strict=True)]
OTHERS = [
    slow(algorithm, env_id)
    for algorithm in NAMES
    for env_id in ("Joint", "Pair", "Forbidding", "ObservedParts")
    if (algorithm, env_id) not in USUAL
]


@pytest.mark.parametrize(("algorithm", "env_id"), [*USUAL, *OTHERS])
def test_every_algorithm_trains(tmp_path: Path, algorithm: str, env_id: str) -> None:
    more: dict[str, Any] = {"algorithm.name": algorithm}
    if algorithm in ("laser", "vtrace"):
        third = {"fraction": 0.3, "capacity": 20}
        more["replays"] = [
            {"name": "queue", "fraction": 0.4},
            *({"name": x, **third} for x in ("uniform", "attentive")),
        ]
    if algorithm in ("ppo", "laser"):
        more |= {"policy.core": "lstm", "policy.last_action": True}
    result = train(
        make_config(f"joint_envs:{env_id}", settings(tmp_path / "run", **more)), quiet=True
    )
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    for sample in (False, True):
        scored = gossamer.evaluate(result, episodes=4, sample=sample)
        assert set(scored.lengths) == {joint_envs.LENGTH}
    row = rows_of(tmp_path / "run")[-1]
    parts = [x for name, x in row.items() if name.startswith("learner/entropy_nats/")]
    assert len(parts) == 3
    assert sum(parts) == pytest.approx(row["learner/entropy_nats"], rel=1e-4)


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    given = settings(
        tmp_path / "run", placement="inline", algorithm={"name": "vtrace"},
        **{"policy.core": "lstm", "policy.noise_correlation": 0.5, "evaluation.every_seconds": 0.0,
           "total_env_steps": 256},
    )  # fmt: skip
    parts = make_config("joint_envs:Forbidding", given)
    assert_resumes(replace(parts, run_folder=str(tmp_path / "whole")), parts, 128)


def test_act_takes_and_returns_what_the_spaces_say(tmp_path: Path) -> None:
    more = {"evaluation.every_seconds": 0.0, "policy.squash": True}
    given = settings(tmp_path / "run", **{**more, "total_env_steps": 128})
    result = train(make_config("joint_envs:Forbidding", given), quiet=True)
    policy = gossamer.load_policy(result)
    env: Any = joint_envs.Forbidding()
    obs, info = env.reset(seed=1)
    state, over = None, False
    for step in range(joint_envs.LENGTH):
        action, state = policy.act(
            obs, state, deterministic=step % 2 == 0, mask=info["action_mask"]
        )
        obs, _, over, _, info = env.step(action)
    assert over
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["observes"] == [{"name": "", "kind": "vector", "shape": [3]}]
    told = [(part["name"], part["kind"], part["masked"]) for part in meta["acts"]]
    assert told == [
        ("aim", "gaussian", False),
        ("legs/move", "categorical", True),
        ("switches", "bernoulli", False),
    ]
    several, _ = policy.act(np.stack([obs, obs]), mask=[{"legs": {"move": [0, 1, 0]}}, {}])
    assert several["legs"]["move"].shape == (2,)
    assert several["legs"]["move"][0] == 2
    assert several["aim"].shape == (2, 2)
    assert np.abs(several["aim"]).max() <= 2.0, "squashed between its bounds"
    # As gymnasium.vector stacks infos, with flags that say whose they are.
    for rows in (2, 3):
        moves = np.eye(3, dtype=np.int8)[:rows]
        here = np.ones(rows, np.bool_)
        stacked = {"legs": {"move": moves, "_move": here}, "_legs": here}
        several, _ = policy.act(np.stack([obs] * rows), mask=stacked)
        assert several["legs"]["move"].tolist() == [1, 2, 3][:rows]
    move = [0, 1, 0]
    for wrong in (
        {"legs": {"mvoe": move}},
        {"action_mask": {"legs": {"move": move}}},
        move,
        "x",
        5,
    ):
        with pytest.raises(ValueError, match="it must be a Dict or Tuple as the action is"):
            policy.act(obs, mask=wrong)


def test_observed_masks_of_several_environments_are_taken_apart(tmp_path: Path) -> None:
    more = {"evaluation.every_seconds": 0.0, "placement": "inline", "total_env_steps": 128}
    result = train(
        make_config("joint_envs:ObservedParts", settings(tmp_path / "run", **more)), quiet=True
    )
    policy = gossamer.load_policy(result)
    mask = (
        np.array([[1, 0, 0], [0, 0, 1]]),
        (np.array([[0, 1], [1, 0]]), np.array([[0, 1, 0], [0, 0, 1]])),
    )
    several = {"observation": np.zeros((2, 3), np.float32), "action_mask": mask}
    one, two, _ = policy.act(several)[0]
    assert (one.tolist(), two.tolist()) == ([0, 2], [[1, 1], [0, 2]])


OPTIMA = {
    "ppo": {"passes": 4, "num_minibatches": 4},
    "vtrace": {"num_minibatches": 4, "passes": 2},
    "laser": {"num_minibatches": 4},
    "impact": {"num_minibatches": 4},
    "a2c": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["Joint", "Pair"])
@pytest.mark.parametrize("algorithm", NAMES)
def test_it_comes_within_two_percent_of_the_optimum(
    tmp_path: Path, algorithm: str, env_id: str
) -> None:
    given = settings(
        tmp_path / "run", placement="inline", total_env_steps=60_000, num_envs=16, unroll_length=16,
        algorithm={"name": algorithm, "entropy_cost": 0.001, "discount": 0.0, **OPTIMA[algorithm]},
        **{"evaluation.every_seconds": 0.0, "optimizer.learning_rate": 2e-3,
           "optimizer.schedule": "linear", "policy.init_log_std": -0.5},
    )  # fmt: skip
    result = train(make_config(f"joint_envs:{env_id}", given), quiet=True)
    mean = gossamer.evaluate(result, episodes=50).mean / joint_envs.LENGTH
    assert mean > 0.98
