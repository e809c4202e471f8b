"""A run's records over sessions and returns to a checkpoint: its pace, its mean returns, its episodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_placement import FakePlacement

from gossamer.record.window import OfLearner
from gossamer.roles.acting_group import Episode
from gossamer.run import pace as pace_module
from gossamer.run.checkpoint_contents import RecorderState

KEPT = RecorderState(
    window=[OfLearner(0, [2.0], [10])], episode_rows=1, seconds=100.0, paced=(500, 50.0)
)
"""Of a run that had learnt 500 steps in 50 seconds."""


@pytest.fixture
def now(monkeypatch):
    found = [1000.0]
    monkeypatch.setattr(pace_module, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


def episode(value: float, env_steps: int = 1) -> Episode:
    return Episode(
        env=0, number=0, episode_return=value, length=10, env_steps=env_steps, truncated=False
    )


def test_the_pace_of_a_resumed_run_is_that_of_all_its_sessions(supervise, now):
    recorder = supervise(FakePlacement([])).recorder
    recorder.load_state(KEPT)
    recorder.pace.on_version(520)
    now[0] += 10.0
    assert recorder.pace.per_second(620) == pytest.approx((500 + 100) / (50 + 10))
    assert recorder.state(620).paced == (600, 60.0)


def test_steps_that_a_return_to_a_checkpoint_has_taken_back_are_in_no_pace(supervise, now):
    recorder = supervise(FakePlacement([])).recorder
    recorder.load_state(KEPT)
    recorder.pace.on_version(510)
    now[0] += 100.0
    recorder.pace.on_version(9_000)
    recorder.go_back(KEPT)
    recorder.pace.on_version(520)
    now[0] += 10.0
    recorder.pace.on_version(620)
    assert recorder.pace.per_second(620) == pytest.approx(10.0)


def test_the_time_after_the_last_version_is_in_no_pace(supervise, now):
    """Evaluations, and whatever else a run ends with, learn nothing."""
    pace = supervise(FakePlacement([])).recorder.pace
    pace.on_version(100)
    now[0] += 10.0
    pace.on_version(300, last=True)
    now[0] += 90.0
    assert pace.per_second(300) == pytest.approx(20.0)


@pytest.mark.parametrize(("kept", "mean"), [(KEPT, 2.0), (None, None)])
def test_episodes_after_the_checkpoint_that_a_run_returns_to_are_in_no_mean(supervise, kept, mean):
    recorder = supervise(FakePlacement([])).recorder
    recorder.load_state(KEPT)
    for _ in range(100):
        recorder.on_episode(episode(50.0), 0, 500)
    recorder.go_back(kept)
    assert recorder.window.mean() == mean
    assert not recorder.window.full
