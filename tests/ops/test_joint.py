"""Joint actions against enumeration, and against the distributions of their parts."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops.distributions import encode_action, make_distribution, split_action
from gossamer.ops.trust import has_implied_policy, implied_kl
from gossamer.spec import ActionSpec

WHOLE = ActionSpec(
    "joint",
    parts=(
        ("move", ActionSpec("categorical", (3,))),
        ("switches", ActionSpec("bernoulli", (2,))),
        ("arms/both", ActionSpec("multi_categorical", (2, 3))),
    ),
)
MIXED = ActionSpec(
    "joint",
    parts=(
        ("aim", ActionSpec("gaussian", (2,), (-1.0,) * 2, (1.0,) * 2)),
        ("move", ActionSpec("categorical", (4,))),
        ("turn", ActionSpec("gaussian", (1,), (-1.0,), (1.0,))),
    ),
)


def drawn(spec: ActionSpec, *lead: int, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn((*lead, spec.num_params), generator=gen).double()


def test_sizes() -> None:
    assert (WHOLE.shape, WHOLE.dtype, WHOLE.choices) == ((5,), "int64", (3, 2, 3))
    assert (WHOLE.num_params, WHOLE.num_outputs, WHOLE.noise_size) == (10, 10, 10)
    assert (MIXED.shape, MIXED.dtype, MIXED.choices) == ((4,), "float32", (4,))
    assert (MIXED.num_params, MIXED.num_outputs, MIXED.num_gaussian) == (10, 7, 3)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_log_prob_entropy_and_kl_by_enumeration(seed: int) -> None:
    now, other = (make_distribution(WHOLE, drawn(WHOLE, seed=seed + i)) for i in range(2))
    every = torch.tensor(list(itertools.product(range(3), range(2), range(2), range(2), range(3))))

    def probabilities(params: torch.Tensor) -> torch.Tensor:
        moves, bits, left, right = params.split([3, 2, 2, 3])
        one = torch.sigmoid(bits)
        found = []
        for a, b, c, d, e in every.tolist():
            p = moves.softmax(0)[a] * left.softmax(0)[d] * right.softmax(0)[e]
            found.append(p * (one[0] if b else 1 - one[0]) * (one[1] if c else 1 - one[1]))
        return torch.stack(found)

    p, q = probabilities(now.params), probabilities(other.params)
    torch.testing.assert_close(p.sum(), torch.ones_like(p.sum()))
    rows = make_distribution(WHOLE, now.params.expand(len(every), -1))
    torch.testing.assert_close(rows.log_prob(every), p.log())
    torch.testing.assert_close(now.entropy(), -(p * p.log()).sum())
    torch.testing.assert_close(now.kl(other), (p * (p / q).log()).sum())
    assert torch.equal(now.mode(), every[p.argmax()])
    rho = 1.3
    implied = torch.minimum(rho * q, p)
    implied = implied / implied.sum()
    wanted = (p * (p / implied).log()).sum()
    torch.testing.assert_close(implied_kl(now, other, rho).double(), wanted, rtol=1e-6, atol=1e-9)


def test_where_a_policy_is_implied() -> None:
    assert has_implied_policy(make_distribution(WHOLE, drawn(WHOLE)))
    assert not has_implied_policy(make_distribution(MIXED, drawn(MIXED)))
    for bits, there_is in ((12, True), (13, False)):
        spec = ActionSpec("joint", parts=(("x", ActionSpec("bernoulli", (bits,))),))
        assert has_implied_policy(make_distribution(spec, drawn(spec))) is there_is


def test_whole_and_real_numbers_side_by_side() -> None:
    params = drawn(MIXED, 6).requires_grad_()
    now, other = make_distribution(MIXED, params), make_distribution(MIXED, drawn(MIXED, 6, seed=1))
    action = now.sample(torch.Generator().manual_seed(3))
    assert action.dtype == torch.float32
    assert not action.requires_grad
    assert torch.equal(action[:, 2], action[:, 2].floor())
    aim, move, turn = split_action(MIXED, action)
    assert (aim.shape, move.dtype, turn.shape) == ((6, 2), torch.int64, (6, 1))
    mean, std = params[:, :2], params[:, 2:4].exp()
    wanted = torch.distributions.Normal(mean, std).log_prob(aim).sum(-1)
    wanted = wanted + torch.distributions.Categorical(logits=params[:, 4:8]).log_prob(move)
    last = torch.distributions.Normal(params[:, 8], params[:, 9].exp())
    wanted = wanted + last.log_prob(turn[:, 0])
    torch.testing.assert_close(now.log_prob(action), wanted)
    parts = zip(now.parts, other.parts, strict=True)
    torch.testing.assert_close(now.kl(other), sum(a.kl(b) for a, b in parts))
    now.log_prob(action).sum().backward()
    assert params.grad is not None
    assert (params.grad != 0).all()
    encoded = encode_action(MIXED, action)
    assert encoded.shape == (6, MIXED.encoded_size)
    assert torch.equal(encoded[:, :2], aim)
    assert torch.equal(encoded[:, 2:6].argmax(-1), move)


@pytest.mark.parametrize("spec", [WHOLE, MIXED])
def test_each_part_is_drawn_as_it_would_be_alone(spec: ActionSpec) -> None:
    params = drawn(spec).float().expand(20_000, -1)
    action = make_distribution(spec, params).sample(torch.Generator().manual_seed(1))
    pieces = params.split([part.num_params for part in spec.each], dim=-1)
    for part, x, one in zip(spec.each, pieces, split_action(spec, action), strict=True):
        alone = make_distribution(part, x).sample(torch.Generator().manual_seed(2))
        for power in (1, 2):
            moments = [y.double().pow(power).mean(0) for y in (one, alone)]
            torch.testing.assert_close(*moments, rtol=0.06, atol=0.03)
