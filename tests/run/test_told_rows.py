"""What is told of learners: rows that leave no batch out, however often they are written, and who is the best."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from fake_placement import FakePlacement, Supervised
from runs import SMALL, rows_of

import gossamer
from gossamer.roles.evaluation import Evaluation
from gossamer.roles.evaluator import Source
from gossamer.run.placements import metric_rows as rows_module
from gossamer.run.placements.metric_rows import OTHERS_ROW_SECONDS, Rows
from gossamer.run.scoring import best_of


class Learner:
    """Counts what it has learnt since it was last asked, which its metrics tell."""

    def __init__(self, rank):
        self.rank, self.learnt, self.told, self.lag_versions_max = rank, 0, 0, 0.0
        self.env_steps = self.update = self.version = 0
        self.mixer, self.replay = None, SimpleNamespace(replays=[])
        self.num_learners, self.own_env_steps = 6, 0
        self.seconds = {"learn": 0.0, "wait": 0.0}

    def learn(self, lag):
        self.learnt += 1
        self.lag_versions_max = lag
        self.seconds["learn"] += 0.25

    def take_metrics(self):
        new, self.told = self.learnt - self.told, self.learnt
        return {"batches": new}


def group_of(ranks):
    parts = [
        SimpleNamespace(
            learner=Learner(rank),
            actor=SimpleNamespace(seconds={"env": 0.0, "inference": 0.0}, processes=[]),
            queue=SimpleNamespace(waited_seconds={"slot": 0.0}),
            board=SimpleNamespace(waited_seconds=0.0),
            plan=SimpleNamespace(device="cuda", lag=0, actors=0),
            policy=SimpleNamespace(device=torch.device("cuda", rank)),
            checkpoint_seconds=0.0,
        )
        for rank in ranks
    ]
    return SimpleNamespace(parts=parts)


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """GPU k holds k bytes and is busy for 10 k % of the time."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: device.index)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 10 * device.index)


