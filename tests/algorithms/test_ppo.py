"""PPO's loss row by row, its clips, its passes, and what it does about the KL."""

from __future__ import annotations

import math
from dataclasses import replace

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
from core_fakes import make_learner, random_batch, small_policy, spec_of

from gossamer.algorithms.base import unroll
from gossamer.algorithms.ppo import PPO, as_rows

ONCE = {"passes": 1, "num_minibatches": 1}
CLIPS = [
    {"clip_ratio": 0.05},
    {"clip_ratio": 1.5, "trace_lambda": 1.0},
    {"clip_value": 0.2},
    {"clip_value": 1.0, "normalize_advantage": False},
]


@pytest.mark.parametrize("settings", [*COMMON, *CLIPS])
def test_loss_and_gradient_row_by_row(settings):
    assert_equals_slow_loss(PPO(**ONCE, **settings))


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.5, 1.0, False),  # already likelier than the clip rewards
        (1.5, -1.0, True),
        (0.5, 1.0, True),
        (0.5, -1.0, False),
        (1.1, 1.0, True),
        (0.9, -1.0, True),
    ],
)
def test_the_surrogate_stops_rewarding_only_outward_moves(ratio, advantage, moves):
    policy, batch = table(t=1, b=1)
    batch.valid[:], batch.terminated[:], batch.truncated[:] = True, True, False
    batch.behavior.copy_(policy.params[:-1].detach())
    with torch.no_grad():
        probs = policy.params[0, 0].softmax(0)
        a = batch.action[0, 0]
        # behavior gives the action a probability of p / ratio
        p = probs[a] / ratio
        rest = probs * (1.0 - p) / (1.0 - probs[a])
        batch.behavior[0, 0] = torch.where(torch.arange(3) == a, p, rest).log()
    batch.value.zero_()
    batch.reward.fill_(advantage)
    algorithm = PPO(**ONCE, normalize_advantage=False, entropy_cost=(0.0,), value_cost=0.0)
    loss, metrics = computed_loss(algorithm, policy, batch)
    edge = min(max(ratio, 0.8), 1.2)
    assert loss.item() == pytest.approx(-min(ratio * advantage, edge * advantage))
    (grad,) = torch.autograd.grad(loss, [policy.params])
    assert (grad.abs().max().item() > 1e-3) == moves
    assert float(metrics["learner/clip_fraction"][0]) == float(not 0.8 <= ratio <= 1.2)


def test_every_pass_deals_every_column_once():
    policy, batch = table(b=6)
    algorithm = PPO(passes=3, num_minibatches=2, deal="columns")
    columns = column_sets(minibatches_of(algorithm, policy, batch))
    passes = [columns[i] + columns[i + 1] for i in (0, 2, 4)]
    assert [sorted(x) for x in passes] == [list(range(6))] * 3
    assert len({tuple(x) for x in passes}) > 1


@pytest.mark.parametrize("network", [{}, {"last_action": True, "last_reward": True}])
def test_rows_are_dealt_one_by_one_and_learnt_as_in_their_columns(network):
    spec = spec_of()
    policy = small_policy(spec, **network)
    batch = random_batch(spec, 5, 4, seed=3)
    batch.version.copy_(torch.arange(4))
    algorithm = PPO(passes=2, num_minibatches=3, normalize_advantage=False, reduction="sum")
    whole = replace(algorithm, **ONCE)
    (columns,) = minibatches_of(whole, policy, batch)
    expected = gradient(whole, policy, columns)
    for deal in ("rows", "columns"):
        parts = list(minibatches_of(replace(algorithm, deal=deal), policy, batch))
        for i in (0, 3):
            found = [gradient(algorithm, policy, part) for part in parts[i : i + 3]]
            for x, y in zip(expected, map(sum, zip(*found, strict=True)), strict=True):
                torch.testing.assert_close(x, y)
        sizes = sorted(part.reward.numel() for part in parts[:3])
        assert sizes == ([6, 7, 7] if deal == "rows" else [5, 5, 10])
        if deal == "rows":  # each from several columns, and not alike twice
            assert all(len(set(part.version.tolist())) > 1 for part in parts)
            assert not torch.equal(parts[0].reward, parts[3].reward)


@pytest.mark.parametrize(
    ("obs_shape", "network", "rows"),
    [((4,), {}, True), ((4,), {"core": "lstm"}, False), ((4, 84, 84), {}, False)],
)
def test_what_is_dealt_if_nothing_is_said(obs_shape, network, rows):
    spec = spec_of(obs_shape=obs_shape)
    policy = small_policy(spec, **network)
    batch = random_batch(spec, 5, 4, seed=3, core_units=policy.core_units)
    (minibatch, *_) = minibatches_of(PPO(num_minibatches=2), policy, batch)
    assert tuple(minibatch.reward.shape) == ((1, 10) if rows else (5, 2))


def test_rows_are_dealt_where_columns_are_fewer_than_minibatches():
    spec = spec_of(obs_shape=(4, 84, 84))
    batch = random_batch(spec, 6, 2, seed=3)
    parts = list(minibatches_of(PPO(num_minibatches=3, passes=1), small_policy(spec), batch))
    assert [tuple(part.reward.shape) for part in parts] == [(1, 4)] * 3


