"""What trials are worth, against slow references; what matters, against scipy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.record.objectives import (
    MAX_SEEDS,
    NEVER,
    Judge,
    Point,
    area,
    curve,
    evaluations,
    is_never,
    measure,
    shown_value,
)
from gossamer.record.readers import FolderReader
from gossamer.sweep.space import Choices, Range
from gossamer.sweep.statistics import importance, importances, interval, ranks
from gossamer.topology.allreduce import AllReduce
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip
from gossamer.topology.single import Single


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


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=300), st.integers(1, 3))
def test_a_curve_is_that_of_the_last_100_episodes(returns: list[float], learners: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = curve(
            FolderReader(write_run(Path(folder), episodes(returns, learners=learners))), learners
        )
    each = math.ceil(100 / learners)
    for end, point in enumerate(found, 1):
        own = [returns[:end][rank::learners][-each:] for rank in range(learners)]
        own = [x for x in own if x]
        assert point.mean == pytest.approx(sum(sum(x) / len(x) for x in own) / len(own), abs=1e-6)
        assert point.full == (len(own) == learners and all(len(x) == each for x in own))


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(-100, 100)), min_size=1, max_size=30))
def test_an_area_is_the_mean_height(found: list[tuple[int, float]]) -> None:
    steps, points = 0, []
    for more, mean in found:
        steps += more
        points.append(Point(steps, 0.0, mean, False))
    heights: list[float] = []  # in the middle of every step
    before = Point(0, 0.0, points[0].mean, False)
    for point in points:
        width = point.env_steps - before.env_steps
        heights += [
            before.mean + (point.mean - before.mean) * (i + 0.5) / width for i in range(int(width))
        ]
        before = point
    assert area(points) == pytest.approx(sum(heights) / len(heights), abs=1e-9)


def test_a_run_that_reached_its_target_keeps_its_height_to_the_end(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", episodes([100.0] * 10), exit_reason="done: stop_at_return reached"
    )
    assert measure(FolderReader(run), "area", total_env_steps=1000) == pytest.approx(100.0)
    points = [Point(100, 0.0, 0.0, True), Point(200, 0.0, 100.0, True)]
    assert area(points) == pytest.approx(25.0)
    assert area(points, until=400) == pytest.approx((0 * 100 + 50 * 100 + 100 * 200) / 400)
    assert area(points[::-1], until=400) == area(points, until=400), "of learners that do not wait"


def test_nor_is_it_kept_for_longer_than_the_run_would_have_trained(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        episodes([0.0] * 10 + [100.0] * 10),
        exit_reason="done: stop_at_return reached",
    )
    points = curve(FolderReader(run))  # 200 env steps in 10 s
    for seconds, until in ((20.0, 400), (0.0, 1000), (100.0, 1000), (5.0, 0)):
        told = measure(FolderReader(run), "area", total_env_steps=1000, stop_after_seconds=seconds)
        assert told == pytest.approx(area(points, until))


def test_a_score_counts_once_there_are_100_episodes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", episodes([500.0] + [10.0] * 99 + [600.0] * 100))
    # The first episode alone is above 475: it does not count.
    steps = measure(FolderReader(run), "steps_to_score", score=475)
    means = [x.mean for x in curve(FolderReader(run))]
    first = next(i for i, x in enumerate(means) if i >= 99 and x >= 475)
    assert steps == 10 * (first + 1)
    assert measure(FolderReader(run), "seconds_to_score", score=475) == 0.5 * (first + 1)
    assert measure(FolderReader(run), "seconds_to_score", score=1e6) == NEVER


def test_of_a_run_on_a_cluster_the_learners_that_are_there_count(tmp_path: Path) -> None:
    """Learner 2 is never there, learner 1 is lost at 50 s and back at 100 s; each second an episode of each ends."""
    rows = [
        {"env_steps": 10 * second, "time_s": float(second), "return": 8.0 - 6 * rank, "learner": rank}
        for second in range(1, 151)
        for rank in (0, 1)
        if rank == 0 or not 50 <= second < 100
    ]  # fmt: skip
    run = write_run(tmp_path / "run", rows)
    told = [
        {"learner": 0, "time_s": at, "cluster/learners": len(ranks), **{f"learner/return_of_{x}": 1.0 for x in ranks}}
        for at, ranks in ((1.5, (0, 1)), (49.5, (0,)), (99.5, (0, 1)))
    ]  # fmt: skip
    own = {"learner": 1, "time_s": 60.0, "learner/return_mean_100": 1.0}
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(x) + "\n" for x in [*told[:2], own, told[2]])
    )
    points = {
        point.seconds: point for point in curve(FolderReader(run), 3)
    }  # the last of each second
    assert [points[x].mean for x in (10.0, 49.0, 50.0, 99.0, 101.0, 150.0)] == [5, 5, 8, 8, 5, 5]
    full = [x for x, point in points.items() if point.full]
    assert full[0] == 100.0, "the fiftieth of learner 1; of learner 0 alone there were 99"
    (run / "metrics.jsonl").unlink()
    assert not any(point.full for point in curve(FolderReader(run), 3)), (
        "as nobody tells that learner 2 is not there"
    )


def test_never_is_no_great_number_of_steps() -> None:
    """A mean over as many seeds as a trial may have tells if one of them never got there."""
    for seeds in (1, 3, MAX_SEEDS):
        assert is_never("steps_to_score", (NEVER + (seeds - 1) * 100.0) / seeds)
        assert shown_value("seconds_to_score", NEVER / seeds) == "never"
    assert not is_never("steps_to_score", 1e11)
    assert not is_never("return", NEVER)
    assert shown_value("steps_to_score", 3_456_789.0) == "3,456,789"


def test_what_files_do_not_tell_is_none(tmp_path: Path) -> None:
    assert measure(FolderReader(tmp_path), "return") is None
    assert measure(FolderReader(tmp_path), "area") is None
    assert (
        measure(FolderReader(write_run(tmp_path / "x", [], best_evaluation="high")), "evaluation")
        is None
    )
    (tmp_path / "x" / "episodes.jsonl").write_text('{"return": "no"}\n[1]\nnot json\n{"cut": ')
    assert curve(FolderReader(tmp_path / "x")) == []


def test_evaluations_of_the_policy_fall_into_twentieths(tmp_path: Path) -> None:
    """Where learners mix, these are of their average."""
    rows = [
        {"env_steps": 10, "mean": 1.0, "time_s": 1.0},
        {"env_steps": 40, "mean": 2.0, "time_s": 2.0},
        {"env_steps": 51, "mean": 3.0, "time_s": 3.0},
        {"env_steps": 110, "mean": 9.0, "time_s": 3.0, "confirmation": True},
        {"env_steps": 210, "mean": 9.0, "time_s": 3.0, "learner": 1},
        {"env_steps": 1000, "mean": 4.0, "time_s": 99.0},
        {"env_steps": 1020, "mean": 5.0, "time_s": 100.0},
    ]
    write_evaluations(tmp_path, [{"learner": "average", **row} for row in rows])
    assert evaluations(FolderReader(tmp_path), total_env_steps=1000) == {1: 1.0, 2: 3.0, 20: 4.0}
    timed = evaluations(FolderReader(tmp_path), total_env_steps=10**9, stop_after_seconds=100.0)
    assert timed == {1: 1.0, 20: 4.0}
    write_evaluations(tmp_path, [row for row in rows if "learner" not in row])
    assert evaluations(FolderReader(tmp_path), total_env_steps=1000) == {1: 1.0, 2: 3.0, 20: 4.0}


def test_the_objective_evaluation_is_the_last_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [], best_evaluation=9.0)
    assert measure(FolderReader(run), "evaluation") is None, "there was none"
    rows = [
        {"env_steps": 10, "mean": 9.0, "time_s": 1.0, "learner": "average"},
        {"env_steps": 20, "mean": 2.0, "time_s": 2.0, "learner": "average"},
        {"env_steps": 20, "mean": 7.0, "time_s": 3.0, "learner": "average", "confirmation": True},
        {"env_steps": 30, "mean": 5.0, "time_s": 4.0, "learner": 1},
    ]
    write_evaluations(run, rows)
    assert measure(FolderReader(run), "evaluation") == 2.0


def test_learners_that_mix_no_more_are_told_by_their_own_evaluations(tmp_path: Path) -> None:
    rows = [
        {"env_steps": 10, "mean": 9.0, "time_s": 1.0, "learner": "average"},
        {"env_steps": 20, "mean": 1.0, "time_s": 2.0, "learner": 1},
    ]
    for topology in (Single, AllReduce, Diffusion, Gossip):
        run = write_run(tmp_path / topology.name, [])
        write_evaluations(run, rows)
        (run / "config.json").write_text(json.dumps({"topology": {"name": topology.name}}))
        mixes = topology.run_policy == "average"
        assert measure(FolderReader(run), "evaluation") == (9.0 if mixes else 1.0)
        write_evaluations(run, rows[:1])
        assert measure(FolderReader(run), "evaluation") == (9.0 if mixes else None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_a_front_is_what_nothing_beats(values: list[tuple[int, int]]) -> None:
    judge = Judge(("return", "seconds_to_score"), 1.0)
    slow = [
        i
        for i, (score, seconds) in enumerate(values)
        if not any(s >= score and t <= seconds and (s > score or t < seconds) for s, t in values)
    ]
    assert judge.front([(float(x), float(y)) for x, y in values]) == slow


def test_intervals_are_those_of_compare() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = [3.0, 5.0, 4.0, 8.0]
    low, high = stats.t.interval(0.95, 3, loc=5.0, scale=stats.sem(values))
    assert interval(values) == pytest.approx((low, high), abs=1e-6)
    assert interval([1.0]) is None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_ranks_are_scipys(values: list[int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert ranks([float(x) for x in values]) == list(stats.rankdata(values))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=6, max_size=40))
def test_importance_is_that_of_kruskal_and_wallis(trials: list[tuple[str, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    setting, worth = [x for x, _ in trials], [float(y) for _, y in trials]
    found = importance(setting, worth, Choices(("a", "b", "c")))
    groups = [
        [y for x, y in zip(setting, worth, strict=True) if x == name] for name in set(setting)
    ]
    n, k = len(trials), len(groups)
    if k < 2 or n <= k or len(set(worth)) < 2:
        assert found is None
        return
    h = stats.kruskal(*groups).statistic
    assert found == pytest.approx(max(0.0, (h - k + 1) / (n - k)), abs=1e-9)


def test_a_setting_that_decides_matters_and_one_that_does_not_does_not() -> None:
    decides = [i / 30 for i in range(30)]
    idle = [(7 * i % 30) / 30 for i in range(30)]
    worth = [x**2 for x in decides]
    domain = Range(0.0, 1.0)
    strong, weak = importance(decides, worth, domain), importance(idle, worth, domain)
    assert strong is not None
    assert weak is not None
    assert strong > 0.8
    assert weak < 0.1
    assert importance(decides[:5], worth[:5], domain) is None


def test_a_setting_that_not_all_experiments_have_has_an_importance_too() -> None:
    chosen: list[dict[str, Any]] = [{"passes": 2}, {}] * 4
    space = {"passes": Choices((2,)), "rate": Choices((1,))}
    assert importances(chosen, [2.0, 1.0] * 4, space) == {"passes": 1.0}
