"""What the tests of all algorithms' losses need."""

from __future__ import annotations

import slow_losses
import torch
from core_fakes import (
    CONTINUOUS,
    DISCRETE,
    TablePolicy,
    as_double,
    random_batch,
    spec_of,
)

from gossamer.algorithms.base import AlgorithmState
from gossamer.ops.micro_batches import MicroBatches

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


def minibatches_of(algorithm, policy, batch, state=None):
    """Yield what each update learns from, as a learner that follows no update deals it."""
    state = state or state_for()
    online = batch.num_columns - int(batch.replayed.sum())
    prepared = algorithm.prepare(policy, batch, state)
    whole = prepared.num_columns
    dealt = list(algorithm.dealt(whole, online if online < batch.num_columns else whole, state))
    for columns in dealt:
        algorithm.before_update(policy, state)
        yield algorithm.part(policy, prepared, columns, state)
        algorithm.count_update(state)


def computed_loss(algorithm, policy, batch):
    """Loss of the one minibatch of a batch."""
    (minibatch,) = minibatches_of(algorithm, policy, batch)
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


def column_sets(minibatches):
    """Which columns each minibatch holds."""
    return [minibatch.obs[0, :, 1].long().tolist() for minibatch in minibatches]
