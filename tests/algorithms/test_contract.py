"""What every algorithm must satisfy; one that is new in algorithms/ is tested here without being named."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from algorithm_checks import minibatches_of, state_for, table
from core_fakes import (
    CONSTANT,
    ListReplay,
    SignEnvs,
    gradient_of,
    make_learner,
    random_batch,
    small_policy,
    spec_of,
)

from gossamer.algorithms.base import Algorithm
from gossamer.config.own_parts import ours_of
from gossamer.roles.actor import Actor
from gossamer.types import as_batch, empty_trajectory

ALGORITHMS = {kind.name: kind for kind in ours_of(Algorithm)}
ONE_PART = {"passes": 1, "num_minibatches": 1}
WIDE = {"clip_ratio": 50.0, "max_kl_nats": 1e6}
"""Clips that leave every row a gradient."""
NETWORKS = [
    ({}, {}),
    ({"normalize_advantage": True, "value_norm": True}, {"last_action": True}),
    ({"reduction": "sum"}, {"core": "lstm", "core_size": 4, "last_reward": True}),
    ({"value_norm": True}, {"core": "gru", "core_size": 4}),
]
VERSIONS = {("ppo", 4): 15, ("impact", None): 30, ("vtrace", 2): 25}
"""In which a policy learns to tell signs apart; others need 50."""


def make(name, **settings):
    """Return an algorithm with those of the settings that it has."""
    kind = ALGORITHMS[name]
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in settings.items() if key in known})


def test_all_are_here():
    assert {"a2c", "vtrace", "laser", "ppo", "impact"} <= set(ALGORITHMS)


def first_loss(algorithm, policy, batch):
    """Loss and metrics of the one minibatch of a first batch."""
    state = state_for()
    algorithm.init_state(policy, state)
    (minibatch,) = minibatches_of(algorithm, policy, batch, state)
    loss, metrics = algorithm.loss(policy, minibatch, state)
    return loss / algorithm.divisor(minibatch), metrics


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_masked_rows_have_no_gradient(name, normalize):
    algorithm = make(name, **ONE_PART, **WIDE, normalize_advantage=normalize)
    policy, batch = table(t=12, b=6)
    loss, metrics = first_loss(algorithm, policy, batch)
    grads = torch.autograd.grad(loss, [policy.params, policy.value])
    for x in grads:
        assert (x[:-1][~batch.valid] == 0.0).all()
        assert (x[-1] == 0.0).all(), "the last observation is only bootstrapped from"
    assert (grads[1][:-1][batch.valid] != 0.0).all()
    # whatever lies on rows that are not learnt may change without a trace
    batch.reward[~batch.valid] = 1e3
    batch.behavior[~batch.valid] += 0.3
    batch.action[~batch.valid] = (batch.action[~batch.valid] + 1) % 3
    again, same = first_loss(algorithm, policy, batch)
    assert torch.equal(loss, again)
    for x, y in zip(grads, torch.autograd.grad(again, [policy.params, policy.value]), strict=True):
        assert torch.equal(x, y)
    assert {k: [float(x) for x in v] for k, v in metrics.items()} == {
        k: [float(x) for x in v] for k, v in same.items()
    }


@pytest.mark.parametrize(("settings", "network"), NETWORKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_agree(name, settings, network):
    algorithm = make(name, **ONE_PART, **settings)
    spec = spec_of()
    policy = small_policy(spec, value_norm=algorithm.value_norm, **network)
    if algorithm.value_norm:
        policy.observe_values(20.0, 300.0, 10.0)
        policy.refresh()
    batch = random_batch(spec, 5, 6, core_units=policy.core_units)
    whole = gradient_of(policy, algorithm, batch, 10**6)
    assert whole.abs().max() > 1e-3
    for columns in (1, 2, 4):
        part = gradient_of(policy, algorithm, batch, columns * 6)
        torch.testing.assert_close(part, whole, rtol=1e-6, atol=1e-6)


def play(algorithm, envs, *, versions, unroll_length=8):
    """Train in lock-step; return the mean reward per episode over the last ten versions."""
    policy, returns = small_policy(envs.spec), []
    learner = make_learner(policy, algorithm, optimizer=CONSTANT, total_env_steps=10**6)
    actor = Actor(
        [envs], policy, unroll_length=unroll_length, seeds=[1],
        on_episode=lambda episode: returns.append(episode.episode_return),
    )  # fmt: skip
    slot = empty_trajectory(
        envs.spec,
        unroll_length=unroll_length,
        num_columns=envs.num_envs,
        core_units=policy.core_units,
    )
    learner.replay = ListReplay(as_batch(slot))
    recent = 0
    for k in range(versions):
        if k == versions - 10:
            recent = len(returns)
        actor.collect(slot, learner.version)
        learner.learn_version()
    return sum(returns[recent:]) / len(returns[recent:])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in ALGORITHMS if name != "ppo"),
        ("ppo", {"passes": 4, "num_minibatches": 2}),
        ("vtrace", {"passes": 2, "num_minibatches": 2}),
    ],
)
def test_learns(name, settings):
    algorithm = make(name, **{"target_every_updates": 4, **settings})
    versions = VERSIONS.get((name, settings.get("passes")), 50)
    assert play(algorithm, SignEnvs(16), versions=versions) > 0.9
    # and it is the reward that it learns from: paid for the opposite, it learns the opposite
    contrary = SignEnvs(16)
    receive = contrary.recv

    def recv():
        result = receive()
        return result._replace(reward=result.reward * -1.0)

    contrary.recv = recv
    assert play(algorithm, contrary, versions=versions) > -0.1
