"""The policy: every torso, core and head; starts, past actions, normalisation and precision."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from core_fakes import CONTINUOUS, DISCRETE, JOINT, small_policy, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import ConfigError
from gossamer.policies.actor_critic import INITIAL_VARIANCE, MASKED, ActorCritic
from gossamer.policies.core import Core
from gossamer.policies.layers import linear
from gossamer.policies.settings import PolicyConfig
from gossamer.spec import ActionSpec, Leaf

KINDS = {
    "categorical": DISCRETE,
    "multi_categorical": ActionSpec("multi_categorical", (2, 3)),
    "bernoulli": ActionSpec("bernoulli", (4,)),
    "gaussian": CONTINUOUS,
    "joint": JOINT,
}
PIXELS = (4, 36, 44)


def rows(spec, r, b, *, seed=0, core_units=0):
    """Inputs of a policy: observations, starts, core state, last actions and rewards."""
    gen = torch.Generator().manual_seed(seed)
    shape = (r, b, *spec.obs_shape)
    if spec.leaf.kind == "pixels":
        obs = torch.randint(0, 256, shape, generator=gen, dtype=torch.uint8)
    else:
        obs = torch.randn(shape, generator=gen)
    starts = torch.rand((r, b), generator=gen) < 0.3
    action = torch.randint(0, 2, (r, b, *spec.action.shape), generator=gen)
    action = action.to(getattr(torch, spec.action.dtype))
    core_state = torch.randn((core_units, b), generator=gen)
    return [obs, starts, core_state, action, 3.0 * torch.randn((r, b), generator=gen)]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    ("shape", "torso"),
    [
        ((5,), "mlp"),
        (PIXELS, "mlp"),
        (PIXELS, "nature"),
        (PIXELS, "impala"),
        (PIXELS, "elite"),
    ],
)
def test_every_torso_with_every_head(kind, shape, torso):
    spec = spec_of(KINDS[kind], shape)
    policy = small_policy(spec, torso=torso, fc_size=16)
    out = policy(*rows(spec, 2, 3))
    assert out.action_params.shape == (2, 3, spec.action.num_params)
    assert out.value.shape == (2, 3)
    assert out.features.shape[:2] == (2, 3)
    assert out.core_state.shape == (0, 3)
    now = policy.distribution(out.action_params)
    action = now.sample()
    assert action.shape == (2, 3, *spec.action.shape)
    (now.log_prob(action).sum() + now.entropy().sum() + out.value.sum()).backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None and p.numel()]
    assert not without
    assert len({round(x, 6) for x in out.value.flatten().tolist()}) == 6, "rows are told apart"


def test_raw_vectors_reach_an_unnormalised_network():
    policy = small_policy(normalize_obs=False)
    x = torch.randn(3, 2, 4)
    assert torch.equal(policy.normalize(x), x)


def test_gaussian_params_are_means_and_the_log_std():
    spec = spec_of(CONTINUOUS)
    policy = small_policy(spec, init_log_std=-0.7)
    params = policy(*rows(spec, 2, 3)).action_params
    assert torch.equal(params[..., 2:], torch.full((2, 3, 2), -0.7))
    assert params[0, 0, 0] != params[1, 0, 0]


def test_automatic_initial_noise_has_one_size_for_any_number_of_components():
    for components in (1, 3, 17):
        spec = spec_of(ActionSpec("gaussian", (components,)))
        policy = small_policy(spec, init_log_std="auto")
        params = policy(*rows(spec, 1, 1)).action_params.detach()
        deviation = policy.distribution(params).log_std.exp()
        assert deviation.shape == (1, 1, components)
        assert deviation.square().sum().item() == pytest.approx(3.0)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
def test_one_call_equals_row_by_row_with_state_cleared_at_starts(core, layers):
    spec = spec_of()
    past = {"last_action": True, "last_reward": True}
    heads = (6,) if layers == 2 else ()
    policy = small_policy(
        spec, core=core, core_size=5, core_layers=layers, head_sizes=heads, **past
    )
    parts = {"none": 0, "gru": 1, "lstm": 2}[core]
    assert policy.core_units == parts * layers * 5
    assert policy.initial_state(3).tolist() == [[0.0] * 3] * policy.core_units
    obs, starts, state, action, reward = rows(spec, 9, 3, core_units=policy.core_units)
    assert starts.any()
    whole = policy(obs, starts, state, action, reward)
    for i in range(3):
        now = state[:, i : i + 1].clone()
        for t in range(9):
            past_action, past_reward = action[t, i].clone(), reward[t, i].clone()
            if starts[t, i]:
                now = policy.initial_state(1)  # literally nothing of before
            out = policy(
                obs[None, None, t, i],
                starts[None, None, t, i],
                now,
                past_action[None, None],
                past_reward[None, None],
            )
            now = out.core_state
            torch.testing.assert_close(out.action_params[0, 0], whole.action_params[t, i])
            torch.testing.assert_close(out.value[0, 0], whole.value[t, i])
        torch.testing.assert_close(now[:, 0], whole.core_state[:, i])


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_layers_of_the_heads_see_the_core_and_what_it_sees(core):
    spec = spec_of()
    policy = small_policy(spec, core=core, core_size=5, head_sizes=(7, 6), last_reward=True)
    obs, starts, state, _, reward = rows(spec, 4, 3, core_units=policy.core_units)
    out = policy(obs, starts, state, None, reward)
    past = (reward.clamp(-1.0, 1.0) * ~starts).flatten()
    seen = torch.cat([policy.torso(obs.flatten(0, 1)), past[:, None]], dim=1)
    x = torch.cat([policy.core(seen, starts, state)[0], seen], dim=1)
    layers = list(policy.decoder.parameters())
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = torch.tanh(x @ weight.T + bias)
    torch.testing.assert_close(out.features.flatten(0, 1), x)
    assert policy.feature_size == x.shape[1] == 6
    value = x @ policy.value_head.weight.T + policy.value_head.bias
    torch.testing.assert_close(out.value.flatten(), value.flatten())
    assert {name.split(".")[0] for name, _ in policy.named_parameters()} >= {"core", "decoder"}


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_start_forgets_exactly(core):
    spec = spec_of()
    policy = small_policy(spec, core=core, core_size=5)
    obs, starts, state, *_ = rows(spec, 6, 2, core_units=policy.core_units)
    starts[:] = False
    starts[3, 0] = True
    one = policy(obs, starts, state)
    changed = obs.clone()
    changed[:3] += 1.0
    other = policy(changed, starts, state + 1.0)
    assert torch.equal(one.value[3:, 0], other.value[3:, 0])
    assert (one.value[3:, 1] != other.value[3:, 1]).all(), "the other column remembers"


@pytest.mark.parametrize("bias", [0.0, 4.0, -1.0])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_new_cell_keeps_the_share_that_the_forget_bias_says(kind, bias):
    core = Core(PolicyConfig(core=kind, core_size=5, core_layers=2, forget_bias=bias), 3)
    with torch.no_grad():
        for name, x in core.named_parameters():
            if "weight" in name:
                x.zero_()
    state = torch.rand(core.state_size, 1, generator=torch.Generator().manual_seed(1))
    _, after = core(torch.ones(1, 3), torch.zeros(1, 1, dtype=torch.bool), state)
    cells = slice(10, 20) if kind == "lstm" else slice(10)  # an LSTM's outputs come first
    share = 1.0 / (1.0 + math.exp(-bias))
    torch.testing.assert_close(after[cells], share * state[cells])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_past_action_and_reward_count_only_inside_an_episode(kind):
    spec = spec_of(KINDS[kind])
    policy = small_policy(spec, last_action=True, last_reward=True, separate_value=False)
    obs, starts, state, action, reward = rows(spec, 2, 2)
    starts[:] = torch.tensor([[True, False], [False, True]])
    first = policy(obs, starts, state, action, reward).value
    for changed in [(1 - action, reward), (action, -reward)]:
        second = policy(obs, starts, state, *changed).value
        assert torch.equal(first == second, starts)
    # rewards beyond +-1 say no more than +-1
    big = policy(obs, starts, state, action, reward.sign() * 50.0).value
    torch.testing.assert_close(big, policy(obs, starts, state, action, reward.sign()).value)


def test_pixels_are_divided_by_255_or_normalised_by_position():
    spec = spec_of(obs_shape=PIXELS)
    obs = rows(spec, 3, 4)[0]
    obs[..., :10] = 7  # still
    raw = small_policy(spec, normalize_obs=False)
    torch.testing.assert_close(raw.normalize(obs), obs.float() / 255.0)
    policy = small_policy(spec, normalize_obs=True, pixel_std_floor=12.0)
    torch.testing.assert_close(policy.normalize(obs), obs.float() / 255.0)
    policy.observe(obs, torch.ones(2, 4, dtype=torch.bool))
    policy.refresh()
    first = obs[0].double().numpy()
    std = np.maximum(first.std(0), 12.0)
    expected = (obs.double().numpy() - first.mean(0)) / std
    np.testing.assert_allclose(policy.normalize(obs).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_vectors_are_normalised_by_their_valid_rows_and_clipped():
    spec = spec_of()
    policy = small_policy(spec, normalize_obs=True, obs_clip=1.5)
    spread = torch.tensor([3.0, 1.0, 0.1, 0.01])
    obs = 5.0 + spread * torch.randn((6, 4, 4), generator=torch.Generator().manual_seed(0))
    valid = torch.rand((5, 4), generator=torch.Generator().manual_seed(1)) < 0.6
    policy.observe(obs, valid)
    policy.refresh()
    seen = obs[:5][valid].double().numpy()
    assert policy.obs_moments.count == len(seen)
    expected = np.clip((obs.numpy() - seen.mean(0)) / seen.std(0), -1.5, 1.5)
    np.testing.assert_allclose(policy.normalize(obs).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert (np.abs(expected) == 1.5).any()


def test_values_are_predicted_in_units_of_their_targets():
    policy = small_policy(value_norm=True)
    inputs = rows(policy.spec, 2, 3)
    before = policy(*inputs).value
    assert policy.value_scale() == 1.0
    targets = torch.tensor([10.0, 14.0, 18.0]).double()
    policy.observe_values(targets.sum().item(), targets.square().sum().item(), 3)
    policy.refresh()
    std = targets.std(correction=0).item()
    assert policy.value_scale().item() == pytest.approx(std)
    torch.testing.assert_close(policy(*inputs).value, before * std + 14.0)
    plain = small_policy(value_norm=False)
    plain.observe_values(30.0, 400.0, 3)
    plain.refresh()
    assert plain.value_scale() == 1.0


def test_values_that_hardly_differ_are_not_magnified():
    """Targets of one deviation less than a hundredth are in units of a hundredth."""
    policy = small_policy(value_norm=True)
    targets = 5.0 + torch.tensor([-1e-3, 0.0, 1e-3]).double()
    policy.observe_values(targets.sum().item(), targets.square().sum().item(), 3)
    policy.refresh()
    assert policy.value_scale().item() == pytest.approx(0.01)


@given(
    seen=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=6),
    more=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=6),
)
@settings(max_examples=30, deadline=None)
def test_rescaled_heads_predict_what_they_did(seen, more):
    """Pop-Art, against proposition 1 in float64: whatever the targets, no value moves, and errors are in new units."""
    policy = small_policy(value_norm=True)
    inputs = rows(policy.spec, 2, 3)
    every = []
    for targets in (seen, more):
        before = policy(*inputs).value
        weight, bias = (x.double() for x in (policy.value_head.weight, policy.value_head.bias))
        mean, std = policy.value_mean.double(), policy.value_std.double()
        x = torch.tensor(targets, dtype=torch.float64)
        every += targets
        policy.observe_values(x.sum().item(), x.square().sum().item(), len(x))
        policy.refresh(keep_values=True)
        new_std = max(np.std(every), 1e-2)
        close = {"rtol": 1e-4, "atol": 1e-4 * (abs(np.mean(every)) + new_std) / new_std}
        torch.testing.assert_close(
            policy.value_head.weight.double(), weight * std / new_std, **close
        )
        expected = (std * bias + mean - np.mean(every)) / new_std
        torch.testing.assert_close(policy.value_head.bias.double(), expected, **close)
        limit = 1e-5 * (1.0 + np.abs(every).max())
        torch.testing.assert_close(policy(*inputs).value, before, rtol=1e-4, atol=limit)
    unchanged = policy.value_head.weight.clone()
    policy.refresh(keep_values=True)
    assert torch.equal(policy.value_head.weight, unchanged), "moments that stay rescale nothing"


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonal_gains(shape):
    layer = linear(*shape, 1.7, torch.Generator().manual_seed(1))
    w = layer.weight.detach()
    product = w @ w.T if shape[1] <= shape[0] else w.T @ w
    torch.testing.assert_close(product, 1.7**2 * torch.eye(min(shape)), atol=1e-5, rtol=0.0)
    assert not layer.bias.any()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_new_core_has_orthogonal_weights(kind):
    core = Core(PolicyConfig(core=kind, core_size=5, core_layers=2), 3)
    weights = [w.detach() for name, w in core.named_parameters() if "weight" in name]
    assert len(weights) == 4
    for w in weights:  # rows of all gates
        torch.testing.assert_close(w.T @ w, torch.eye(w.shape[1]), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize(
    ("torso", "size", "counts"),
    [  # as their papers draw them; elite without its layer of features that is not learnt
        ("a3c", 256, [4 * 64 * 16, 16 * 16 * 32, 32 * 81 * 256]),
        ("nature", 512, [4 * 64 * 32, 32 * 16 * 64, 64 * 9 * 64, 64 * 49 * 512]),
        ("elite", 512, [4 * 9 * 64, 64 * 9 * 64, 64 * 9 * 128, 128 * 36 * 512]),
        ("impala", 256, [4 * 144, *[16 * 144] * 4, 16 * 288, *[32 * 288] * 9, 32 * 121 * 256]),
    ],
)
def test_convolutions_are_those_that_were_published(torso, size, counts):
    policy = ActorCritic(spec_of(obs_shape=(4, 84, 84)), PolicyConfig(torso=torso))
    assert [p.numel() for p in policy.torso.parameters() if p.dim() > 1] == counts
    assert policy.torso.feature_size == size


@pytest.mark.parametrize("torso", ["mlp", "nature", "impala"])
def test_heads_and_layers_start_with_their_gains(torso):
    shape = (4,) if torso == "mlp" else PIXELS
    torch.manual_seed(0)
    policy = ActorCritic(spec_of(obs_shape=shape), PolicyConfig(torso=torso, fc_size=16))
    for layer, gain in [(policy.action_head, 0.01), (policy.value_head, 1.0)]:
        assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(gain, rel=1e-4)
    weights = [p for p in policy.torso.parameters() if p.dim() > 1]
    assert weights
    for w in weights:
        norm = torch.linalg.matrix_norm(w.flatten(1), 2).item()
        assert norm == pytest.approx(math.sqrt(2.0), rel=1e-4)


@pytest.mark.parametrize("torso", ["mlp", "nature", "impala"])
@pytest.mark.parametrize("normalize", [False, True])
def test_bfloat16_copy_is_close_and_keeps_channels_last(torso, normalize):
    spec = spec_of(obs_shape=PIXELS)
    policy = small_policy(spec, torso=torso, fc_size=32, normalize_obs=normalize)
    inputs = rows(spec, 2, 3)
    policy.observe(inputs[0], torch.ones(1, 3, dtype=torch.bool))
    policy.refresh()
    acting = copy.deepcopy(policy).requires_grad_(False)
    acting.set_precision(torch.bfloat16, inference=True)
    learning = copy.deepcopy(policy)
    learning.set_precision(torch.bfloat16)
    assert {p.dtype for p in acting.torso.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in learning.parameters()} == {torch.float32}
    exact = policy(*inputs)
    for rounded in (acting, learning):
        out = rounded(*inputs)
        assert out.action_params.dtype == out.value.dtype == torch.float32
        size = exact.value.abs().max().item()
        assert (out.value - exact.value).abs().mean() < 0.05 * size
        assert not torch.equal(out.value, exact.value), "it does compute in bfloat16"
        for p in rounded.parameters():
            if p.dim() == 4:
                assert p.is_contiguous(memory_format=torch.channels_last)
    # what the board copies keeps both
    for target, x in zip(acting.shared_tensors(), policy.shared_tensors(), strict=True):
        target.copy_(x)
    acting.refresh()
    assert (acting(*inputs).value - exact.value).abs().mean() < 0.05 * size


def test_shared_tensors_and_names_agree():
    policy = small_policy(core="gru", core_size=3, normalize_obs=True)
    state = policy.state_dict()
    names, tensors = policy.shared_names(), policy.shared_tensors()
    assert len(set(names)) == len(names)
    assert set(names) == set(state)
    for name, x in zip(names, tensors, strict=True):
        assert state[name].data_ptr() == x.data_ptr() or x.numel() == 0


def test_squashed_actions_span_the_bounds():
    spec = spec_of(CONTINUOUS)
    policy = small_policy(spec, squash=True)
    action = torch.tensor([[-50.0, -50.0], [0.0, 0.0], [50.0, 50.0]])
    assert policy.env_action(action).tolist() == [[-1.0, -2.0], [0.0, 1.0], [1.0, 4.0]]
    assert torch.equal(small_policy(spec).env_action(action), action)
    with pytest.raises(ConfigError, match="squash"):
        small_policy(spec_of(DISCRETE), squash=True)
    for most in (math.inf, torch.finfo(torch.float32).max):
        endless = ActionSpec("gaussian", (1,), (-most,), (most,))
        with pytest.raises(ConfigError, match="finite bounds"):
            small_policy(spec_of(endless), squash=True)


def test_scaled_actions_reach_the_bounds_at_one_and_minus_one():
    spec = spec_of(CONTINUOUS)
    policy = small_policy(spec, scale_actions=True)
    action = torch.tensor([[-1.0, -1.0], [0.0, 0.5], [1.0, 2.0]])
    # beyond the bounds it is the environment that clips
    assert policy.env_action(action).tolist() == [[-1.0, -2.0], [0.0, 2.5], [1.0, 7.0]]
    half = ActionSpec("gaussian", (2,), (-math.inf, 0.0), (math.inf, 4.0))
    policy = small_policy(spec_of(half), scale_actions=True)
    assert policy.env_action(torch.tensor([[3.0, 0.5]])).tolist() == [[3.0, 3.0]]
    most = torch.finfo(torch.float32).max  # as some write what has no bound
    policy = small_policy(
        spec_of(ActionSpec("gaussian", (2,), (0.0, -most), (most, most))), scale_actions=True
    )
    assert policy.env_action(torch.tensor([[3.0, 0.5]])).tolist() == [[3.0, 0.5]]
    action = torch.tensor([1])
    assert torch.equal(small_policy(scale_actions=True).env_action(action), action)


def test_correlated_noise_has_its_correlation_and_leaves_every_action_its_distribution():
    spec, kept, n = spec_of(CONTINUOUS), 0.7, 20_000
    policy = small_policy(spec, noise_correlation=kept)
    gen = torch.Generator().manual_seed(1)
    params = torch.tensor([0.5, -1.0, math.log(0.5), math.log(2.0)]).expand(n, -1)
    noise = policy.initial_noise(n, gen)
    drawn = torch.stack([policy.sample(params, gen, noise) for _ in range(4)])  # [4, n, 2]
    z = (drawn - params[:, :2]) / params[:, 2:].exp()
    torch.testing.assert_close(z.mean(1), torch.zeros(4, 2), atol=0.03, rtol=0.0)
    torch.testing.assert_close(z.std(1), torch.ones(4, 2), atol=0.03, rtol=0.0)
    for lag in (1, 2, 3):
        found = (z[lag] * z[0]).mean(0)
        torch.testing.assert_close(found, torch.full((2,), kept**lag), atol=0.03, rtol=0.0)
    assert abs((z[:, :, 0] * z[:, :, 1]).mean()) < 0.03, "components are independent"


def test_what_is_done_to_real_numbers_leaves_the_choices_beside_them_as_they_are():
    spec = spec_of(JOINT)
    action = torch.tensor([[-50.0, 50.0, 2.0], [0.0, 0.0, 1.0]])
    squashed = small_policy(spec, squash=True).env_action(action)
    assert squashed.tolist() == [[-1.0, 4.0, 2.0], [0.0, 1.0, 1.0]]
    scaled = small_policy(spec, scale_actions=True).env_action(action)
    assert scaled.tolist() == [[-50.0, 151.0, 2.0], [0.0, 1.0, 1.0]]
    policy = small_policy(spec, noise_correlation=0.999999, init_log_std="auto")
    assert policy.log_std.shape == (2,)
    torch.testing.assert_close(policy.log_std.exp().square().sum().item(), INITIAL_VARIANCE)
    gen = torch.Generator().manual_seed(1)
    carried = policy.initial_noise(400, gen)
    assert carried.shape == (400, 2)
    params = torch.zeros(400, JOINT.num_params)
    first, second = (policy.sample(params, gen, carried) for _ in range(2))
    torch.testing.assert_close(first[:, :2], second[:, :2], atol=0.02, rtol=0.0)
    assert 0.2 < (first[:, 2] == second[:, 2]).float().mean() < 0.5, "choices are drawn anew"


def test_a_joint_head_masks_its_choices_and_nothing_else():
    parts = (("a", ActionSpec("categorical", (2,))), ("b", ActionSpec("bernoulli", (2,))))
    parts = (*parts, ("c", CONTINUOUS), ("d", ActionSpec("multi_categorical", (2, 3))))
    action = ActionSpec("joint", parts=parts)
    leaf = Leaf("action_mask", "mask", (7,))
    free = spec_of(action)
    spec = replace(free, leaves=(*free.leaves, leaf), mask_from="info")
    generator = torch.Generator().manual_seed(3)
    policy = small_policy(spec)
    with torch.no_grad():
        for x in policy.parameters():
            x.copy_(torch.randn(x.shape, generator=generator))
    unmasked = small_policy(free)
    unmasked.load_state_dict(policy.state_dict())
    obs, starts, state, *_ = rows(free, 1, 3)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0], [1, 1, 0, 1, 0, 0, 1], [1] * 7]).bool()
    out = policy({"": obs, "action_mask": mask[None]}, starts, state).action_params[0]
    plain = unmasked(obs, starts, state).action_params[0]
    open_ = torch.ones(3, 4 + 4)  # two switches, two means, two deviations
    switches, gaussian = open_[:, :2], open_[:, :4]
    allowed = torch.cat([mask[:, :2], switches.bool(), gaussian.bool(), mask[:, 2:]], dim=1)
    assert torch.equal(out, torch.where(allowed, plain, MASKED))
    chosen = policy.distribution(out).sample(generator)
    assert mask[torch.arange(3), chosen[:, 0].long()].all()
    assert torch.equal(out[:, 6:8], policy.log_std.expand(3, 2))


def test_noise_without_correlation_is_drawn_anew():
    for made in (small_policy(spec_of(CONTINUOUS)), small_policy(noise_correlation=0.7)):
        assert made.initial_noise(3, torch.Generator()) is None
        params = torch.zeros(3, made.spec.action.num_params)
        one, other = (torch.Generator().manual_seed(5) for _ in range(2))
        plain = made.distribution(params).sample(other)
        assert torch.equal(made.sample(params, one, None), plain)


def test_torsos_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="impala needs images"):
        small_policy(torso="impala")
    with pytest.raises(ConfigError, match=r"nature .* 20 x 40"):
        small_policy(spec_of(obs_shape=(3, 20, 40)), torso="nature")
