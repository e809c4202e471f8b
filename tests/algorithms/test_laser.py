"""LASER's divergences, rejected rows and targets against references written from the paper."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import slow_losses
import torch
from algorithm_checks import (
    COMMON,
    computed_loss,
    minibatches_of,
    state_for,
    table,
)
from core_fakes import CONTINUOUS, gradient_of, random_batch, small_policy, spec_of

from gossamer.algorithms.base import with_column_weights
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.vtrace import VTrace
from gossamer.ops.distributions import make_distribution
from gossamer.ops.trust import has_implied_policy, implied_kl
from gossamer.spec import ActionSpec

KINDS = [
    ActionSpec("categorical", (3,)),
    ActionSpec("categorical", (1,)),
    ActionSpec("multi_categorical", (2, 3, 4)),
    ActionSpec("bernoulli", (3,)),
]


def probabilities(spec, params):
    """Every joint action's probability, from the definition of its distribution."""
    params = params.double()
    if spec.kind == "bernoulli":
        on = 1.0 / (1.0 + (-params).exp())
        parts = [[1.0 - float(p), float(p)] for p in on]
    else:
        parts = [(x.exp() / x.exp().sum()).tolist() for x in params.split(spec.sizes)]
    return [math.prod(chosen) for chosen in itertools.product(*parts)]


def slow_implied_kl(pi, mu, clip_rho):
    """KL(pi || mu~) for mu~ = min(clip_rho mu, pi), normalised (Schmitt et al. 2020, section 4)."""
    least = [min(clip_rho * m, p) for p, m in zip(pi, mu, strict=True)]
    return sum(p * math.log(p / (x / sum(least))) for p, x in zip(pi, least, strict=True))


@pytest.mark.parametrize("spec", KINDS)
@pytest.mark.parametrize("clip_rho", [0.3, 1.0, 4.0])
def test_divergence_from_the_implied_policy(spec, clip_rho):
    generator = torch.Generator().manual_seed(1)
    now, acted = 2.0 * torch.randn(2, 20, spec.num_params, generator=generator)
    found = implied_kl(make_distribution(spec, now), make_distribution(spec, acted), clip_rho)
    for i, kl in enumerate(found.tolist()):
        pi, mu = probabilities(spec, now[i]), probabilities(spec, acted[i])
        assert kl == pytest.approx(slow_implied_kl(pi, mu, clip_rho), abs=2e-6)


@pytest.mark.parametrize("spec", KINDS)
def test_the_same_policy_has_no_divergence_from_what_it_implies(spec):
    now = 5.0 * torch.randn(9, spec.num_params, generator=torch.Generator().manual_seed(2))
    same = make_distribution(spec, now)
    assert implied_kl(same, make_distribution(spec, now.clone()), 1.0).max() < 1e-6


def test_actions_of_no_probability_do_not_matter():
    spec = KINDS[0]
    now = make_distribution(spec, torch.tensor([[0.0, 1.0, -math.inf]]))
    acted = make_distribution(spec, torch.tensor([[0.0, 0.0, -math.inf]]))
    pi = [1.0 / (1.0 + math.e), math.e / (1.0 + math.e)]
    expected = slow_implied_kl(pi, [0.5, 0.5], 1.0)
    assert implied_kl(now, acted, 1.0).item() == pytest.approx(expected, abs=1e-6)
    # one that the behavior never takes cannot be corrected for
    never = make_distribution(spec, torch.tensor([[0.0, -math.inf, -math.inf]]))
    assert implied_kl(now, never, 1.0).item() > 1e3


def test_every_single_discrete_action_has_an_implied_policy_and_many_combined_ones_none():
    for sizes, kind, has in (
        ((5000,), "categorical", True),
        ((70, 70), "multi_categorical", False),
    ):
        spec = ActionSpec(kind, sizes)
        now = make_distribution(spec, torch.zeros(2, spec.num_params))
        assert has_implied_policy(now) == has


def slow_accepted(algorithm, policy, batch):
    spec = policy.spec.action
    accepted = torch.zeros(batch.reward.shape, dtype=torch.bool)
    for i in range(batch.num_columns):
        going = True
        for s in range(batch.unroll_length):
            pi = probabilities(spec, policy.params[s, i].detach())
            mu = probabilities(spec, batch.behavior[s, i])
            if algorithm.kl == "implied":
                kl = slow_implied_kl(pi, mu, algorithm.clip_rho)
            elif algorithm.kl == "pi_mu":
                kl = sum(p * math.log(p / m) for p, m in zip(pi, mu, strict=True))
            else:
                kl = sum(m * math.log(m / p) for p, m in zip(pi, mu, strict=True))
            near = kl < algorithm.max_kl_nats
            if batch.valid[s, i] and not near:
                going = False
            accepted[s, i] = near and (going or algorithm.cut == "per_state")
    return accepted


