"""A learner in a dead one's place plays episodes of its own, and the run no longer claims to go on exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, rows_of

from gossamer.config import make_config
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.placements.processes import Processes
from gossamer.run.train import train


def test_no_episode_is_played_again_by_a_learner_in_a_dead_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Returns are the episodes' seeds."""
    killed, learnt, poll = list[int](), list[int](), Processes.poll

    def kills_one(placement: Processes) -> Any:
        host = placement.hosts[1]
        if not killed and host.version > 0:
            killed.append(host.pid)
            os.kill(host.pid, signal.SIGKILL)
        elif killed and host.pid != killed[0] and host.state.has_told_rows:
            learnt.append(host.version)
        return poll(placement)

    monkeypatch.setattr(Processes, "poll", kills_one)
    given = {**SMALL, "num_learners": 2, "learner_threads": 1, "total_env_steps": 1_000_000}
    in_step = {"name": "gossip", "max_staleness": 0}
    given |= {"topology": in_step, "run_folder": str(tmp_path / "run")}
    config = make_config("lottery_envs:Lottery", given)
    result = train(config, quiet=True, on_row=lambda _: bool(learnt))
    assert result.summary["restarts"] == 1
    rows = rows_of(result.folder, "episodes")
    assert {row["learner"] for row in rows} == {0, 1}
    returns = [row["return"] for row in rows]
    assert len(set(returns)) == len(returns) > 100
    last = CheckpointStore(result.folder / "checkpoints", 0).load("last")
    assert last.state["exact"] is False
