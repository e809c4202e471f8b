"""What every algorithm must satisfy, called by each one's tests."""

from __future__ import annotations

import dataclasses

import slow_losses
import torch
from core_fakes import (
    CONSTANT,
    CONTINUOUS,
    DISCRETE,
    ListReplay,
    SignEnvs,
    TablePolicy,
    as_double,
    gradient_of,
    make_learner,
    random_batch,
    small_policy,
    spec_of,
)

from gossamer.algorithms.base import AlgorithmState
from gossamer.ops.micro_batches import MicroBatches
from gossamer.roles.actor import Actor
from gossamer.types import as_batch, empty_trajectory

COMMON = [
    {},
    {"reward_clip": "clamp", "discount": 0.9},
    {"reward_clip": "sign", "value_cost": 0.3},
    {"reward_clip": "soft_asymmetric", "entropy_cost": (0.2,)},
    {"reduction": "sum"},
    {"normalize_advantage": True},
    {"trace_lambda": 0.6, "normalize_advantage": True, "reward_clip": "clamp"},
    {"trace_lambda": 0.0, "entropy_cost": (0.0,)},
    {"scale_rewards": True, "normalize_advantage": False, "entropy_cost": (0.2,)},
]
"""Settings that every algorithm has."""


def state_for(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return AlgorithmState(generator, MicroBatches(10**9))


def table(t=7, b=4, *, action=DISCRETE, seed=0, scale=1.0):
    spec = spec_of(action)
    return TablePolicy(spec, t, b, seed=seed, scale=scale), as_double(
        random_batch(spec, t, b, seed=seed)
    )


def computed_loss(algorithm, policy, batch):
    """Loss of the one minibatch of a batch."""
    (minibatch,) = algorithm.minibatches(policy, batch, state_for())
    loss, metrics = algorithm.loss(policy, minibatch, state_for())
    return loss / algorithm.divisor(minibatch), metrics


def assert_equals_slow_loss(algorithm):
    for seed, action, scale in [(0, DISCRETE, 1.0), (1, CONTINUOUS, 2.5), (2, DISCRETE, 0.5)]:
        policy, batch = table(action=action, seed=seed, scale=scale)
        assert not batch.valid.all()
        loss, _ = computed_loss(algorithm, policy, batch)
        expected = slow_losses.slow_loss(algorithm, policy, batch)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        got = torch.autograd.grad(loss, [policy.params, policy.value])
        want = torch.autograd.grad(expected, [policy.params, policy.value])
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
        assert all(x.abs().max() > 1e-4 for x in want)


def assert_masked_rows_have_no_gradient(algorithm):
    policy, batch = table(t=12, b=6)
    loss, metrics = computed_loss(algorithm, policy, batch)
    grads = torch.autograd.grad(loss, [policy.params, policy.value])
    for x in grads:
        assert (x[:-1][~batch.valid] == 0.0).all()
        assert (x[-1] == 0.0).all(), "the last observation is only bootstrapped from"
    assert (grads[1][:-1][batch.valid] != 0.0).all()
    # whatever lies on rows that are not learnt may change without a trace
    batch.reward[~batch.valid] = 1e3
    batch.behavior[~batch.valid] += 0.3
    batch.action[~batch.valid] = (batch.action[~batch.valid] + 1) % 3
    again, same = computed_loss(algorithm, policy, batch)
    assert torch.equal(loss, again)
    for x, y in zip(grads, torch.autograd.grad(again, [policy.params, policy.value]), strict=True):
        assert torch.equal(x, y)
    assert {k: [float(x) for x in v] for k, v in metrics.items()} == {
        k: [float(x) for x in v] for k, v in same.items()
    }


def assert_micro_batches_agree(algorithm, **settings):
    spec = spec_of()
    policy = small_policy(spec, value_norm=algorithm.value_norm, **settings)
    if algorithm.value_norm:
        policy.observe_values(20.0, 300.0, 10.0)
        policy.refresh()
    batch = random_batch(spec, 5, 6, core_units=policy.core_units)
    whole = gradient_of(policy, algorithm, batch, 10**6)
    assert whole.abs().max() > 1e-3
    for columns in (1, 2, 4):
        part = gradient_of(policy, algorithm, batch, columns * 6)
        torch.testing.assert_close(part, whole, rtol=0.0, atol=1e-6)


def play(algorithm, envs, policy, *, versions, unroll_length=8, optimizer=CONSTANT):
    """Train in lock-step; return the mean reward per episode over the last ten versions."""
    returns = []
    learner = make_learner(policy, algorithm, optimizer=optimizer, total_env_steps=10**6)
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


def assert_learns(algorithm, *, versions=50):
    envs = SignEnvs(16)
    policy = small_policy(envs.spec)
    got = play(algorithm, envs, policy, versions=versions)
    assert got > 0.9
    # and it is the reward that it learns from: paid for the opposite, it learns the opposite
    upside_down = dataclasses.replace(algorithm, discount=algorithm.discount)
    contrary = SignEnvs(16)
    receive = contrary.recv

    def recv():
        result = receive()
        return result._replace(reward=result.reward * -1.0)

    contrary.recv = recv
    assert play(upside_down, contrary, small_policy(contrary.spec), versions=versions) > -0.1


def column_sets(minibatches):
    """Which columns each minibatch holds."""
    return [minibatch.obs[0, :, 1].long().tolist() for minibatch in minibatches]
