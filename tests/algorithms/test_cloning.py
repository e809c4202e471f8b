"""CLEAR's cloning terms on replayed columns, whatever the algorithm."""

from __future__ import annotations

import pytest
import torch
from algorithm_checks import minibatches_of, state_for, table

from gossamer.algorithms.base import with_column_weights
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.vtrace import VTrace


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("algorithm", [VTrace, Laser, Impact])
def test_cloning_is_a_mean_over_replayed_columns(algorithm, reduction):
    """CLEAR: KL(mu || pi) and the squared distance to the recorded value (Rolnick et al. 2019)."""
    policy, batch = table(9, 6, scale=2.5)
    batch.replayed[2:] = True
    common = {"reduction": reduction, "num_minibatches": 1}
    with_terms = algorithm(policy_cloning_cost=0.7, value_cloning_cost=0.2, **common)
    kept = batch.valid.clone()
    if algorithm is Laser:
        common["max_kl_nats"] = 0.1
        with_terms = algorithm(policy_cloning_cost=0.7, value_cloning_cost=0.2, **common)
        kept &= with_terms.accepted(batch, policy.distribution(policy.params[:-1]))
        assert not kept.equal(batch.valid)
    more, clone = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
    for s, i in kept.nonzero().tolist():
        if batch.replayed[i]:
            log_mu = torch.log_softmax(batch.behavior[s, i].double(), -1)
            log_pi = torch.log_softmax(policy.params[s, i], -1)
            kl = (log_mu.exp() * (log_mu - log_pi)).sum()
            clone = clone + kl.detach()
            error = (batch.value[s, i] - policy.value[s, i]) / policy.scale
            more = more + 0.7 * kl + 0.2 * error**2
    rows = 1.0 if reduction == "sum" else float(batch.valid[:, batch.replayed].sum())
    losses, found = [], {}
    for which in (algorithm(**common), with_terms):
        state = state_for()
        which.init_state(policy, state)
        (minibatch,) = minibatches_of(which, policy, batch, state)
        loss, found = which.loss(policy, with_column_weights(minibatch, reduction), state)
        losses.append(loss / which.divisor(batch))
    torch.testing.assert_close(losses[1] - losses[0], more / rows, rtol=1e-6, atol=1e-7)
    tables = [policy.params, policy.value]
    got = torch.autograd.grad(losses[1] - losses[0], tables)
    want = torch.autograd.grad(more / rows, tables)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    for x in got:
        assert (x[:, ~batch.replayed] == 0.0).all()
    total, count = found["learner/policy_cloning_loss"]
    learnt = float(kept[:, batch.replayed].sum())
    assert float(total / count) == pytest.approx(float(clone) / learnt, rel=1e-6)


@pytest.mark.parametrize("algorithm", [VTrace, Laser, Impact])
def test_online_batches_name_the_same_metrics_and_learn_the_same(algorithm):
    """In lock-step the sums of learners are added up in the order of their names."""
    policy, batch = table(9, 6)
    losses, named = [], []
    for costs in ({}, {"policy_cloning_cost": 0.7}, {"value_cloning_cost": 0.2}):
        which = algorithm(num_minibatches=1, **costs)
        state = state_for()
        which.init_state(policy, state)
        (minibatch,) = minibatches_of(which, policy, batch, state)
        loss, online = which.loss(policy, minibatch, state)
        replayed = with_column_weights(minibatch, "mean")
        _, half = which.loss(policy, replayed, state)
        assert online.keys() == half.keys()
        cloning = {x for x in online if x.endswith("_cloning_loss")}
        assert all(float(online[x][0]) == float(online[x][1]) == 0.0 for x in cloning)
        losses.append(float(loss.detach()))
        named.append(cloning)
    assert losses[0] == losses[1] == losses[2]
    assert named == [set(), {"learner/policy_cloning_loss"}, {"learner/value_cloning_loss"}]
