"""A version's KL is that of its last update; value targets of updates that are left out count nowhere."""

from __future__ import annotations

import pytest
import torch
from core_fakes import make_learner, random_batch, small_policy, spec_of
from recorder import calling

from gossamer.algorithms.base import unroll
from gossamer.algorithms.ppo import PPO
from gossamer.system import devices


def on_policy(policy):
    batch = random_batch(spec_of(), 5, 4)
    with torch.no_grad():
        batch.behavior.copy_(unroll(policy, batch, slice(0, 5)).action_params)
    return batch


def test_the_rate_follows_the_kl_of_a_versions_last_update():
    """The first finds the policy where it acted, whatever the rate."""
    policy = small_policy()
    algorithm = PPO(passes=3, num_minibatches=1, target_kl_nats=1e-6)
    learner = make_learner(policy, algorithm, on_policy(policy))
    learner.learn_version()
    state = learner.state_dict()
    assert state["algorithm.kl_nats"] > 2e-6
    assert state["algorithm.lr_scale"] == pytest.approx(1.0 / 1.5)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_value_moments_hold_the_targets_of_the_updates_that_were_made(on_gpu, monkeypatch):
    """On a GPU those after too large a KL are computed, and left out."""
    if on_gpu:
        monkeypatch.setattr(devices, "is_gpu", lambda device: True)
    policy = small_policy(value_norm=True)
    batch = on_policy(policy)
    algorithm = PPO(passes=5, num_minibatches=1, max_kl_nats=1e-6, value_norm=True)
    graphs = calling() if on_gpu else None
    learner = make_learner(policy, algorithm, batch, graphs=graphs)
    learner.learn_version()
    # the first is learnt at a KL of 0; the second finds the policy moved
    assert policy.value_moments.count == 2 * int(batch.valid.sum())
