"""A target policy has the scales of what was copied; rows behind a burn-in see the step before them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from algorithm_checks import state_for
from core_fakes import random_batch, small_policy, spec_of

from gossamer.algorithms.base import unroll
from gossamer.algorithms.impact import Impact


def test_a_target_policy_says_what_the_policy_says_once_it_is_copied():
    policy = small_policy(normalize_obs=True, value_norm=True)
    algorithm, state = Impact(value_norm=True, target_every_updates=2), state_for()
    algorithm.init_state(policy, state)
    batch = random_batch(spec_of(), 5, 4, seed=3)
    for spread in (3.0, 20.0):
        policy.observe(spread * (batch.obs + 1.0), batch.valid)
        policy.observe_values(4.0 * spread, 9.0 * spread**2, 4)
        policy.refresh()
        algorithm.before_update(policy, state)
        with torch.no_grad():
            ours, theirs = (unroll(x, batch, slice(0, 6)) for x in (policy, state.target_policy))
        assert torch.equal(ours.value, theirs.value)
        assert torch.equal(ours.action_params, theirs.action_params)
        algorithm.count_update(state)
        algorithm.count_update(state)


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_rows_behind_a_burn_in_see_the_step_before_them(core, first):
    """A burn-in stops gradients, and changes no number."""
    settings = {"core": core, "core_size": 4, "last_action": True, "last_reward": True}
    policy = small_policy(spec_of(), **settings)
    batch = random_batch(spec_of(), 6, 4, seed=3, core_units=policy.core_units)
    warm = replace(batch, burn_in=first, replayed=torch.ones(4, dtype=torch.bool))
    with torch.no_grad():
        whole, parted = (unroll(policy, x, slice(0, 7)) for x in (batch, warm))
    for one, other in zip(whole, parted, strict=True):
        torch.testing.assert_close(one, other)
