"""What trials are worth: at their limits, of several learners, and with two objectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.record.objectives import (
    Judge,
    evaluations_of_policy,
    last_evaluation,
    last_score,
    measure,
)
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


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "learner": st.sampled_from([0, 1, "average"]),
                "mean": st.floats(-9, 9),
                "confirmation": st.booleans(),
                "scored_by": st.sampled_from(["now", "before"]),
            }
        ),
        max_size=12,
    ),
    name=st.sampled_from(["single", "gossip", "allreduce"]),
    mark=st.sampled_from(["now", "before", None]),
)
def test_the_last_score_is_that_of_the_evaluations_that_count(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    name: str,
    mark: str | None,
) -> None:
    run = write_run(tmp_path_factory.mktemp("run"), [])
    settings = {"num_learners": 2, "topology": {"name": name}}
    (run / "config.json").write_text(json.dumps(settings))
    (run / "meta.json").write_text(json.dumps({"scored_by": mark}))
    write_evaluations(run, rows)
    count = evaluations_of_policy(FolderReader(run))
    last = {x["learner"]: x["mean"] for x in count}
    expected = None if not last else pytest.approx(sum(last.values()) / len(last))
    assert last_evaluation(FolderReader(run)) == expected


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({"num_learners": 1, "topology": {"name": "single"}}, 1),
        ({"num_learners": 2, "topology": {"name": "gossip"}}, 2),
    ],
)
def test_no_more_rows_are_read_than_the_last_score_takes(
    settings: dict[str, Any], read: int
) -> None:
    """The dashboard asks for that of hundreds of runs, whenever one of their files grows."""
    learners = [None] if read == 1 else [0, "average"]
    rows = iter([{"learner": learners[i % read], "mean": 1.0, "scored_by": "x"} for i in range(9)])
    assert last_score(rows, "x", settings) == 1.0
    assert len([*rows]) == 9 - read


def test_with_two_objectives_the_best_by_the_first_is_in_front() -> None:
    judge = Judge(("return", "seconds_to_score"), 1.0)
    values = [(10.0, 5.0), (30.0, 20.0), (20.0, 8.0), (5.0, 9.0)]
    assert judge.best(values) == [1, 2, 0], "the last one is beaten in both"
    turned = Judge(("seconds_to_score", "return"), 1.0)
    assert turned.best([(y, x) for x, y in values]) == [0, 2, 1]
