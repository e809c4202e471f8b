"""kill -9 at random moments, resumed each time: nothing is lost and nothing differs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from held_envs import HeldLater, steps_for
from runs import assert_same
from sessions import QUICK, Session, checkpoints, summary_of

from gossamer import cli

SETTINGS = ["held_envs:HeldLater", *QUICK, "--checkpoint-every-seconds", "0.05"]


@pytest.mark.parametrize(
    ("kills", "seconds"),
    [(2, 120), pytest.param(20, 900, marks=(pytest.mark.slow, pytest.mark.timeout(900)))],
)
def test_killed_equals_uninterrupted(tmp_path: Path, kills: int, seconds: int) -> None:
    total = kills * HeldLater.free_steps + steps_for(1, seconds)
    words = [*SETTINGS, "--total-env-steps", str(total)]
    one, two = tmp_path / "one", tmp_path / "two"
    # Inline, so that threads are compared with none.
    assert cli.main(["train", *words, "--run-folder", str(one), "--placement=inline"]) == 0
    chance = random.Random(1)
    for _ in range(kills):
        before = checkpoints(two)
        begin = ["--resume", str(two)] if before else ["--run-folder", str(two), *words]
        with Session(begin, tmp_path) as session:
            session.wait_for(lambda b=before: checkpoints(two)[-1:] > b[-1:], "a checkpoint")
            session.let_run(chance.uniform(0.0, 0.3))
            session.process.kill()
            session.ends(code=-9)
    with Session(["--resume", str(two)], tmp_path) as session:
        session.release()
        session.ends(seconds=0.8 * seconds)  # most of the steps are still to come
    assert summary_of(two)["exit_reason"] == "done: total_env_steps reached"
    assert_same(one, two)