def slow_laser_loss(algorithm, policy, batch):
    """Sum over rows of the paper's losses, backwards in time; entropy over online columns only."""
    spec, total = policy.spec.action, torch.zeros((), dtype=torch.float64)
    a, t = algorithm, batch.unroll_length
    accepted = slow_accepted(a, policy, batch)
    log_rho = slow_losses.all_log_rho(policy, batch)
    value = policy.value.detach()
    rows, online = int(batch.valid.sum()), int(batch.valid[:, ~batch.replayed].sum())
    for i in range(batch.num_columns):
        correction = 0.0  # v_{s+1} - V(x_{s+1})
        for s in reversed(range(t)):
            over = bool(batch.terminated[s, i] or batch.truncated[s, i])
            if over or not batch.valid[s, i]:
                correction = 0.0
            rho = math.exp(log_rho[s, i])
            discount = 0.0 if batch.terminated[s, i] else a.discount
            reward = slow_losses.squashed(float(batch.reward[s, i]), a.reward_clip)
            following = float(value[s + 1, i])
            gain = (
                reward + discount * (following + a.trace_lambda * correction) - float(value[s, i])
            )
            delta = min(a.clip_rho, rho) * (reward + discount * following - float(value[s, i]))
            trace = discount * a.trace_lambda * min(a.clip_c, rho)
            correction = float(accepted[s, i]) * (delta + trace * correction)
            if not (accepted[s, i] and batch.valid[s, i]):
                continue
            params, v = policy.params[s, i], policy.value[s, i]
            advantage = min(a.clip_pg_rho, rho) * gain
            total = total - advantage * slow_losses.log_prob(spec, params, batch.action[s, i])
            target = float(value[s, i]) + correction
            total = total + a.value_cost * 0.5 * (target - v) ** 2 / policy.scale**2
            if not batch.replayed[i]:
                weight = 1.0 if a.reduction == "sum" else rows / online
                total = total - a.entropy_cost[0] * weight * slow_losses.entropy(spec, params)
    return total / (1.0 if a.reduction == "sum" else rows), accepted


