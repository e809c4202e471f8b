"""Gradients through sockets, and transports that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fleets import config
from runs import rows_of, state_of

from gossamer.errors import ConfigError
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.train import train


def test_gradients_may_travel_through_sockets(tmp_path: Path) -> None:
    """Learners are alike to the bit, and near those that sum in rank order in shared memory."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for transport in ("memory", "gloo"):
        folder = tmp_path / transport
        made = config(folder, {"name": "allreduce", "transport": transport}, 3 * 256)
        train(made, quiet=True)
        runs[transport] = [policy_of(state_of(folder), rank) for rank in range(3)]
        assert not list(folder.glob("meeting*"))
        assert rows_of(folder)[-1]["topology/messages_per_update"] == 2.0
    first = runs["gloo"][0]
    for held in runs["gloo"][1:]:
        assert all(torch.equal(x, first[name]) for name, x in held.items())
    for name, x in runs["memory"][0].items():
        torch.testing.assert_close(first[name], x, rtol=1e-3, atol=1e-5)


TRANSPORTS = [
    ({"placement": "inline"}, "gloo", "--placement local"),
    ({"learners_per_process": 2}, "gloo", "--learners-per-process 1"),
    ({}, "nccl", "--topology.transport memory"),
]


@pytest.mark.parametrize(("settings", "transport", "says"), TRANSPORTS)
def test_a_transport_that_cannot_be_is_refused(
    tmp_path: Path, settings: dict[str, Any], transport: str, says: str
) -> None:
    if transport == "nccl" and torch.cuda.device_count() >= 3:
        pytest.skip("here each learner has a GPU")
    topology = {"name": "allreduce", "transport": transport}
    with pytest.raises(ConfigError, match=says):
        train(config(tmp_path / "run", topology, 256, **settings), quiet=True)
    assert not (tmp_path / "run").exists()
