"""Features of candidates are those of the kept version with its moments, and of what was done before each row."""

from __future__ import annotations

import pytest
import torch
from core_fakes import random_batch, small_policy, spec_of
from replay_fakes import trajectory_of

from gossamer.replay.recent import RecentPolicy


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_features_are_those_of_rows_one_by_one_by_the_moments_of_the_version(core):
    settings = {"core": core, "core_size": 4, "last_action": True, "last_reward": True}
    settings["normalize_obs"] = True
    policy = small_policy(spec_of(), **settings)
    batch = random_batch(spec_of(), 5, 7, seed=1, core_units=policy.core_units)
    kept = RecentPolicy(small_policy(spec_of(), seed=9, **settings), policy.shared_tensors(), 1)
    for spread in (2.0, 9.0):
        policy.observe(spread * (batch.obs + 1.0), batch.valid)
        policy.refresh()
        number = kept.take()
        rows, state = [], batch.core_state
        for t in range(5):
            action = batch.action[t - 1] if t else batch.last_action
            reward = batch.reward[t - 1] if t else batch.last_reward
            with torch.no_grad():
                out = policy(
                    batch.obs[t][None], batch.starts[t][None], state, action[None], reward[None]
                )
            state = out.core_state
            rows.append(out.features[0])
        found = kept.features(number, trajectory_of(batch))
        torch.testing.assert_close(found, torch.stack(rows))
