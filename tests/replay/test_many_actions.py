"""Actions of any number come back from a replay, also those that no byte holds."""

from __future__ import annotations

import pytest
import torch
from core_fakes import spec_of
from replay_fakes import B, T, make_replay, sample

from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.spec import ActionSpec
from gossamer.types import as_batch, empty_trajectory


@pytest.mark.parametrize("sizes", [(256,), (257,), (300,), (2, 257)])
def test_the_largest_actions_come_back(sizes):
    kind = "categorical" if len(sizes) == 1 else "multi_categorical"
    spec = spec_of(ActionSpec(kind, sizes))
    replay = make_replay(spec, UniformSettings(), capacity=B)
    written = empty_trajectory(spec, unroll_length=T, num_columns=B, core_units=0)
    largest = torch.tensor(sizes) - 1
    for column in range(B):
        written.action[:, column] = (largest - column).clamp(min=0).squeeze()
        written.last_action[column] = (largest - column).clamp(min=0).squeeze()
        written.version[column] = column
    replay.add(written, None)
    batch = as_batch(empty_trajectory(spec, unroll_length=T, num_columns=B, core_units=0))
    assert sample(replay, batch)
    order = batch.version.argsort()
    assert torch.equal(batch.action[:, order], written.action)
    assert torch.equal(batch.last_action[order], written.last_action)
