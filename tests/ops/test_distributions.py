"""Action distributions against enumeration of every action and against torch.distributions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as td

from gossamer.ops.distributions import encode_action, make_distribution
from gossamer.ops.trust import implied_kl
from gossamer.policies.actor_critic import MASKED
from gossamer.spec import ActionSpec

SPECS = {
    "categorical": ActionSpec("categorical", (5,)),
    "multi_categorical": ActionSpec("multi_categorical", (2, 3, 4)),
    "bernoulli": ActionSpec("bernoulli", (3,)),
    "gaussian": ActionSpec("gaussian", (3,), (-1.0,) * 3, (1.0,) * 3),
}
DISCRETE = sorted(set(SPECS) - {"gaussian"})


def drawn_params(spec, *lead, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn((*lead, spec.num_params), generator=gen).double()


def every_action(spec):
    """All actions [K, *action_shape] of a discrete space."""
    if spec.kind == "categorical":
        return torch.arange(spec.sizes[0])
    sizes = spec.sizes if spec.kind == "multi_categorical" else (2,) * spec.sizes[0]
    return torch.tensor(list(itertools.product(*(range(n) for n in sizes))))


def joint_probs(spec, params):
    """Probability of every action, a product of plain softmaxes and sigmoids; params [P]."""
    probs = []
    for action in (
        every_action(spec).reshape(-1, max(len(spec.shape) and spec.shape[0], 1)).tolist()
    ):
        p = 1.0
        if spec.kind == "bernoulli":
            for x, a in zip(params.tolist(), action, strict=True):
                one = 1.0 / (1.0 + math.exp(-x))
                p *= one if a else 1.0 - one
        else:
            for logits, a in zip(params.split(spec.sizes), action, strict=True):
                weights = [math.exp(x) for x in logits.tolist()]
                p *= weights[a] / sum(weights)
        probs.append(p)
    return torch.tensor(probs, dtype=torch.float64)


@pytest.mark.parametrize("kind", DISCRETE)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_log_prob_entropy_and_kl_by_enumeration(kind, seed):
    spec = SPECS[kind]
    params, other = drawn_params(spec, seed=seed), drawn_params(spec, seed=seed + 1)
    p, q = joint_probs(spec, params), joint_probs(spec, other)
    assert p.sum().item() == pytest.approx(1.0)
    actions = every_action(spec)
    now = make_distribution(spec, params)
    many = make_distribution(spec, params.expand(len(actions), -1))
    torch.testing.assert_close(many.log_prob(actions), p.log())
    torch.testing.assert_close(now.entropy(), -(p * p.log()).sum())
    torch.testing.assert_close(now.kl(make_distribution(spec, other)), (p * (p / q).log()).sum())
    assert now.kl(now).item() == pytest.approx(0.0, abs=1e-12)
    assert torch.equal(now.mode(), actions[p.argmax()])


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_gaussian_is_torch_normal(seed):
    spec = SPECS["gaussian"]
    params, other = drawn_params(spec, 4, seed=seed), drawn_params(spec, 4, seed=seed + 1)
    now = make_distribution(spec, params)

    def normal(x):
        mean, log_std = x.chunk(2, dim=-1)
        return td.Independent(td.Normal(mean, log_std.exp()), 1)

    action = normal(other).sample()
    torch.testing.assert_close(now.log_prob(action), normal(params).log_prob(action))
    torch.testing.assert_close(now.entropy(), normal(params).entropy())
    expected = td.kl_divergence(normal(params), normal(other))
    torch.testing.assert_close(now.kl(make_distribution(spec, other)), expected)
    assert torch.equal(now.mode(), params[..., :3])


@pytest.mark.parametrize("kind", DISCRETE)
def test_sampling_frequencies(kind):
    spec = SPECS[kind]
    params = drawn_params(spec, seed=5)
    p = joint_probs(spec, params)
    n = 40_000
    gen = torch.Generator().manual_seed(1)
    sample = make_distribution(spec, params.float().expand(n, -1)).sample(gen)
    actions = every_action(spec)
    assert sample.dtype == torch.int64
    assert sample.shape == (n, *spec.shape)
    same = (sample[:, None] == actions[None]).reshape(n, len(actions), -1).all(-1)
    frequency = same.double().mean(0)
    error = (frequency - p).abs() / (p * (1.0 - p) / n).sqrt()
    assert error.max() < 4.5, "in standard errors"


def test_gaussian_sampling_moments():
    params = torch.tensor([1.0, -2.0, 0.0, math.log(0.5), math.log(3.0), 0.0])
    gen = torch.Generator().manual_seed(1)
    n = 40_000
    sample = make_distribution(SPECS["gaussian"], params.expand(n, -1)).sample(gen)
    mean, std = params[:3], params[3:].exp()
    assert ((sample.mean(0) - mean).abs() < 4.5 * std / n**0.5).all()
    assert ((sample.std(0) / std - 1.0).abs() < 0.03).all()
    correlation = torch.corrcoef(sample.T)
    assert (correlation - torch.eye(3)).abs().max() < 0.03


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_sampling_follows_its_generator(kind):
    now = make_distribution(SPECS[kind], drawn_params(SPECS[kind], 6, 4).float())
    one, two, three = (now.sample(torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_leading_axes_and_gradients(kind):
    spec = SPECS[kind]
    params = drawn_params(spec, 3, 2).requires_grad_()
    now = make_distribution(spec, params)
    action = now.sample()
    assert not action.requires_grad
    assert action.shape == (3, 2, *spec.shape)
    for x in (now.log_prob(action), now.entropy(), now.kl(make_distribution(spec, params + 0.1))):
        assert x.shape == (3, 2)

    def total(x):
        now = make_distribution(spec, x)
        return now.log_prob(action) + 2.0 * now.entropy() + now.kl(make_distribution(spec, 0.0 * x))

    assert torch.autograd.gradcheck(total, (params,))


@pytest.mark.parametrize("low", [-math.inf, -1e30, -1e4, -200.0])
def test_impossible_actions(low):
    spec = ActionSpec("categorical", (3,))
    now = make_distribution(spec, torch.tensor([0.0, low, 0.0]))
    assert now.entropy().item() == pytest.approx(math.log(2.0))
    assert now.log_prob(torch.tensor(0)).item() == pytest.approx(-math.log(2.0))
    assert now.kl(now).item() == 0.0
    uniform = make_distribution(spec, torch.zeros(3))
    assert now.kl(uniform).item() == pytest.approx(math.log(1.5))
    assert uniform.kl(now) > 50.0
    many = make_distribution(spec, torch.tensor([0.0, low, 0.0]).expand(2000, -1))
    assert sorted(set(many.sample(torch.Generator().manual_seed(0)).tolist())) == [0, 2]


@pytest.mark.parametrize("high", [50.0, 1e4, 1e30])
def test_certain_bits(high):
    spec = ActionSpec("bernoulli", (2,))
    now = make_distribution(spec, torch.tensor([high, -high]))
    assert now.sample().tolist() == [1, 0]
    assert now.mode().tolist() == [1, 0]
    assert now.log_prob(torch.tensor([1, 0])).item() == pytest.approx(0.0, abs=1e-12)
    assert now.entropy().item() == pytest.approx(0.0, abs=1e-6)
    assert now.kl(now).item() == 0.0


def test_encoded_actions():
    cases = {
        "categorical": (torch.tensor([4, 0]), [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]),
        "multi_categorical": (torch.tensor([[1, 2, 0]]), [[0, 1, 0, 0, 1, 1, 0, 0, 0]]),
        "bernoulli": (torch.tensor([[1, 0, 1]]), [[1, 0, 1]]),
        "gaussian": (torch.tensor([[0.5, -2.0, 0.0]]), [[0.5, -2.0, 0.0]]),
    }
    for kind, (action, expected) in cases.items():
        encoded = encode_action(SPECS[kind], action)
        assert encoded.dtype == torch.float32
        assert encoded.tolist() == expected
        assert encoded.shape[-1] == SPECS[kind].encoded_size


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([(5,), (9,), (2, 3, 4), (3, 12)]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_masked_logits_are_the_distribution_of_what_is_allowed(sizes, seed, dtype, told):
    """Each part's allowed logits alone make the same probabilities, entropies, divergences and gradients."""
    gen = torch.Generator().manual_seed(seed)
    kind = "categorical" if len(sizes) == 1 else "multi_categorical"
    whole_spec = ActionSpec(kind, sizes)
    allowed = torch.rand(sum(sizes), generator=gen) < 0.6
    first = 0
    for size in sizes:
        allowed[first + int(torch.randint(size, (), generator=gen))] = True
        first += size
    now, acted = (3.0 * torch.randn((sum(sizes),), generator=gen, dtype=dtype) for _ in range(2))
    masked = [x.clone().requires_grad_() for x in (now, acted)]
    few = [x[allowed].clone().requires_grad_() for x in (now, acted)]
    kept = tuple(int(part.sum()) for part in allowed.split(list(sizes)))
    chosen = [int(torch.randint(n, (), generator=gen)) for n in kept]
    of_all = [
        int(part.nonzero()[i]) for part, i in zip(allowed.split(list(sizes)), chosen, strict=True)
    ]
    results = []
    for logits, spec, action in (
        ([torch.where(allowed, x, MASKED) for x in masked], whole_spec, of_all),
        (few, ActionSpec(kind, kept), chosen),
    ):
        pi, mu = (make_distribution(spec, x, masked=told) for x in logits)
        taken = torch.tensor(action[0] if kind == "categorical" else action)
        results.append(
            torch.stack(
                [pi.log_prob(taken), pi.entropy(), pi.kl(mu), mu.kl(pi), implied_kl(pi, mu, 1.5)]
            )
        )
    torch.testing.assert_close(*results, rtol=2e-5, atol=2e-6)
    for result in results:
        result.sum().backward()
    for whole, part in zip(masked, few, strict=True):
        torch.testing.assert_close(whole.grad[allowed], part.grad, rtol=2e-4, atol=2e-5)
        assert not whole.grad[~allowed].any()
    params = torch.where(allowed, now, MASKED).expand(300, -1)
    samples = make_distribution(whole_spec, params, masked=told).sample(gen)
    drawn = encode_action(whole_spec, samples).bool().any(0)
    assert not (drawn & ~allowed).any()


@pytest.mark.parametrize("told", [False, True])
def test_no_gradient_comes_from_a_forbidden_logit_that_is_nan(told):
    logits = torch.tensor([0.3, float("nan"), -1.0], requires_grad=True)
    allowed = torch.tensor([True, False, True])
    params = torch.where(allowed, logits, MASKED)
    held = make_distribution(ActionSpec("categorical", (3,)), params, masked=told)
    (held.log_prob(torch.tensor(0)) + held.entropy()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1] == 0.0
