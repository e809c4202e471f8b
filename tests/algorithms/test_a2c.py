"""A2C's loss row by row, its masks, its parts, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from algorithm_checks import (
    COMMON,
    assert_equals_slow_loss,
    column_sets,
    computed_loss,
    minibatches_of,
    table,
)
from core_fakes import gradient_of, random_batch, small_policy

from gossamer.algorithms.a2c import A2C


@pytest.mark.parametrize("settings", COMMON)
def test_loss_and_gradient_row_by_row(settings):
    assert_equals_slow_loss(A2C(**settings))


def test_behavior_does_not_matter():
    policy, batch = table()
    loss, _ = computed_loss(A2C(), policy, batch)
    batch.behavior.normal_()
    again, _ = computed_loss(A2C(), policy, batch)
    assert torch.equal(loss, again)


def test_parts_are_whole_columns_each_once():
    policy, batch = table(b=6)
    minibatches = list(minibatches_of(A2C(num_minibatches=4), policy, batch))
    columns = column_sets(minibatches)
    assert sorted(len(x) for x in columns) == [1, 1, 2, 2]
    assert sorted(i for held in columns for i in held) == list(range(6))
    for minibatch, held in zip(minibatches, columns, strict=True):
        assert torch.equal(minibatch.action, batch.action[:, held])
        assert torch.equal(minibatch.valid, batch.valid[:, held])


def test_returns_are_fixed_before_the_first_part_changes_the_policy():
    policy, batch = table(b=6)
    algorithm = A2C(num_minibatches=3)
    (whole,) = minibatches_of(A2C(num_minibatches=1, normalize_advantage=True), policy, batch)
    for minibatch in minibatches_of(algorithm, policy, batch):
        (held,) = column_sets([minibatch])
        torch.testing.assert_close(minibatch.target, whole.target[:, held])
        with torch.no_grad():
            policy.value.add_(5.0)


def test_advantages_are_normalised_over_each_part():
    policy, batch = table(b=6)
    algorithm = A2C(num_minibatches=2, normalize_advantage=True)
    for minibatch in minibatches_of(algorithm, policy, batch):
        kept = minibatch.advantage[minibatch.valid]
        assert kept.mean().item() == pytest.approx(0.0, abs=1e-9)
        assert kept.std(correction=0).item() == pytest.approx(1.0, abs=1e-6)


def test_metrics_are_sums_and_counts_of_the_valid_rows():
    policy, batch = table()
    _, metrics = computed_loss(A2C(), policy, batch)
    count = int(batch.valid.sum())
    now = policy.distribution(policy.params[:-1])
    log_rho = now.log_prob(batch.action) - policy.distribution(batch.behavior).log_prob(
        batch.action
    )
    for name, x in {
        "learner/entropy_nats": now.entropy(),
        "learner/value_mean": policy.value[:-1],
        "learner/mean_log_rho": log_rho,
        "learner/mean_kl_nats": policy.distribution(batch.behavior).kl(now),
    }.items():
        total, n = metrics[name]
        assert int(n) == count
        torch.testing.assert_close(total, x.detach()[batch.valid].sum())
        assert not total.requires_grad
    assert [float(x) for x in metrics["learner/valid_fraction"]] == [count, batch.valid.numel()]


def test_a_batch_without_a_valid_row_has_loss_0():
    policy, batch = table()
    batch.valid[:] = False
    for normalize in (False, True):
        loss, _ = computed_loss(A2C(normalize_advantage=normalize), policy, batch)
        assert loss.item() == 0.0


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_scaled_rewards_of_any_size_weigh_alike_against_entropy(scale):
    """With a policy whose values have moments: the same gradient for rewards, and moments, times any factor."""
    grads = {}
    for factor in (1.0, scale):
        policy = small_policy(value_norm=True)
        policy.observe_values(20.0 * factor, 300.0 * factor**2, 10.0)
        policy.refresh()
        assert policy.value_scale().item() == pytest.approx(factor * np.sqrt(26.0), rel=1e-5)
        batch = random_batch(policy.spec, 5, 6)
        batch.reward *= factor
        algorithm = A2C(value_norm=True, scale_rewards=True, entropy_cost=(0.3,))
        grads[factor] = gradient_of(policy, algorithm, batch, 10**6)
        plain = A2C(value_norm=True, entropy_cost=(0.3,))
        assert not torch.allclose(gradient_of(policy, plain, batch, 10**6), grads[factor])
    torch.testing.assert_close(grads[scale], grads[1.0], rtol=1e-3, atol=1e-5)
