"""All-reduce in real processes, each held up at moments of its own: nothing drifts apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sessions import QUICK, Session, summary_of, tensors_of

from gossamer.config import parse_train, resolve
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.train import train

UPDATES = 150
UNROLL_LENGTH = 2
WORDS = [
    "broken_envs:Dawdles",
    *QUICK,
    "topology:allreduce",
    "--num-learners",
    "2",
    "--num-envs",
    "1",
    "--unroll-length",
    str(UNROLL_LENGTH),
    "--policy.hidden-sizes",
    "8",
    "--total-env-steps",
    str(2 * UNROLL_LENGTH * UPDATES),
    "--checkpoint-every-seconds",
    "0",
]


@pytest.mark.timeout(400)  # on a busy machine two processes in lock-step wait for a core in turn
def test_delayed_learners_stay_alike_and_are_those_of_lock_step(tmp_path: Path) -> None:
    """Updates of two processes: equal to each other and to learners that take turns, to the bit."""
    with Session([*WORDS, "--run-folder", str(tmp_path / "local")], tmp_path) as session:
        code, out, err = session.end(300.0)
    assert code == 0, (out, err)
    processes = json.loads((tmp_path / "local" / "processes.json").read_text())
    assert len({row["pid"] for row in processes if row["role"] == "learner"}) == 2

    words = [*WORDS, "--placement", "inline", "--run-folder", str(tmp_path / "inline")]
    train(resolve(parse_train(words).settings)[0], quiet=True)

    local, inline = (tensors_of(tmp_path / placement) for placement in ("local", "inline"))
    updates = {summary_of(tmp_path / folder)["updates"] for folder in ("local", "inline")}
    assert len(updates) == 1
    assert updates.pop() >= UPDATES
    first, second = (policy_of(local, rank) for rank in (0, 1))
    assert first
    assert [name for name, x in first.items() if not torch.equal(x, second[name])] == []
    assert local.keys() == inline.keys()
    assert [name for name, x in local.items() if not torch.equal(x, inline[name])] == []