def replayed_table(t=9, b=6, *, seed=0):
    policy, batch = table(t, b, seed=seed)
    batch.replayed[b // 3 :] = True
    return policy, batch


SETTINGS = [
    {},
    {"max_kl_nats": 0.05},
    {"max_kl_nats": 0.02, "clip_rho": 2.0, "clip_c": 0.5},
    {"kl": "pi_mu"},
    {"kl": "mu_pi", "cut": "cumulative", "max_kl_nats": 1.0},
    {"cut": "cumulative", "max_kl_nats": 0.2, "trace_lambda": 0.7},
    {"reduction": "sum", "reward_clip": "clamp"},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_loss_and_gradient_row_by_row(settings):
    algorithm = Laser(**{"entropy_cost": (0.3,), **settings})
    for seed in range(3):
        policy, batch = replayed_table(seed=seed)
        (minibatch,) = minibatches_of(algorithm, policy, batch)
        weighed = with_column_weights(minibatch, algorithm.reduction)
        loss, metrics = algorithm.loss(policy, weighed, state_for())
        loss = loss / algorithm.divisor(minibatch)
        expected, accepted = slow_laser_loss(algorithm, policy, batch)
        rejected = batch.valid & ~accepted
        assert rejected.any()
        assert (batch.valid & accepted).any()
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        tables = [policy.params, policy.value]
        got = torch.autograd.grad(loss, tables)
        want = torch.autograd.grad(expected, tables)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
        for x in got:
            assert (x[:-1][rejected] == 0.0).all()
        total, count = metrics["learner/rejected_fraction"]
        assert float(total) == int(rejected.sum())
        assert float(count) == int(batch.valid.sum())


def test_a_rejected_row_changes_no_gradient():
    """Whatever it earned and whatever it led to: others only bootstrap from its value."""
    policy, batch = replayed_table()
    algorithm = Laser()
    accepted = slow_accepted(algorithm, policy, batch)
    tables = [policy.params, policy.value]
    one = torch.autograd.grad(computed_loss(algorithm, policy, batch)[0], tables)
    changed = replace(batch, reward=batch.reward.clone())
    changed.reward[batch.valid & ~accepted] += 100.0
    two = torch.autograd.grad(computed_loss(algorithm, policy, changed)[0], tables)
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("settings", COMMON)
def test_on_policy_online_it_is_vtrace(settings):
    policy, batch = table()
    batch.behavior.copy_(policy.params[:-1].detach())
    tables = [policy.params, policy.value]
    one, _ = computed_loss(Laser(**settings), policy, batch)
    other, _ = computed_loss(VTrace(**settings), policy, batch)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(torch.autograd.grad(one, tables), torch.autograd.grad(other, tables))


def test_advantages_are_normalised_over_the_rows_that_are_learnt():
    policy, batch = replayed_table()
    algorithm = Laser(normalize_advantage=True)
    (minibatch,) = minibatches_of(algorithm, policy, batch)
    kept = batch.valid & slow_accepted(algorithm, policy, batch)
    assert torch.equal(minibatch.kept, kept)
    plain = minibatch.advantage[kept] / minibatch.advantage_weight[kept]
    assert plain.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert plain.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)


def test_continuous_actions_are_cut_by_the_divergence_from_the_behavior():
    policy, batch = table(action=CONTINUOUS)
    now = policy.distribution(policy.params[:-1])
    kl = now.kl(policy.distribution(batch.behavior)).detach()
    middle = float(kl.detach().median())
    accepted = Laser(max_kl_nats=middle).accepted(batch, now)
    assert torch.equal(accepted, kl < middle)


def test_micro_batches_of_replayed_columns_agree():
    policy, batch = small_policy(), random_batch(spec_of(), 5, 6)
    batch.replayed[2:] = True
    algorithm = Laser(entropy_cost=(0.3,), policy_cloning_cost=0.5, value_cloning_cost=0.5)
    whole = gradient_of(policy, algorithm, batch, 10**6)
    for columns in (1, 2, 4):
        part = gradient_of(policy, algorithm, batch, columns * 6)
        torch.testing.assert_close(part, whole, rtol=0.0, atol=1e-6)


def test_the_reported_entropy_is_the_mean_of_online_rows_that_are_learnt():
    policy, batch = replayed_table()
    algorithm = Laser(policy_cloning_cost=0.1, value_cloning_cost=0.1)
    accepted = slow_accepted(algorithm, policy, batch)
    batch.behavior[:, batch.replayed] += torch.tensor([9.0, 0.0, 0.0])  # all of them are rejected
    batch.behavior[0, -1] = policy.params[0, -1].detach()  # but one
    batch.valid[0, -1] = True
    _, metrics = algorithm.loss(policy, with_column_weights(batch, "mean"), state_for())
    kept = (batch.valid & accepted)[:, ~batch.replayed].nonzero().tolist()
    spec = policy.spec.action
    entropies = [slow_losses.entropy(spec, policy.params[s, i].detach()) for s, i in kept]
    total, count = metrics["learner/entropy_nats"]
    assert float(total / count) == pytest.approx(float(sum(entropies) / len(entropies)), rel=1e-6)
    total, count = metrics["learner/policy_cloning_loss"]
    assert float(total / count) == pytest.approx(0.0, abs=1e-6)
    error = (batch.value[0, -1] - policy.value[0, -1].detach()) ** 2
    total, count = metrics["learner/value_cloning_loss"]
    assert float(total / count) == pytest.approx(float(error), rel=1e-6)


@pytest.mark.parametrize("replayed", [False, True])
def test_terms_over_columns_that_have_no_valid_row_are_0(replayed):
    policy, batch = replayed_table()
    batch.valid[:, batch.replayed == replayed] = False
    online, old = {"entropy_cost": (0.3,)}, {"policy_cloning_cost": 0.5, "value_cloning_cost": 0.5}
    losses = []
    for costs in ({}, old if replayed else online):
        algorithm = Laser(**{"entropy_cost": (0.0,), **costs})
        (minibatch,) = minibatches_of(algorithm, policy, batch)
        weighed = with_column_weights(minibatch, algorithm.reduction)
        losses.append(algorithm.loss(policy, weighed, state_for())[0].item())
    assert losses[0] == losses[1] != 0.0


def test_every_part_has_its_share_of_online_columns():
    policy, batch = table(b=12)
    batch.replayed[4:] = True
    algorithm = Laser(num_minibatches=4, passes=2)
    parts = list(minibatches_of(algorithm, policy, batch))
    assert [(~part.replayed).sum().item() for part in parts] == [1] * 8
    assert [part.replayed.sum().item() for part in parts] == [2] * 8
    for first in (0, 4):
        columns = [
            c for part in parts[first : first + 4] for c in part.obs[0, :, 1].long().tolist()
        ]
        assert sorted(columns) == list(range(12))


@torch.no_grad()
def test_how_far_policies_are_apart_is_told_of_rejected_rows_too():
    policy, batch = small_policy(), random_batch(spec_of(), 6, 5, seed=2)
    algorithm = Laser(max_kl_nats=0.02)
    _, metrics = algorithm.loss(policy, batch, state_for())
    means = {name: float(x) / float(n) for name, (x, n) in metrics.items()}
    assert 0.1 < means["learner/rejected_fraction"] < 0.95
    now = policy.distribution(
        policy(batch.obs[:-1], batch.starts[:-1], batch.core_state).action_params
    )
    acted = policy.distribution(batch.behavior)
    log_rho = now.log_prob(batch.action) - acted.log_prob(batch.action)
    kl = acted.kl(now)[batch.valid].mean()
    assert means["learner/mean_kl_nats"] == pytest.approx(float(kl), rel=1e-5)
    assert means["learner/mean_log_rho"] == pytest.approx(
        float(log_rho[batch.valid].mean()), rel=1e-4
    )
