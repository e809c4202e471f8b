"""What is told of a run that trains again, or has many checkpoints, is of now."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from made_sweeps import working
from scored_runs import make_run

from gossamer.dashboard.details import checkpoints
from gossamer.dashboard.listing import Listing
from gossamer.dashboard.root import Root
from gossamer.record.metrics import MetricLog


def test_a_resumed_run_tells_of_its_newest_row_and_not_of_the_session_before(
    tmp_path: Path,
) -> None:
    """Its summary is the last session's until it ends again."""
    folder = make_run(tmp_path, "run", ["--total-env-steps", "8000"], returns=(10.0, 20.0))
    before = {
        "exit_reason": "stopped by SIGINT",
        "env_steps": 2_000,
        "seconds": 2.0,
        "mean_return_last_100": 20.0,
        "steps_per_second": 1_000.0,
        "best_evaluation": 15.0,
    }
    (folder / "summary.json").write_text(json.dumps(before))
    row = {"time_s": 6.0, "env_steps": 6_000, "learner": 0, "episodes": 600}
    with working(folder):
        log = MetricLog(folder / "metrics.jsonl")
        log.write({**row, "return_mean_100": 70.0, "steps_per_second": 800.0})
        log.close()
        later = (folder / ".lock").stat().st_mtime + 10
        os.utime(folder / "metrics.jsonl", (later, later))  # a row of this session
        listing = Listing(Root(tmp_path))
        listing.look()
        (run,) = listing.runs()
    assert run["state"] == "running"
    assert (run["env_steps"], run["seconds"], run["mean_return"]) == (6_000, 6.0, 70.0)
    assert (run["steps_per_second"], run["progress"]) == (800.0, pytest.approx(0.75))


def test_the_last_checkpoint_is_the_one_of_most_updates(tmp_path: Path) -> None:
    """900 comes after 1000 in the order of letters."""
    for name in ("900", "1000", "best"):
        folder = tmp_path / "run/checkpoints" / name
        folder.mkdir(parents=True)
        updates = 900 if name == "best" else int(name)
        manifest = {"updates": updates, "files": {"state.json": {"bytes": 2}}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "state.json").write_text("{}")
    with Root(tmp_path).run("run") as files:
        found = checkpoints(files)
    assert {x["name"]: x["kinds"] for x in found} == {"900": [], "best": ["best"], "1000": ["last"]}
    assert found[-1]["name"] == "1000"


def test_a_run_that_is_killed_is_told_though_none_of_its_files_change(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", done=False)
    listing = Listing(Root(tmp_path))
    told: list[str] = []
    listing.on_change = lambda changes: told.extend(run["state"] for run in changes.runs)
    with working(folder):
        listing.look()
        listing.look()
    listing.look()  # kill -9 leaves nothing but a lock that nobody holds
    assert told == ["running", "killed"]
    assert listing.runs()[0]["state"] == "killed"
