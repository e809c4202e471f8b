"""All-reduce in real processes, each held up at moments of its own: nothing drifts apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import assert_same_state, pids_of, state_of
from sessions import QUICK, run_session, summary_of

from gossamer import cli
from gossamer.run.checkpoint_contents import policy_of

UPDATES = 150
UNROLL_LENGTH = 2
WORDS = (
    *("broken_envs:Dawdles", *QUICK, "topology:allreduce", "--num-learners", "2"),
    *("--num-envs", "1", "--unroll-length", str(UNROLL_LENGTH), "--policy.hidden-sizes", "8"),
    *("--total-env-steps", str(2 * UNROLL_LENGTH * UPDATES), "--checkpoint-every-seconds", "0"),
)


@pytest.mark.timeout(400)  # on a busy machine two processes in lock-step wait for a core in turn
def test_delayed_learners_stay_alike_and_are_those_of_lock_step(tmp_path: Path) -> None:
    """Updates of two processes: equal to each other and to learners that take turns, to the bit."""
    local, inline = tmp_path / "local", tmp_path / "inline"
    run_session([*WORDS, "--run-folder", str(local)], tmp_path, seconds=300.0)
    assert len(set(pids_of(local))) == 2
    words = [*WORDS, "--placement", "inline", "--run-folder", str(inline)]
    assert cli.main(["train", *words]) == 0
    assert summary_of(local)["updates"] == summary_of(inline)["updates"] >= UPDATES
    first, second = (policy_of(state_of(local), rank) for rank in (0, 1))
    assert first
    assert [name for name, x in first.items() if not torch.equal(x, second[name])] == []
    assert_same_state(local, inline)
