"""Features of candidates: those of the kept version, however many rows a CPU runs at a time."""

from __future__ import annotations

import pytest
import torch
from core_fakes import random_batch, small_policy, spec_of
from replay_fakes import trajectory_of

from gossamer.replay import recent
from gossamer.replay.recent import RecentPolicy


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("rows", [1, 5, 12, 264])
def test_features_are_those_of_a_plain_forward_pass(monkeypatch, rows, core):
    monkeypatch.setattr(recent, "CPU_ROWS", rows)
    policy = small_policy(spec_of(), core=core)
    batch = random_batch(spec_of(), 5, 7, seed=1, core_units=policy.core_units)
    kept = RecentPolicy(small_policy(spec_of(), seed=9, core=core), policy.shared_tensors(), 1)
    number = kept.take()
    last_action = torch.cat([batch.last_action[None], batch.action])
    last_reward = torch.cat([batch.last_reward[None], batch.reward])
    with torch.no_grad():
        expected = policy(
            batch.obs, batch.starts, batch.core_state, last_action, last_reward
        ).features[:-1]
        for p in policy.parameters():
            p.add_(1.0)
    found = kept.features(number, trajectory_of(batch))
    torch.testing.assert_close(found, expected)
