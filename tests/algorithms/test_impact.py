"""IMPACT's loss row by row, its target policy, and what it becomes without delay."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import slow_losses
import slow_returns
import torch
from algorithm_checks import (
    minibatches_of,
    state_for,
    table,
)
from core_fakes import (
    CONTINUOUS,
    DISCRETE,
    TablePolicy,
    make_learner,
    random_batch,
    small_policy,
    spec_of,
)

from gossamer.algorithms.impact import Impact


def state_with(algorithm, policy, target):
    """A state whose target policy is another one, and is not moved."""
    state = state_for()
    algorithm.init_state(policy, state)
    with torch.no_grad():
        for x, y in zip(state.target_policy.parameters(), target.parameters(), strict=True):
            x.copy_(y)
    state.tensors["updates"] += 1
    return state


def slow_impact_loss(algorithm, policy, target, batch):
    """The clipped surrogate of Luo et al. 2020 on the target network's V-trace, one row at a time."""
    a, spec = algorithm, policy.spec.action
    then_log_rho = slow_losses.all_log_rho(target, batch)
    columns = slow_returns.columns_of(batch, target.value.detach(), then_log_rho)
    found, weights = {}, {}
    for i, column in enumerate(columns):
        column = column._replace(
            reward=[slow_losses.squashed(r, a.reward_clip) for r in column.reward]
        )
        for s in range(len(column.reward)):
            if column.valid[s]:
                common = (column, s, a.discount, a.trace_lambda, a.clip_rho, a.clip_c)
                found[s, i] = (
                    slow_returns.vtrace_target(*common),
                    slow_returns.vtrace_advantage(*common, a.clip_pg_rho),
                )
                weights[s, i] = min(a.clip_pg_rho, math.exp(column.log_rho[s]))
    if a.normalize_advantage:
        found = slow_losses.weighted_normal(found, weights)
    total = torch.zeros((), dtype=torch.float64)
    for (s, i), (goal, advantage) in found.items():
        action = batch.action[s, i]
        pi = slow_losses.log_prob(spec, policy.params[s, i], action).exp()
        with torch.no_grad():
            then = slow_losses.log_prob(spec, target.params[s, i], action).exp()
            mu = slow_losses.log_prob(spec, batch.behavior[s, i], action).exp()
        ratio = min(a.max_target_ratio, float(mu / then)) * pi / mu
        inside = ratio.clamp(1.0 - a.clip_ratio, 1.0 + a.clip_ratio)
        total = total - torch.minimum(ratio * advantage, inside * advantage)
        total = total + a.value_cost * 0.5 * (goal - policy.value[s, i]) ** 2 / policy.scale**2
        total = total - a.entropy_cost[0] * slow_losses.entropy(spec, policy.params[s, i])
    return total / (1.0 if a.reduction == "sum" else len(found))


SETTINGS = [
    {},
    {"normalize_advantage": False, "trace_lambda": 1.0},
    {"max_target_ratio": 1.1, "clip_ratio": 0.05},
    {"max_target_ratio": 0.5, "clip_ratio": 0.9, "reward_clip": "clamp"},
    {"clip_rho": 0.5, "clip_c": 0.7, "clip_pg_rho": 3.0, "reduction": "sum"},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_loss_and_gradient_row_by_row(settings, action):
    algorithm = Impact(num_minibatches=1, **settings)
    policy, batch = table(action=action, seed=3)
    spec = policy.spec
    target = TablePolicy(spec, 7, 4, seed=8)
    state = state_with(algorithm, policy, target)
    (minibatch,) = minibatches_of(algorithm, policy, batch, state)
    loss, _ = algorithm.loss(policy, minibatch, state)
    loss = loss / algorithm.divisor(minibatch)
    expected = slow_impact_loss(algorithm, policy, target, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    tables = [policy.params, policy.value]
    got, want = torch.autograd.grad(loss, tables), torch.autograd.grad(expected, tables)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    assert all(x.abs().max() > 1e-4 for x in want)


def test_the_target_policy_is_the_policy_of_some_updates_ago():
    policy = small_policy()
    seen = []

    class Watched(Impact):
        def loss(self, policy, minibatch, state):
            seen.append(copy.deepcopy(state.target_policy.state_dict()))
            return super().loss(policy, minibatch, state)

    algorithm = Watched(num_minibatches=2, target_every_updates=3)
    learner = make_learner(policy, algorithm, random_batch(spec_of(), 5, 4))
    weights = [copy.deepcopy(policy.state_dict())]
    for _ in range(4):
        before = learner.update
        while learner.update < before + 2:
            learner.adapt()
            # what this update was learnt with is of the last multiple of three
            expected = weights[learner.update // 3 * 3]
            assert all(torch.equal(seen[-1][name], x) for name, x in expected.items())
            learner.combine()
            weights.append(copy.deepcopy(policy.state_dict()))


def test_it_continues_from_its_state():
    def make():
        algorithm = Impact(num_minibatches=2, target_every_updates=3)
        return make_learner(
            small_policy(), algorithm, *[random_batch(spec_of(), 5, 4, seed=i) for i in range(9)]
        )

    one, two = make(), make()
    for _ in range(4):
        one.learn_version()
    state = {
        k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in one.state_dict().items()
    }
    two.load_state_dict(state)
    two.replay.given = 4
    for _ in range(3):
        one.learn_version()
        two.learn_version()
    ours, theirs = one.state_dict(), two.state_dict()
    assert all(
        torch.equal(x, theirs[k]) if isinstance(x, torch.Tensor) else x == theirs[k]
        for k, x in ours.items()
    )


def test_ratios_are_to_the_target_not_to_the_behavior():
    """A policy like its target is not held back, however old the data is."""
    policy, batch = table()
    batch = replace(batch, behavior=batch.behavior + 0.5)
    algorithm = Impact(num_minibatches=1, max_target_ratio=1e9)
    state = state_with(algorithm, policy, policy)
    (minibatch,) = minibatches_of(algorithm, policy, batch, state)
    _, metrics = algorithm.loss(policy, minibatch, state)
    assert float(metrics["learner/clip_fraction"][0]) == 0.0
    moved = copy.deepcopy(policy)
    with torch.no_grad():
        moved.params.mul_(-1.0)
    _, metrics = algorithm.loss(moved, minibatch, state)
    assert float(metrics["learner/clip_fraction"][0]) > 3
