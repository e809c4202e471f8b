"""Random streams of a run's learners: no two of them draw the same, nor does one that takes another's place."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from gossamer.build.plan import make_plan
from gossamer.build.roles import actor_seeds, build_env_groups
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.run.placements.host_learners import HostLearners, build_learners
from gossamer.run.placements.loop_inline import learn_inline

SMALL: dict[str, Any] = {
    "num_learners": 2,
    "num_envs": 2,
    "unroll_length": 16,
    "placement": "inline",
    "device": "cpu",
    "topology": {"name": "single"},
    "evaluation.every_seconds": 0,
    "policy.hidden_sizes": [8],
}


def built(restarts: int = 0, **settings: Any) -> HostLearners:
    config = make_config("CartPole-v1", {**SMALL, **settings})
    spec = read_spec(config.env_id, config.env, 0)
    return build_learners(config, spec, make_plan(config, spec), restarts=restarts)


def streams(state: dict[str, Any]) -> dict[str, Any]:
    """Return the states of random generators among what a checkpoint holds, by name."""
    ends = ("rng", "generator")
    return {
        name: x.tolist() if isinstance(x, torch.Tensor) else x
        for name, x in state.items()
        if name.endswith(ends)
    }


def distinct(states: list[Any]) -> bool:
    return all(a != b for a, b in itertools.combinations(states, 2))


def test_learners_and_those_in_their_place_act_and_learn_by_streams_of_their_own():
    acting, learning = list[Any](), list[Any]()
    for restarts in (0, 1):
        learners = built(restarts)
        for parts in learners.parts:
            acting.append(streams(parts.actor.state_dict()))
            learning.append(streams(parts.learner.state_dict()))
        learners.close()
    assert all(acting)
    assert all(learning)
    assert distinct(acting)
    assert distinct(learning)


def test_groups_of_environments_act_by_streams_of_their_own():
    config = make_config("CartPole-v1", {**SMALL, "env_groups": 2})
    spec = read_spec(config.env_id, config.env, 0)
    plan = make_plan(config, spec)
    seeds = [actor_seeds(config, plan, rank, restarts) for rank in (0, 1) for restarts in (0, 1)]
    assert len({seed for each in seeds for seed in each}) == 8


def test_every_replay_of_every_learner_draws_by_a_stream_of_its_own():
    queue = {"name": "queue", "fraction": 0.5}
    kept = [{"name": "uniform", "fraction": 0.25, "capacity": 64}] * 2
    learners = built(replays=[queue, *kept], **{"algorithm.name": "laser"}, num_envs=4)
    drawn = [streams(parts.learner.replay.state_dict()) for parts in learners.parts]
    learners.close()
    assert [len(each) for each in drawn] == [2, 2]
    assert distinct([x for each in drawn for x in each.values()])


@pytest.mark.parametrize("restarts", [0, 1])
def test_no_two_environments_of_a_run_begin_alike(restarts):
    config = make_config("CartPole-v1", SMALL)
    spec = read_spec(config.env_id, config.env, 0)
    plan, begun = make_plan(config, spec), list[list[float]]()
    for rank in (0, 1):
        groups, first_obs = build_env_groups(config, spec, plan, rank=rank, restarts=restarts)
        begun += [x for obs in first_obs for x in torch.as_tensor(obs).tolist()]
        for envs in groups:
            envs.close()
    assert len(begun) == 4
    assert distinct(begun)


def test_environments_of_a_learner_in_anothers_place_begin_episodes_of_their_own():
    config = make_config("CartPole-v1", SMALL)
    spec = read_spec(config.env_id, config.env, 0)
    plan, begun = make_plan(config, spec), list[Any]()
    for restarts in (0, 1):
        groups, first_obs = build_env_groups(config, spec, plan, rank=1, restarts=restarts)
        begun.append([torch.as_tensor(obs).tolist() for obs in first_obs])
        for envs in groups:
            envs.close()
    assert begun[0] != begun[1]


def test_episodes_tell_which_of_the_runs_environments_they_are_of():
    learners = built(**{"algorithm.name": "a2c", "algorithm.num_minibatches": 1})
    versions = learn_inline(learners)
    while len({rank for rank, _ in learners.episodes}) < 2:
        next(versions)
    found = {(rank, episode.env // 2) for rank, episode in learners.episodes}
    versions.close()
    learners.close()
    assert found == {(0, 0), (1, 1)}
