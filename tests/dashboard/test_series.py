"""A chart of one run: which rows are its points, and which session's clock each of them has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored_runs import evaluation_row

from gossamer.dashboard.columns import Columns
from gossamer.dashboard.root import Root
from gossamer.dashboard.series import read_series


def write(run: Path, name: str, rows: list[dict[str, Any]]) -> None:
    run.mkdir(exist_ok=True)
    (run / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_confirmation_of_the_best_policy_is_no_point_of_the_curve(tmp_path: Path) -> None:
    """It is of a policy that the run has left, and of the luckiest one."""
    told = [(10.0, 1_000, False), (90.0, 1_000, True), (20.0, 2_000, False), (95.0, 2_000, True)]
    rows = [evaluation_row(mean, at, confirmation=again) for mean, at, again in told]
    write(tmp_path / "run", "evaluation.jsonl", rows)
    root = Root(tmp_path)
    columns = Columns(root)
    found = read_series(root, columns, "run", "evaluation/mean", "env_steps")
    columns.close()
    assert found.x.tolist() == [1_000, 2_000]
    assert found.y.tolist() == [10.0, 20.0]


def test_a_row_with_words_in_place_of_a_number_has_no_point_over_that_number_alone(
    tmp_path: Path,
) -> None:
    """Columns that were read at other times have all the same rows."""
    rows = [{"env_steps": x, "updates": x, "loss": 1.0} for x in range(4)]
    rows[1]["updates"] = "one"  # type: ignore[assignment]
    write(tmp_path / "run", "metrics.jsonl", rows)
    root = Root(tmp_path)
    columns = Columns(root)
    for axis, wanted in (("env_steps", [0, 1, 2, 3]), ("updates", [0, 2, 3])):
        found = read_series(root, columns, "run", "loss", axis)  # type: ignore[arg-type]
        assert found.x[np.isfinite(found.x)].tolist() == wanted
    columns.close()


def test_a_resume_from_an_earlier_checkpoint_takes_the_place_of_what_was_lost(
    tmp_path: Path,
) -> None:
    """Two sessions went on from seconds 100 and 120, the last one from 40: no row is of those two any more."""
    write(
        tmp_path / "run",
        "metrics.jsonl",
        [
            {"time_s": float(x), "env_steps": x, "learner": 0, "updates": x}
            for x in range(0, 200, 10)
        ],
    )
    began = [(1_000.0, 0.0), (5_000.0, 100.0), (7_000.0, 120.0), (9_000.0, 40.0)]
    sessions = [{"time_unix": unix, "seconds_before": before} for unix, before in began]
    (tmp_path / "run/meta.json").write_text(json.dumps({"sessions": sessions}))
    root = Root(tmp_path)
    columns = Columns(root)
    found = read_series(root, columns, "run", "updates", "time")
    columns.close()
    seconds = np.arange(0.0, 200.0, 10.0)
    wanted = np.where(seconds <= 40.0, 1_000.0 + seconds, 9_000.0 + seconds - 40.0)
    assert found.x == pytest.approx(wanted)
    assert np.all(np.diff(found.x) > 0), "time does not go back"