def gradient(algorithm, policy, batch):
    loss, _ = algorithm.loss(policy, batch, state_for())
    return torch.autograd.grad(
        loss, [p for p in policy.parameters() if p.requires_grad], materialize_grads=True
    )


def test_a_batch_as_rows_shares_its_memory():
    batch = random_batch(spec_of(), 5, 4, seed=3)
    rows = as_rows(batch)
    assert rows.obs.data_ptr() == batch.obs.data_ptr()
    for t, b in ((0, 0), (3, 2), (4, 3)):
        row = rows.columns(t * 4 + b, t * 4 + b + 1)
        assert torch.equal(row.obs[0, 0], batch.obs[t, b])
        assert row.version.item() == batch.version[b]
        last = batch.last_action if t == 0 else batch.action[t - 1]
        assert torch.equal(row.last_action[0], last[b])
        assert torch.equal(row.behavior[0, 0], batch.behavior[t, b])


def test_targets_are_computed_once_and_normalised_over_each_part():
    policy, batch = table(b=6)
    (whole,) = minibatches_of(PPO(**ONCE, normalize_advantage=False), policy, batch)
    algorithm = PPO(passes=2, num_minibatches=3, deal="columns")
    for minibatch in minibatches_of(algorithm, policy, batch):
        (held,) = column_sets([minibatch])
        torch.testing.assert_close(minibatch.target, whole.target[:, held])
        kept = minibatch.advantage[minibatch.valid]
        raw = whole.advantage[:, held][minibatch.valid]
        expected = (raw - raw.mean()) / raw.std(correction=0)
        torch.testing.assert_close(kept, expected, rtol=1e-6, atol=1e-6)
        with torch.no_grad():
            policy.params.mul_(-1.0)
            policy.value.add_(5.0)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_last_value_is_the_policys(core):
    spec = spec_of()
    policy = small_policy(spec, core=core, core_size=4, last_reward=True, last_action=True)
    batch = random_batch(spec, 5, 3, core_units=policy.core_units)
    batch.terminated[:], batch.truncated[:], batch.valid[:] = False, False, True
    batch.reward.zero_()
    algorithm = PPO(**ONCE, trace_lambda=1.0, discount=1.0, normalize_advantage=False)
    (minibatch,) = minibatches_of(algorithm, policy, batch)
    last = unroll(policy, batch, slice(0, 6)).value[-1].detach()
    torch.testing.assert_close(minibatch.target, last.expand(5, 3))


def test_rows_of_a_recurrent_policy_are_unrolled_from_the_first():
    """What it holds at another row is not known."""
    for core in ("none", "gru"):
        policy = small_policy(spec_of(), core=core, core_size=4)
        batch = random_batch(policy.spec, 5, 3, core_units=policy.core_units)
        if core == "none":
            whole = unroll(policy, batch, slice(0, 6)).value
            torch.testing.assert_close(unroll(policy, batch, slice(2, 6)).value, whole[2:])
            continue
        with pytest.raises(
            ValueError, match=r"unroll begins at row 2; with recurrent state: slice\(0, N\)"
        ):
            unroll(policy, batch, slice(2, 6))


def test_too_large_a_kl_ends_the_batch():
    algorithm = PPO(passes=4, num_minibatches=2, max_kl_nats=0.1)
    for kl, ends in [(0.05, False), (0.1, False), (0.11, True)]:
        means = {"learner/mean_kl_nats": torch.tensor(kl, dtype=torch.float64)}
        assert bool(algorithm.ends(means)) == ends
    assert PPO().ends({}) is None


@pytest.mark.parametrize(("max_kl_nats", "updates"), [(0.0, 20), (1e-6, 2), (1e3, 20)])
def test_the_learner_stops_early(max_kl_nats, updates):
    spec = spec_of()
    policy = small_policy(spec)
    batch = random_batch(spec, 5, 4)
    with torch.no_grad():
        out = unroll(policy, batch, slice(0, 5))
    batch.behavior.copy_(out.action_params)
    learner = make_learner(
        policy, PPO(passes=20, num_minibatches=1, max_kl_nats=max_kl_nats), batch
    )
    learner.learn_version()
    # the first minibatch is learnt at a KL of 0; the second finds the policy moved
    assert learner.update == updates
    assert learner.version == 1


def test_the_learning_rate_follows_the_kl():
    algorithm, state = PPO(target_kl_nats=0.1), state_for()
    for kl, scale in [(0.21, 1 / 1.5), (0.15, 1 / 1.5), (0.06, 1 / 1.5), (0.04, 1.0), (0.0, 1.5)]:
        algorithm.after_version(state, {"learner/mean_kl_nats": kl})
        assert state.lr_scale == pytest.approx(scale)
    for kl, bound in [(1.0, 0.01), (0.0, 100.0)]:
        for _ in range(50):
            algorithm.after_version(state, {"learner/mean_kl_nats": kl})
        assert math.isclose(state.lr_scale, bound)
    off = state_for()
    PPO().after_version(off, {"learner/mean_kl_nats": 9.0})
    assert off.lr_scale == 1.0


def test_a_minibatch_without_rows_leaves_the_rate_as_it_is():
    algorithm, state = PPO(target_kl_nats=0.1), state_for()
    algorithm.after_version(state, {"learner/loss": 1.0})
    assert state.lr_scale == 1.0
