"""A run that is asked to go on: whether it has anything left to do, and what its summary says then."""

from __future__ import annotations

import errno
from dataclasses import asdict, replace
from typing import Any

import pytest
from fake_placement import PLAN, FakePlacement, part

from gossamer.record.exits import Exit
from gossamer.record.window import OfLearner
from gossamer.run.checkpoint_contents import RecorderState, RunState
from gossamer.run.finished import find_end

DONE = {"exit": asdict(Exit("done", "total_env_steps")), "exit_reason": "done"}


def state_with(episodes: int = 0, updates: int = 5) -> RunState:
    """Return the state of a run of 10 env steps an update, whose last episodes earned 50."""
    learner = part(0, updates=updates)[1].learners[0]
    window = [OfLearner(0, [50.0] * episodes, [1] * episodes)]
    recorder = RecorderState(window=window, episode_rows=episodes, seconds=8.0, paced=(40, 4.0))
    return RunState([learner], PLAN, exact=True, recorder=recorder)


@pytest.mark.parametrize(
    ("episodes", "finished"), [(0, False), (3, False), (99, False), (100, True)]
)
def test_a_goal_is_reached_by_a_hundred_episodes_and_by_no_fewer(
    supervise: Any, episodes: int, finished: bool
) -> None:
    """As in training: a few that were lucky end no run."""
    run = supervise(FakePlacement([]))
    config = replace(run.config, total_env_steps=10**9, stop_at_return=40.0)
    found = find_end(config, run.folder, state_with(episodes))
    assert (found is not None) == finished


@pytest.mark.parametrize(
    ("summary", "stays"),
    [
        ({"seconds": 3.0, "updates": 5, "best_evaluation": 7.0, **DONE}, True),
        ({"seconds": 3.0, "updates": 2, "best_evaluation": 7.0, **DONE}, False),
        ({"updates": 5, "best_evaluation": 7.0, **DONE}, False),
        ({"seconds": 3.0, "updates": 5, "exit": asdict(Exit("failed", "no more"))}, False),
        ({}, False),
    ],
)
def test_a_finished_run_has_the_summary_of_its_last_checkpoint(
    supervise: Any, summary: dict[str, Any], stays: bool
) -> None:
    """Killed between the two, it has that of an earlier session, or none."""
    run = supervise(FakePlacement([]))
    run.folder.write_json("summary.json", summary)
    config = replace(run.config, total_env_steps=50)
    found = find_end(config, run.folder, state_with(3))
    assert found is not None
    assert run.folder.read_json("summary.json") == found.summary
    if stays:
        assert found.summary == summary
    else:
        told = {name: found.summary[name] for name in ("env_steps", "updates", "seconds")}
        assert told == {"env_steps": 50, "updates": 5, "seconds": 8.0}
        assert found.summary["steps_per_second"] == 10.0
        assert found.summary["mean_return_last_100"] == 50.0
        assert found.summary["exit"] == DONE["exit"]


def test_a_finished_run_is_told_as_such_where_its_summary_cannot_be_written(
    supervise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: the next command may write it."""

    def refuse(name: str, content: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = supervise(FakePlacement([]))
    monkeypatch.setattr(run.folder, "write_json", refuse)
    found = find_end(replace(run.config, total_env_steps=50), run.folder, state_with(3))
    assert found is not None
    assert found.summary["env_steps"] == 50
