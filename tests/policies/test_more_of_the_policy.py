"""Many pixels at once, a value network of its own, and values of long ago."""

from __future__ import annotations

import pytest
import torch
from core_fakes import random_batch, small_policy, spec_of

from gossamer.policies.normalizer import FEW
from gossamer.types import empty_trajectory


@pytest.mark.parametrize("normalize", [False, True])
def test_many_pixels_are_scaled_as_few_are(normalize):
    spec = spec_of(obs_shape=(4, 84, 84))
    policy = small_policy(spec, torso="nature", fc_size=4, normalize_obs=normalize)
    many = empty_trajectory(spec, unroll_length=6, num_columns=6, core_units=0).obs
    many.copy_(torch.randint(0, 256, many.shape, generator=torch.Generator().manual_seed(1)))
    assert many.numel() > FEW > many[0].numel()
    assert many.stride(-3) == 1, "as trajectories keep them"
    policy.observe(many, torch.ones((6, 6), dtype=torch.bool))
    policy.refresh()
    few = torch.stack([policy.normalize(row) for row in many])
    torch.testing.assert_close(policy.normalize(many), few, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("separate", [False, True])
def test_the_value_sees_the_step_before_with_layers_of_its_own_and_without(separate):
    policy = small_policy(last_action=True, last_reward=True, separate_value=separate)
    assert (policy.value_torso is not None) == separate
    batch = random_batch(spec_of(), 4, 3, seed=2)
    obs, starts, state = batch.obs[:4], batch.starts[:4], policy.initial_state(3)
    assert not starts.all()
    assert starts.any()
    action, reward = batch.action, batch.reward.clamp(-0.9, 0.9)
    first = policy(obs, starts, state, action, reward).value
    for changed in [((action + 1) % 3, reward), (action, reward + 0.05)]:
        second = policy(obs, starts, state, *changed).value
        assert torch.equal(first == second, starts)


def test_value_targets_of_long_ago_are_forgotten():
    policy = small_policy(value_norm=True)
    for mean in [0.0] * 10 + [5.0] * 40:
        n = 1e6  # as many as are remembered
        policy.observe_values(n * mean, n * (mean * mean + 1.0), n)
    policy.refresh()
    assert float(policy.value_mean) == pytest.approx(5.0, abs=1e-3)
    assert float(policy.value_scale()) == pytest.approx(1.0, abs=1e-3)


def test_a_last_reward_that_is_no_number_counts_as_none():
    policy = small_policy(last_reward=True)
    obs, starts = torch.randn(1, 2, *spec_of().obs_shape), torch.tensor([[False, True]])

    def value(reward):
        return policy(obs, starts, policy.initial_state(2), None, torch.full((1, 2), reward)).value

    assert torch.equal(value(float("nan")), value(0.0))
    assert torch.equal(value(float("inf")), value(1.0))
    different = value(1.0) != value(0.0)
    assert different.tolist() == [[True, False]], "where no episode begins"
