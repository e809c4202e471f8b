"""Feature layers against plain formulas of what was published."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from core_fakes import small_policy, spec_of

from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.settings import PolicyConfig

PIXELS = (4, 36, 44)
STRIDES = {"nature": (4, 2, 1), "a3c": (4, 2), "elite": (3, 2, 2)}


def conv(x, state, name, **options):
    return F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], **options)


def slow_plain(x, state, strides):
    for i, stride in enumerate(strides):
        x = conv(x, state, f"convs.{2 * i}", stride=stride).clamp(min=0.0)
    return x


def slow_impala(x, state):
    """Espeholt et al. 2018, figure 3: in each section a convolution, a pool, and two residual blocks."""
    for first in (0, 4, 8):
        x = F.max_pool2d(conv(x, state, f"sections.{first}", padding=1), 3, 2, 1)
        for block in (first + 2, first + 3):
            y = conv(x.clamp(min=0.0), state, f"sections.{block}.conv0", padding=1)
            x = x + conv(y.clamp(min=0.0), state, f"sections.{block}.conv1", padding=1)
    return x.clamp(min=0.0)


@pytest.mark.parametrize("torso", [*STRIDES, "impala"])
def test_images_become_features_as_was_published(torso):
    policy = small_policy(spec_of(obs_shape=PIXELS), torso=torso, fc_size=16)
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in policy.torso.named_parameters():
            if name.endswith("bias"):
                x.copy_(0.1 * torch.randn(x.shape, generator=gen))
    obs = torch.randint(0, 256, (2, 3, *PIXELS), generator=gen, dtype=torch.uint8)
    starts = torch.zeros((2, 3), dtype=torch.bool)
    found = policy(obs, starts, policy.initial_state(3)).features.detach().flatten(0, 1)
    state = {name: x.double() for name, x in policy.torso.state_dict().items()}
    x = obs.flatten(0, 1).double() / 255.0
    x = slow_impala(x, state) if torso == "impala" else slow_plain(x, state, STRIDES[torso])
    x = x.permute(0, 2, 3, 1).reshape(6, -1)  # rows, columns, channels
    expected = (x @ state["fc.weight"].T + state["fc.bias"]).clamp(min=0.0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    assert (expected == 0.0).any()
    assert (expected > 0.0).any()


def test_images_have_natures_layers_if_no_others_are_asked_for():
    spec = spec_of(obs_shape=PIXELS)
    policies = small_policy(spec, fc_size=16), small_policy(spec, fc_size=16, torso="nature")
    auto, nature = ([(name, x.shape) for name, x in p.named_parameters()] for p in policies)
    assert auto == nature


def test_the_last_convolution_has_the_filters_that_were_asked_for():
    config = PolicyConfig(torso="nature", last_filters=32)
    policy = ActorCritic(spec_of(obs_shape=(4, 84, 84)), config)
    weights = [p.numel() for p in policy.torso.parameters() if p.dim() > 1]
    assert weights == [4 * 64 * 32, 32 * 16 * 64, 64 * 9 * 32, 32 * 49 * 512]


FORMULAS = {
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x if x > 0.0 else math.exp(x) - 1.0,
}


@pytest.mark.parametrize("activation", sorted(FORMULAS))
def test_every_activation_is_its_formula(activation):
    policy = small_policy(activation=activation, hidden_sizes=(6, 5))
    obs = 3.0 * torch.randn((1, 7, 4), generator=torch.Generator().manual_seed(1))
    starts = torch.zeros((1, 7), dtype=torch.bool)
    found = policy(obs, starts, policy.initial_state(7)).features[0].detach()
    layers = [x.tolist() for x in policy.torso.parameters()]
    for row, features in zip(obs[0].tolist(), found.tolist(), strict=True):
        x = row
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            sums = [
                sum(a * b for a, b in zip(w, x, strict=True)) + c
                for w, c in zip(weight, bias, strict=True)
            ]
            x = [FORMULAS[activation](y) for y in sums]
        assert features == pytest.approx(x, rel=1e-4, abs=1e-5)
