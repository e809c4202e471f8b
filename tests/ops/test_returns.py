"""Every learning target against the papers' sums, and against numbers worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import slow_returns
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.ops.returns import (
    clip_reward,
    masked_sum,
    normalized,
    vtrace_returns,
)

SHAPES = given(
    t=st.integers(1, 8),
    b=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    trace_lambda=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
)


def experience(t, b, seed):
    """Columns with terminations, truncations, lost lives and the reset rows after ends."""
    rng = np.random.default_rng(seed)
    terminated, truncated, valid = (np.zeros((t, b), bool) for _ in range(3))
    over = rng.random(b) < 0.3
    for row in range(t):
        valid[row] = ~over
        kind = rng.random(b)
        terminated[row] = (kind < 0.2) & ~over
        truncated[row] = (kind > 0.8) & ~over
        lost_life = (kind < 0.05) & ~over
        over = (terminated[row] & ~lost_life) | truncated[row]
    reward = rng.normal(size=(t, b)) * valid
    arrays = {
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
        "value": rng.normal(size=(t + 1, b)),
        "log_rho": 1.5 * rng.normal(size=(t, b)),
    }
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    tensors["continues"] = tensors["valid"] & ~(tensors["terminated"] | tensors["truncated"])
    return SimpleNamespace(**tensors, num_columns=b)


def computed(x, discount, trace_lambda, *, log_rho=None, **clips):
    return vtrace_returns(
        value=x.value,
        reward=x.reward,
        discount=discount * (~x.terminated).double(),
        carry=trace_lambda * x.continues.double(),
        log_rho=log_rho,
        **clips,
    )


def assert_rows(x, got, expected):
    """Compare [T, B] with `expected(column, row)` on the rows that are learnt."""
    columns = slow_returns.columns_of(x, x.value, x.log_rho)
    for i, column in enumerate(columns):
        for s in range(len(column.reward)):
            if column.valid[s]:
                assert got[s, i].item() == pytest.approx(expected(column, s), abs=1e-9), (s, i)


@SHAPES
def test_on_policy_targets_are_n_step_returns(t, b, seed, discount, trace_lambda):
    x = experience(t, b, seed)
    returns = computed(x, discount, 1.0)
    assert_rows(x, returns.target, lambda c, s: slow_returns.n_step(c, s, discount))
    assert_rows(x, returns.advantage, lambda c, s: slow_returns.n_step(c, s, discount) - c.value[s])


@SHAPES
def test_on_policy_advantages_are_gae(t, b, seed, discount, trace_lambda):
    x = experience(t, b, seed)
    returns = computed(x, discount, trace_lambda)

    def expected(c, s):
        return slow_returns.gae(c, s, discount, trace_lambda)

    assert_rows(x, returns.advantage, expected)
    assert_rows(x, returns.target, lambda c, s: expected(c, s) + c.value[s])


@SHAPES
def test_log_rho_of_zero_is_on_policy(t, b, seed, discount, trace_lambda):
    x = experience(t, b, seed)
    on_policy = computed(x, discount, trace_lambda)
    zeros = computed(x, discount, trace_lambda, log_rho=torch.zeros_like(x.reward))
    torch.testing.assert_close(zeros[:2], on_policy[:2])
    assert on_policy.weight is None
    assert (zeros.weight == 1.0).all()


@pytest.mark.parametrize(
    "clips",
    [
        {},
        {"clip_rho": 0.5, "clip_c": 2.0, "clip_pg_rho": 1.5},
        {"clip_rho": 3.0, "clip_c": 0.7, "clip_pg_rho": 0.2},
        {"clip_rho": math.inf, "clip_c": math.inf, "clip_pg_rho": math.inf},
    ],
)
@SHAPES
def test_vtrace_is_equation_1(clips, t, b, seed, discount, trace_lambda):
    x = experience(t, b, seed)
    returns = computed(x, discount, trace_lambda, log_rho=x.log_rho, **clips)
    caps = {k: v for k, v in clips.items() if k != "clip_pg_rho"}

    def target(c, s):
        return slow_returns.vtrace_target(c, s, discount, trace_lambda, **caps)

    def advantage(c, s):
        return slow_returns.vtrace_advantage(c, s, discount, trace_lambda, **clips)

    assert_rows(x, returns.target, target)
    assert_rows(x, returns.advantage, advantage)


@SHAPES
def test_reset_rows_change_nothing(t, b, seed, discount, trace_lambda):
    x = experience(t, b, seed)
    before = computed(x, discount, trace_lambda, log_rho=x.log_rho)
    x.reward[~x.valid] = 1e6
    x.log_rho[~x.valid] = 40.0
    after = computed(x, discount, trace_lambda, log_rho=x.log_rho)
    assert torch.equal(before.target[x.valid], after.target[x.valid])
    assert torch.equal(before.advantage[x.valid], after.advantage[x.valid])


def row(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_three_steps_by_hand():
    returns = vtrace_returns(
        value=row(1.0, 2.0, 3.0, 4.0),
        reward=row(1.0, 0.0, 2.0),
        discount=row(0.5, 0.5, 0.5),
        carry=row(1.0, 1.0, 1.0),
        log_rho=None,
    )
    # 2 + 4 / 2 = 4; 0 + 4 / 2 = 2; 1 + 2 / 2 = 2
    torch.testing.assert_close(returns.target, row(2.0, 2.0, 4.0))
    torch.testing.assert_close(returns.advantage, row(1.0, 0.0, 1.0))


def test_vtrace_by_hand():
    returns = vtrace_returns(
        value=row(0.0, 1.0, 2.0),
        reward=row(1.0, 1.0),
        discount=row(0.5, 0.5),
        carry=row(1.0, 1.0),
        log_rho=row(4.0, 0.25).log(),
    )
    # td: 1 * (1 + 0.5 - 0) = 1.5 and 0.25 * (1 + 1 - 1) = 0.25; c_0 = 1
    torch.testing.assert_close(returns.target, row(1.5 + 0.5 * 0.25, 1.25))
    # advantages use v_1 = 1.25, then V(x_2) = 2
    torch.testing.assert_close(returns.advantage, row(1.0 + 0.5 * 1.25, 0.25))


def test_truncation_is_not_termination():
    """A time limit must bootstrap from the value of the last observation; an ending must not."""
    common = {"value": row(0.0, 10.0), "reward": row(0.0), "carry": row(0.0), "log_rho": row(0.0)}
    truncated = vtrace_returns(discount=row(0.9), **common)
    terminated = vtrace_returns(discount=row(0.0), **common)
    assert truncated.target.item() == pytest.approx(9.0)
    assert terminated.target.item() == 0.0


def test_targets_carry_no_gradient():
    value = row(1.0, 2.0).requires_grad_()
    returns = vtrace_returns(
        value=value, reward=row(1.0), discount=row(0.9), carry=row(1.0), log_rho=row(0.1)
    )
    assert not returns.target.requires_grad
    assert not returns.advantage.requires_grad


def test_masked_sums_ignore_what_is_not_kept():
    x = torch.tensor([1.0, math.nan, 3.0, math.inf], requires_grad=True)
    keep = torch.tensor([True, False, True, False])
    assert masked_sum(x, keep).item() == 4.0
    assert masked_sum(x, torch.zeros(4, dtype=torch.bool)).item() == 0.0
    masked_sum(x, keep).backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_reward_clips_by_hand():
    reward = torch.tensor([-7.0, -0.5, 0.0, 0.5, 7.0])
    expected = {
        "none": [-7.0, -0.5, 0.0, 0.5, 7.0],
        "clamp": [-1.0, -0.5, 0.0, 0.5, 1.0],
        "sign": [-1.0, -1.0, 0.0, 1.0, 1.0],
        "soft_asymmetric": [
            -1.5 * math.tanh(1.4),
            -1.5 * math.tanh(0.1),
            0.0,
            5.0 * math.tanh(0.1),
            5.0 * math.tanh(1.4),
        ],
    }
    for kind, values in expected.items():
        torch.testing.assert_close(clip_reward(reward, kind), torch.tensor(values))
    with pytest.raises(AssertionError, match="soft"):
        clip_reward(reward, "soft")


def test_rows_whose_weight_has_become_0_are_in_no_mean():
    """What their advantage was is not known; as zeros they would make the others look larger."""
    rng = torch.manual_seed(4)
    keep = torch.ones(5, 4, dtype=torch.bool)
    advantage, weight = (
        torch.randn(5, 4, generator=rng) + 3.0,
        torch.rand(5, 4, generator=rng) + 0.1,
    )
    gone = torch.rand(5, 4, generator=rng) < 0.3
    weight[gone] = 0.0
    found = normalized(weight * advantage, keep, weight)
    assert (found[gone] == 0.0).all()
    alone = normalized(advantage, keep & ~gone)
    torch.testing.assert_close(found[~gone], (weight * alone)[~gone])


def test_a_lone_advantage_stays_as_it_is():
    """Compared with itself it would be 0 for ever, and nothing would be learnt."""
    keep = torch.tensor([[False, True], [False, False]])
    advantage = torch.tensor([[9.0, -2.5], [float("nan"), 4.0]])
    assert normalized(advantage, keep)[keep].tolist() == [-2.5]
    weight = torch.tensor([[1.0, 0.5], [1.0, 1.0]])
    assert normalized(advantage, keep, weight)[keep].tolist() == [-2.5]
    two = torch.tensor([[True, True], [False, False]])
    assert normalized(advantage, two)[two].tolist() == pytest.approx([1.0, -1.0])
