"""What a trial of a sweep is worth on the page: by the limits and learners of its own runs, and of all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_sweeps import add_trial, make_sweep

from gossamer.dashboard.listing import Listing
from gossamer.dashboard.root import Root
from gossamer.dashboard.sweeps import Sweeps


def told(root: Path) -> dict[str, Any]:
    """Return the sweep as the page has it."""
    listing = Listing(Root(root))
    listing.look()
    return Sweeps(Root(root), listing).sweep("sweeps/rates")


def episodes(run: Path, *rows: tuple[int, float, float, int]) -> None:
    """Write a run's episodes: env steps, seconds, return and learner of each."""
    names = ("env_steps", "time_s", "return", "learner")
    lines = (json.dumps({**dict(zip(names, row, strict=True)), "length": 10}) for row in rows)
    (run / "episodes.jsonl").write_text("".join(line + "\n" for line in lines))


def test_a_trial_is_done_when_all_of_its_runs_are(tmp_path: Path) -> None:
    """One of a third seed, which an earlier command has begun, still counts."""
    sweep = make_sweep(tmp_path, seeds=2)
    add_trial(sweep, 0, [100.0, 120.0])
    *_, third = add_trial(sweep, 1, [400.0, 500.0, 1.0])
    (third / "summary.json").unlink()
    found = told(tmp_path)
    first, second = found["trials"]
    assert (first["state"], first["values"]) == ("done", [110.0])
    assert (second["state"], second["values"]) == ("unfinished", [None])
    assert found["best"] == [0]


def test_an_area_goes_on_to_the_limit_of_time_of_a_run_that_stopped_early(tmp_path: Path) -> None:
    """It reached its return after 2 of its 4 seconds: at its pace it would have come to 4,000 env steps."""
    sweep = make_sweep(tmp_path, objective=["area"])
    (run,) = add_trial(sweep, 0, [20.0], words=["--stop-after-seconds", "4"])
    episodes(run, (1_000, 1.0, 10.0, 0), (2_000, 2.0, 30.0, 0))
    (run / "summary.json").write_text('{"exit_reason": "done: stop_at_return reached"}')
    (trial,) = told(tmp_path)["trials"]
    # Means 10, 10, 20 at 0, 1,000 and 2,000 env steps, and 20 from there on.
    wanted = (1_000 * 10 + 1_000 * 15 + 2_000 * 20) / 4_000
    assert trial["values"] == [pytest.approx(wanted)]


def test_a_score_is_reached_when_every_learner_has_its_share_of_episodes(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, objective=["steps_to_score"], score=100.0)
    words = ["topology:gossip", "--num-learners", "2"]
    (run,) = add_trial(sweep, 0, [150.0], words=words)
    episodes(run, *((100 * (i + 1), 1.0, 150.0, i % 2) for i in range(120)))
    (trial,) = told(tmp_path)["trials"]
    assert trial["values"] == [10_000], "at the 100th episode, the 50th of each"


def test_seeds_that_have_not_begun_are_still_to_come(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, seeds=4)
    add_trial(sweep, 0, [10.0], words=["--total-env-steps", "2000"])
    (trial,) = told(tmp_path)["trials"]
    assert trial["env_steps"] == 2_000
    assert trial["progress"] == 0.25
