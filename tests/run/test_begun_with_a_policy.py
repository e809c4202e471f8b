"""Learners that begin with another run's policy have its moments, and replay little until their replays are full."""

from __future__ import annotations

import pytest
import torch

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.policies.actor_critic import ActorCritic
from gossamer.run.checkpoint_contents import SavedPolicy
from gossamer.run.placements.host_learners import build_learners
from gossamer.run.snapshot import restore


@pytest.fixture
def learners():
    settings = {"num_envs": 2, "placement": "inline", "device": "cpu"}
    settings |= {"algorithm": {"name": "laser"}, "replay_ratio": 1.0, "evaluation.every_seconds": 0}
    config = make_config("CartPole-v1", settings)
    spec = read_spec(config.env_id, config.env, 0)
    made = build_learners(config, spec, make_plan(config, spec))
    yield made
    made.close()


def test_they_see_what_it_saw_and_fill_their_replays_first(learners):
    (parts,) = learners.parts
    giver = ActorCritic(parts.policy.spec, parts.policy.config)
    obs = 5.0 + 3.0 * torch.randn((6, 4, 4), generator=torch.Generator().manual_seed(1))
    giver.observe(obs, torch.ones((5, 4), dtype=torch.bool))
    giver.refresh()
    tensors = {name: x.clone() for name, x in giver.state_dict().items()}
    (share,) = parts.learner.replay.shares
    assert share.replay.filling == 1.0
    assert restore(learners, SavedPolicy(tensors, "run")) == ""
    assert torch.equal(parts.policy.normalize(obs), giver.normalize(obs))
    assert share.replay.filling == 0.0
