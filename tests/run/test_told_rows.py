"""What is told of learners: rows that leave no batch out, however often they are written, and who is the best."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gossamer.run import rows as rows_module
from gossamer.run.control import best_of, best_saved_in
from gossamer.run.placements.fleet import Fleet
from gossamer.run.rows import OTHERS_ROW_SECONDS, Rows, Told


class Learner:
    """Counts what it has learnt since it was last asked, which its metrics tell."""

    def __init__(self, rank):
        self.rank, self.learnt, self.told, self.lag_versions = rank, 0, 0, 0.0
        self.env_steps = self.update = self.version = 0
        self.mixer, self.replay = None, SimpleNamespace(replays=[])
        self.seconds = {"learn": 0.0, "wait": 0.0}

    def learn(self, lag):
        self.learnt += 1
        self.lag_versions = lag
        self.seconds["learn"] += 0.25

    def take_metrics(self):
        new, self.told = self.learnt - self.told, self.learnt
        return {"batches": new}


def group_of(ranks):
    parts = [
        SimpleNamespace(
            learner=Learner(rank),
            actor=SimpleNamespace(seconds={"env": 0.0, "inference": 0.0}),
            queue=SimpleNamespace(waited_seconds={"slot": 0.0}),
            board=SimpleNamespace(waited_seconds=0.0),
            plan=SimpleNamespace(device="cpu"),
            checkpoint_seconds=0.0,
        )
        for rank in ranks
    ]
    return SimpleNamespace(parts=parts, evaluator=None)


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


def test_the_best_learner_is_one_with_a_score():
    assert best_of({}) is None
    assert best_of({0: float("nan"), 1: -3.0, 2: -2.0}) == 2
    assert best_of({0: float("nan")}) is None
    assert best_saved_in({"scores": [[0, 1.0], [1, 3.0]]}) == 1, "before it was saved by its name"
    assert best_saved_in({"best_learner": None, "scores": [[0, 1.0]]}) is None
    assert best_saved_in({}) is None


def fleet_of(num_learners):
    """A fleet without processes, and the rows that it has written."""
    written = []
    recorder = SimpleNamespace(
        on_version=lambda *_, **__: False,  # a second has not passed
        on_rows=lambda rows, *_, **of: written.extend(
            (row["learner"], row["updates"], row["env_steps"], of["disagreement"]) for row in rows
        ),
    )
    fleet = Fleet.__new__(Fleet)
    fleet._control = SimpleNamespace(recorder=recorder, note_version=lambda: None)
    fleet.config, fleet._told = (
        SimpleNamespace(num_learners=num_learners),
        Told(num_learners, updates=3),
    )
    fleet._memory = SimpleNamespace(
        boxes=SimpleNamespace(env_steps=lambda _: 50), versions=SimpleNamespace(disagreement=len)
    )
    fleet._resumed_env_steps = 0

    def tell(*, last=False, **of):
        rows = [{"learner": int(rank[1:]), "updates": n, "env_steps": 1} for rank, n in of.items()]
        fleet._record({"episodes": [], "rows": rows, "last": last})

    return fleet, tell, written


def test_every_row_that_learners_tell_is_written_once():
    fleet, tell, written = fleet_of(3)
    assert fleet.updates == 3
    tell(r0=4)
    tell(r1=1, r2=1)
    tell()
    tell(r0=5)
    assert written == [
        (0, 4, 150, None),  # the others have no policy yet to compare
        (1, 1, 150, len),
        (2, 1, 150, len),
        (0, 5, 150, len),
    ]
    assert fleet.updates == 5
    written.clear()
    tell(r1=100)
    tell(r1=105, r2=90, last=True)
    tell(r0=101)
    tell(r0=102, last=True)
    assert [x[:2] for x in written] == [(1, 100), (0, 101)], "the last wait for everyone"
    assert fleet.updates == 102
    fleet._write_rows(fleet._told.take_last(), last=True)
    assert [x[:2] for x in written[2:]] == [(1, 105), (2, 90), (0, 102)]
    fleet._write_rows(fleet._told.take_last(), last=True)
    assert len(written) == 5
