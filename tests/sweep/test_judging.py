"""What trials are worth: at their limits, of several learners, and with two objectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gossamer.record.objectives import Judge, measure
from gossamer.record.readers import FolderReader


def write_run(folder: Path, rows: list[dict[str, Any]], **summary: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_evaluations(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))


def episodes(returns: list[float], *, learners: int = 1) -> list[dict[str, Any]]:
    return [
        {"env_steps": 10 * (i + 1), "time_s": 0.5 * (i + 1), "return": x, "learner": i % learners, "length": 10}
        for i, x in enumerate(returns)
    ]  # fmt: skip


def test_a_score_that_is_the_highest_possible_can_be_reached(tmp_path: Path) -> None:
    """No CartPole earns more than 500."""
    run = write_run(tmp_path / "run", episodes([500.0] * 120))
    assert measure(FolderReader(run), "steps_to_score", score=500.0) == 1_000
    assert measure(FolderReader(run), "seconds_to_score", score=500.0) == 50.0


def test_of_learners_that_never_mix_the_evaluation_is_the_mean_of_their_last(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", [])
    (run / "config.json").write_text(json.dumps({"topology": {"name": "single"}}))
    told = ((0, 9.0), (1, 8.0), (0, 3.0), (1, 7.0))
    rows = [
        {"env_steps": 10 * i, "time_s": float(i), "learner": learner, "mean": mean}
        for i, (learner, mean) in enumerate(told, 1)
    ]
    write_evaluations(run, rows)
    assert measure(FolderReader(run), "evaluation") == 5.0


def test_with_two_objectives_the_best_by_the_first_is_in_front() -> None:
    judge = Judge(("return", "seconds_to_score"), 1.0)
    values = [(10.0, 5.0), (30.0, 20.0), (20.0, 8.0), (5.0, 9.0)]
    assert judge.best(values) == [1, 2, 0], "the last one is beaten in both"
    turned = Judge(("seconds_to_score", "return"), 1.0)
    assert turned.best([(y, x) for x, y in values]) == [0, 2, 1]
