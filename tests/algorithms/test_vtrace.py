"""V-trace's loss row by row, its masks, its passes, and what it becomes on-policy."""

from __future__ import annotations

import pytest
import torch
from algorithm_checks import (
    COMMON,
    assert_equals_slow_loss,
    column_sets,
    computed_loss,
    minibatches_of,
    state_for,
    table,
)

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.vtrace import VTrace
from gossamer.ops.returns import Returns

CLIPS = [
    {"clip_rho": 0.5},
    {"clip_c": 0.3, "clip_rho": 4.0},
    {"clip_pg_rho": 0.2, "trace_lambda": 0.5},
    {"clip_rho": 1e9, "clip_c": 1e9, "clip_pg_rho": 1e9, "normalize_advantage": True},
]


@pytest.mark.parametrize("settings", [*COMMON, *CLIPS])
def test_loss_and_gradient_row_by_row(settings):
    assert_equals_slow_loss(VTrace(**settings))


@pytest.mark.parametrize("settings", COMMON)
def test_on_policy_it_is_a2c(settings):
    policy, batch = table()
    batch.behavior.copy_(policy.params[:-1].detach())
    tables = [policy.params, policy.value]
    one, _ = computed_loss(VTrace(**settings), policy, batch)
    other, _ = computed_loss(A2C(**settings), policy, batch)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(torch.autograd.grad(one, tables), torch.autograd.grad(other, tables))


def test_off_policy_it_is_not_a2c():
    policy, batch = table()
    one, _ = computed_loss(VTrace(), policy, batch)
    other, _ = computed_loss(A2C(), policy, batch)
    assert abs(one.item() - other.item()) > 1e-2


def test_every_pass_deals_every_column_once():
    policy, batch = table(b=6)
    algorithm = VTrace(passes=3, num_minibatches=2)
    columns = column_sets(minibatches_of(algorithm, policy, batch))
    assert [len(x) for x in columns] == [3] * 6
    passes = [columns[i] + columns[i + 1] for i in (0, 2, 4)]
    assert [sorted(x) for x in passes] == [list(range(6))] * 3
    assert len({tuple(x) for x in passes}) > 1, "dealt anew every pass"
    again = column_sets(minibatches_of(algorithm, policy, batch))
    assert columns == again, "from the state's stream"


@pytest.mark.parametrize("normalize", [False, True])
def test_importance_weights_are_recomputed_every_pass(normalize):
    policy, batch = table()
    algorithm = VTrace(passes=2, normalize_advantage=normalize)
    minibatches = minibatches_of(algorithm, policy, batch)
    next(minibatches)
    with torch.no_grad():
        policy.params.mul_(-1.0)
        policy.value.mul_(-1.0)
    second, _ = algorithm.loss(policy, next(minibatches), state_for())
    fresh, _ = computed_loss(VTrace(normalize_advantage=normalize), policy, batch)
    torch.testing.assert_close(second / algorithm.divisor(batch), fresh)


def test_advantages_are_normalised_over_each_part():
    policy, batch = table(b=6)
    algorithm = VTrace(passes=2, num_minibatches=2, normalize_advantage=True)
    for minibatch in minibatches_of(algorithm, policy, batch):
        weight = minibatch.advantage_weight[minibatch.valid]
        assert 0.0 < float(weight.min()) < 0.9
        kept = minibatch.advantage[minibatch.valid] / weight
        assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
        assert kept.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("algorithm", [VTrace, Laser, Impact])
def test_what_the_policy_has_left_behind_is_not_pushed_further(algorithm):
    """A row of importance weight 0 has no policy gradient, though others' mean is taken off."""
    policy, batch = table(b=6)
    settings = {"normalize_advantage": True, "num_minibatches": 1, "entropy_cost": (0.0,)}
    if algorithm is Laser:
        settings["max_kl_nats"] = 1e6
    algorithm = algorithm(**settings)
    left = batch.valid & (torch.rand(batch.valid.shape, generator=torch.manual_seed(0)) < 0.3)
    with torch.no_grad():
        for s, i in left.nonzero().tolist():
            policy.params[s, i] = 0.0
            policy.params[s, i, batch.action[s, i]] = -60.0
    state = state_for()
    algorithm.init_state(policy, state)
    (minibatch,) = minibatches_of(algorithm, policy, batch, state)
    loss, _ = algorithm.loss(policy, minibatch, state)
    (gradient,) = torch.autograd.grad(loss, [policy.params])
    assert gradient[:-1][left].abs().max() < 1e-6
    assert gradient[:-1][batch.valid & ~left].abs().max() > 1e-2


class Plain(VTrace):
    """Returns of its own, whose advantages all weigh the same; the last row of every column is not learnt."""

    def returns(self, batch, value, log_prob, now):
        found, _ = super().returns(batch, value, log_prob, now)
        keep = batch.valid.clone()
        keep[-1] = False
        return Returns(found.target, found.advantage), keep


def test_returns_of_a_derived_class_are_normalised_over_what_it_learns():
    """Without a weight all weigh 1, and rows that it leaves out are left out."""
    policy, batch = table()
    (plain,) = minibatches_of(Plain(), policy, batch)
    (normalized,) = minibatches_of(Plain(normalize_advantage=True), policy, batch)
    assert plain.keep is None, "the loss asks for them"
    assert normalized.advantage_weight is None
    keep = batch.valid.clone()
    keep[-1] = False
    assert torch.equal(normalized.kept, keep)
    rows = normalized.advantage[keep]
    torch.testing.assert_close(rows.mean(), torch.zeros_like(rows.mean()), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.std(), torch.ones_like(rows.mean()), atol=0.1, rtol=0)
    _, metrics = computed_loss(Plain(normalize_advantage=True), policy, batch)
    left_out, valid = metrics["learner/rejected_fraction"]
    assert left_out / valid == (batch.valid.sum() - keep.sum()) / batch.valid.sum()
