"""Runs of a sweep that were killed: those with a checkpoint go on, the others begin anew."""

from __future__ import annotations

import json
from pathlib import Path

from gossamer.record.checkpoint import CheckpointStore
from gossamer.sweep.local_site import make_room
from gossamer.sweep.pool import PlannedRun


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    """There is nothing to resume, and a run that is told to resume would fail."""
    run = PlannedRun("000/s1", tmp_path / "s1", 1)
    run.folder.mkdir()
    for name in ("config.json", "meta.json"):
        (run.folder / name).write_text(json.dumps({}))
    (run.folder / "metrics.jsonl").write_text('{"env_steps": 1}\n')
    (run.folder / "checkpoints" / "1.partial").mkdir(parents=True)
    assert not make_room(run)
    assert not run.folder.exists()


def test_a_run_with_a_checkpoint_is_kept_and_resumed(tmp_path: Path) -> None:
    run = PlannedRun("000/s1", tmp_path / "s1", 1)
    run.folder.mkdir()
    (run.folder / "config.json").write_text(json.dumps({}))
    (run.folder / "checkpoints").mkdir()
    CheckpointStore(run.folder / "checkpoints", keep=0).save(3, {}, {})
    assert make_room(run)
    assert CheckpointStore(run.folder / "checkpoints", keep=0).list() == [3]
