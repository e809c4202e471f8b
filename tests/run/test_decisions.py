"""Env steps are decisions, wherever a run speaks of them: rows that reset an environment are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import SMALL, rows_of, state_of

from gossamer.config import make_config
from gossamer.run.train import train

TOTAL = 640
BATCH = 4 * 16


@pytest.mark.parametrize("learners", [1, 3])
def test_a_run_counts_the_steps_of_its_episodes(tmp_path: Path, learners: int) -> None:
    given = {
        **SMALL,
        "placement": "inline",
        "lag": "0",
        "num_learners": learners,
        "topology.name": "single" if learners == 1 else "allreduce",
        "total_env_steps": learners * TOTAL,
        "evaluation.every_seconds": 1e6,
        "evaluation.episodes": 1,
        "run_folder": str(tmp_path / "run"),
    }
    summary = train(make_config("CartPole-v1", given), quiet=True).summary
    episodes = rows_of(tmp_path / "run", "episodes")
    begun = [x for name, x in state_of(tmp_path / "run").items() if name.endswith("0.length")]
    assert len(begun) == learners
    steps = sum(row["length"] for row in episodes) + sum(int(x.sum()) for x in begun)
    assert summary["env_steps"] == steps
    assert learners * TOTAL <= steps < learners * (TOTAL + BATCH), "whole batches"
    last = rows_of(tmp_path / "run")[-1]
    assert last["env_steps"] == steps
    assert steps < last["version"] * learners * BATCH, "some rows were resets"
    (scored,) = rows_of(tmp_path / "run", "evaluation")
    assert scored["env_steps"] == steps
    told = [row["env_steps"] for row in episodes if row["learner"] == 0]
    assert told == sorted(told)
    assert told[-1] <= steps or learners > 1
