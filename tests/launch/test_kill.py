"""kill -9 at random moments, resumed each time: nothing is lost and nothing differs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from sittings import QUICK, Sitting, checkpoints, summary_of, tensors_of

from gossamer import cli

SETTINGS = ["CartPole-v1", *QUICK, "--checkpoint-every-seconds", "0.05"]


@pytest.mark.parametrize(
    ("kills", "total"), [(2, 12_000), pytest.param(20, 150_000, marks=pytest.mark.slow)]
)
def test_killed_equals_uninterrupted(tmp_path: Path, kills: int, total: int) -> None:
    words = [*SETTINGS, "--total-env-steps", str(total)]
    # Inline, so that the reference does not depend on threads either.
    assert cli.main(["train", *words, "--run-folder", str(tmp_path / "one"), "--placement=inline"]) == 0
    chance = random.Random(1)
    two = tmp_path / "two"
    begin = ["--run-folder", str(two), *words]
    for _ in range(kills):
        before = checkpoints(two)
        with Sitting(["--resume", str(two)] if before else begin, tmp_path) as sitting:
            sitting.wait_for(lambda b=before: checkpoints(two)[-1:] > b[-1:], "a checkpoint")
            sitting.process.communicate  # noqa: B018
            _wait(sitting, chance.uniform(0.0, 0.3))
            sitting.process.kill()
            code, _, err = sitting.end()
        assert code == -9, err
    with Sitting(["--resume", str(two)], tmp_path) as sitting:
        code, _, err = sitting.end()
    assert code == 0, err
    assert summary_of(two)["exit_reason"] == "done: total_env_steps reached"
    one, other = tensors_of(tmp_path / "one"), tensors_of(two)
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]
    assert _returns(tmp_path / "one") == _returns(two)


def _wait(sitting: Sitting, seconds: float) -> None:
    try:
        sitting.process.wait(seconds)
    except Exception:  # noqa: S110 - still running, which is what we want
        pass
