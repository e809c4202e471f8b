"""Checkpoints on their way to the disk: which are written, when the next is due, and what is on disk meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_placement import PLAN, FakePlacement, part

from gossamer.record.checkpoint import CheckpointStore
from gossamer.run import checkpointing as checkpointing_module
from gossamer.run.checkpoint_contents import RecorderState, RunState


def state_at(updates: int) -> RunState:
    """Return a run's state; ten env steps are behind each update."""
    _, given = part(0, updates=updates)
    recorder = RecorderState(window=[], episode_rows=0, seconds=1.0, paced=(0, 0.0))
    return RunState([given.learners[0]], PLAN, exact=True, recorder=recorder)


@pytest.fixture
def run(supervise: Any) -> Any:
    return supervise(FakePlacement([]), checkpoint_every_seconds=60.0)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Refuses what is written while it is full, and holds it up while it is slow."""
    found = SimpleNamespace(full=False, slow=threading.Event(), writers=0)
    found.slow.set()
    save = CheckpointStore.save

    def saves(self: CheckpointStore, *given: Any) -> Any:
        found.writers += 1
        found.slow.wait(20.0)
        found.writers -= 1
        if found.full:
            raise OSError(28, "No space left on device")
        return save(self, *given)

    monkeypatch.setattr(CheckpointStore, "save", saves)
    yield found
    found.slow.set()


def test_what_the_disk_has_refused_is_written_when_it_is_saved_again(run, disk):
    """As the last checkpoint of a run is that ends where the one before was refused."""
    disk.full = True
    run.checkpoints.save(state_at(3))
    run.checkpoints.wait()
    assert (run.store.list(), run.checkpoints.on_disk) == ([], None)
    disk.full = False
    run.checkpoints.save(state_at(3))
    run.checkpoints.finish()
    assert (run.store.list(), run.checkpoints.on_disk) == ([3], 30)


def test_a_resumed_run_has_its_checkpoint_on_disk_though_the_next_is_refused(run, disk):
    run.checkpoints.load_state(state_at(3))
    disk.full = True
    run.checkpoints.save(state_at(5))
    run.checkpoints.wait()
    assert run.checkpoints.on_disk == 30
    run.checkpoints.take_failure()
    disk.full = False
    run.checkpoints.save(state_at(7))
    run.checkpoints.finish()
    assert run.checkpoints.on_disk == 70


def test_while_one_is_written_the_one_before_is_on_disk_and_no_other_is_due(run, disk, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(checkpointing_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run.checkpoints.begin()
    run.checkpoints.save(state_at(3))
    run.checkpoints.finish()
    disk.slow.clear()
    run.checkpoints.save(state_at(5))
    now[0] += 61.0
    assert run.checkpoints.on_disk == 30
    assert not run.checkpoints.due
    disk.slow.set()
    run.checkpoints.finish()
    assert run.checkpoints.on_disk == 50
    assert run.checkpoints.due


def test_the_time_to_the_next_counts_from_the_last_that_was_saved(run, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(checkpointing_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run.checkpoints.begin()
    now[0] += 61.0
    assert run.checkpoints.due
    run.checkpoints.save(state_at(3))
    run.checkpoints.finish()
    for passed, due in ((0.0, False), (59.0, False), (2.0, True)):
        now[0] += passed
        assert run.checkpoints.due == due


def test_one_is_written_at_a_time(run, disk):
    """Two writers of a folder would drop each other's files."""
    disk.slow.clear()
    run.checkpoints.save(state_at(3))
    other = threading.Thread(target=run.checkpoints.save, args=[state_at(5)])
    other.start()
    other.join(0.3)
    writers, waits = disk.writers, other.is_alive()
    disk.slow.set()
    other.join(20.0)
    run.checkpoints.finish()
    assert (writers, waits) == (1, True)
    assert run.store.list() == [3, 5]