def test_a_row_tells_of_its_learners_own_gpu():
    rows = Rows(group_of((0, 2))).make(last=True)
    assert [(row["gpu_memory_bytes"], row["gpu_percent"]) for row in rows] == [(0, 0), (2, 20)]


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2), (4, 5)])
def test_no_batch_is_between_rows(monkeypatch, ranks):
    now = [100.0]
    monkeypatch.setattr(rows_module.time, "monotonic", lambda: now[0])
    group = group_of(ranks)
    rows, found = Rows(group), []
    made = dict.fromkeys(ranks, 0)
    for second in range(35):
        now[0] += 1.0
        for parts in group.parts:
            parts.learner.learn(lag=9.0 if second == 13 else 1.0)
        rows.note()
        one = rows.make(last=second == 34)
        found += one
        for row in one:
            made[row["learner"]] += 1
    for rank in ranks:
        own = [row for row in found if row["learner"] == rank]
        assert sum(row["batches"] for row in own) == 35
        assert max(row["lag_versions_max"] for row in own) == 9.0
        assert [row["lag_versions_max"] for row in own].count(9.0) == 1
        # a quarter of a second in each
        assert all(row["share/learn"] == pytest.approx(0.25) for row in own[1:])
        assert made[rank] == (35 if rank == 0 else 1 + int(34 // OTHERS_ROW_SECONDS) + 1)


def test_a_row_of_a_moment_has_no_shares(monkeypatch):
    # A wait counts where it ends: in the last 20 ms of a run more may end than began.
    now = [100.0]
    monkeypatch.setattr(rows_module.time, "monotonic", lambda: now[0])
    group = group_of([0])
    rows, found = Rows(group), []
    for pause in (1.0, 1.0, 0.02):
        now[0] += pause
        group.parts[0].learner.learn(lag=1.0)
        found += rows.make()
    assert ["share/learn" in row for row in found] == [False, True, False]


def test_a_last_row_of_no_new_version_tells_what_the_row_before_told():
    """A function that is told rows and has stopped the run looks for the same names in the last one."""
    group = group_of([0])
    learner, rows = group.parts[0].learner, Rows(group)
    found = []
    for version, metrics in ((1, {"learner/loss": 2.0}), (1, {}), (2, {})):
        learner.version, learner.take_metrics = version, lambda told=metrics: told
        found += rows.make(last=True)
    assert [row.get("learner/loss") for row in found] == [2.0, 2.0, None]


def test_the_best_learner_is_one_with_a_score():
    assert best_of({}) is None
    assert best_of({0: float("nan"), 1: -3.0, 2: -2.0}) == 2
    assert best_of({0: float("nan")}) is None


def test_the_last_row_tells_of_the_last_evaluation(tmp_path):
    told, ends, result = [], [], None
    given = {**SMALL, "evaluation": {"every_seconds": 1000.0, "episodes": 2}}
    begun = {"task": "CartPole-v1", **given, "run_folder": str(tmp_path / "run")}
    for steps in (640, 1280):
        words = {"resume": result} if result else begun
        result = gossamer.train(**words, total_env_steps=steps, quiet=True, on_row=told.append)
        ends.append(result.summary["env_steps"])
        rows, evaluations = rows_of(result.folder), rows_of(result.folder, "evaluation")
        mean = [x["mean"] for x in evaluations if not x["confirmation"]][-1]
        assert rows == told, "no row twice"
        assert rows[-1]["env_steps"] == rows[-1]["evaluation_env_steps"] == ends[-1]
        assert rows[-1]["evaluation_mean"] == mean
        assert rows[-1]["evaluation_best"] == result.summary["best_evaluation"]
    assert [row["env_steps"] for row in rows if "evaluation_env_steps" in row] == ends


def test_tensorboard_tells_of_every_evaluation(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Supervised(tmp_path, FakePlacement([]), tensorboard=True)
    rows = [{"learner": 0, "updates": 1, "version": 1, "env_steps": 50}]
    for at, mean in ((10, 1.0), (20, 3.0), (40, 2.0)):
        if at == 40:  # after the last row of training
            run.recorder.on_rows(rows, 50, disagreement=None, last=True)
        result = Evaluation((mean,), (1,), 0)
        run.recorder.on_evaluation(result, Source(at), (at, at), ships=True)
    run.recorder.write_last_row()
    run.close()
    (row,) = run.rows()
    assert (row["env_steps"], row["evaluation_env_steps"]) == (50, 40)
    events = EventAccumulator(str(run.folder.path / "tensorboard"))
    events.Reload()
    means = [(event.step, event.value) for event in events.Scalars("evaluation_mean")]
    assert means == [(10, 1.0), (20, 3.0), (40, 2.0)]
    assert events.Scalars("hparam/evaluation_mean")[-1].value == 2.0


def test_where_the_machine_has_slept_it_is_written_down_what_time_it_is(
    tmp_path, monkeypatch
) -> None:
    held = Supervised(tmp_path, FakePlacement([]))
    recorder, row = held.recorder, {"learner": 0, "env_steps": 10}

    def clocks() -> list[list[float]]:
        return held.folder.read_json("meta.json")["sessions"][-1].get("clock", [])

    def tell() -> None:
        recorder.on_rows([dict(row)], 10, disagreement=None)

    tell()
    assert clocks() == []
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3_600)
    for _ in range(2):
        before = recorder.seconds()
        tell()
        ((unix, seconds),) = clocks()
    assert before - 5 < seconds <= before
    assert unix - seconds == pytest.approx(3_600, abs=1.0)  # it began at 0
    held.close()


def test_rows_after_a_return_to_a_checkpoint_tell_no_evaluation_of_what_was_dropped(
    tmp_path,
) -> None:
    held = Supervised(tmp_path, FakePlacement([]))
    recorder = held.recorder
    recorder.on_evaluation(Evaluation((5.0,), (3,), 0), Source(7, 0), (7, 700), ships=True)
    recorder.go_back(None)
    recorder.on_rows([{"learner": 0, "env_steps": 10}], 10, disagreement=None)
    assert "evaluation_mean" not in rows_of(held.folder.path)[-1]
    held.close()
