"""Runs of a sweep on a cluster: what comes home of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is an optional extra")

from gossamer.run.placements.cluster.remote_runs import Change, Changes
from gossamer.sweep.cluster_site import keep
from gossamer.sweep.pool import PlannedRun


def test_what_a_run_has_cut_off_goes_at_home_too(tmp_path: Path) -> None:
    run = PlannedRun("000/s1", tmp_path / "s1", 1)
    keep(run, Changes(None, {"s1/metrics.jsonl": Change(0, b"one\ntwo\nthree\n")}, []))
    keep(run, Changes(None, {"s1/metrics.jsonl": Change(4, b"2\n")}, []))
    assert (tmp_path / "s1" / "metrics.jsonl").read_text() == "one\n2\n"


def test_a_checkpoint_that_came_home_in_part_has_no_manifest(tmp_path: Path) -> None:
    """Or a run that is resumed here would take it for a damaged one, or for a whole one."""
    run = PlannedRun("000/s1", tmp_path / "s1", 1)
    checkpoint = tmp_path / "s1" / "checkpoints" / "10"
    (checkpoint / "tensors.safetensors").mkdir(parents=True)  # cannot be written
    names = ("manifest.json", "state.json", "tensors.safetensors")
    changed = {f"s1/checkpoints/10/{name}": Change(0, b"{}") for name in names}
    with pytest.raises(OSError, match=r"tensors.safetensors"):
        keep(run, Changes(None, changed, []))
    assert not (checkpoint / "manifest.json").exists()
