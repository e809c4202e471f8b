"""Checkpoints of many learners, and of those that were discarded."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from gossamer.record.checkpoint import CheckpointStore, Score

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=3)


def some(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3, 4), value), "steps": torch.tensor(7)}


def leave_old(store: CheckpointStore, name: str) -> None:
    """Leave what a kill leaves that came before an older checkpoint of that name was removed."""
    shutil.copytree(store.folder / name, store.folder / f"{name}.old")


def test_what_is_discarded_does_not_come_back_after_a_kill(store: CheckpointStore) -> None:
    """A future that was given up, or a candidate that was not confirmed, would be taken for the run's."""
    for updates in (1, 2):
        store.save(updates, some(updates), {})
    store.save_scored("candidate", 2, some(2), {}, Score(9.0, 5))
    for name in ("2", "candidate"):
        leave_old(store, name)
    assert store.discard_after(1) == [2]
    store.discard("candidate")
    assert (store.list(), store.score("candidate")) == ([1], None)
    store.save(3, some(3), {})  # the next writer clears up
    assert (store.list(), store.score("candidate")) == ([1, 3], None)


def test_the_state_of_many_learners_is_read_back(store: CheckpointStore) -> None:
    state = {"window": [[rank, [0.5] * 100, [10] * 100] for rank in range(1000)]}  # 1 MB
    store.save(1, {}, state)
    assert store.load("last").state == state
