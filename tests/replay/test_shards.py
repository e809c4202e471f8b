"""Replays that several learners write and read: whole columns only, everyone's, counted by each for itself."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core_fakes import random_batch, spec_of
from replay_fakes import sample
from sessions import slow

from gossamer.config import make_config
from gossamer.replay.layout import Layout
from gossamer.replay.replay import Replay
from gossamer.replay.ring import Ring
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.replay.shards import ReplayShards
from gossamer.run.placements.processes import Processes
from gossamer.run.placements.this_process import ThisProcess
from gossamer.run.train import train
from gossamer.types import STORED, Trajectory, as_batch, empty_trajectory

T, B = 6, 4
SPEC = spec_of()


def make(num_learners, *, capacity=8):
    layout = Layout(SPEC, T)
    blocks = [mmap.mmap(-1, layout.nbytes(capacity)) for _ in range(num_learners)]
    return [
        ReplayShards([Ring(layout, capacity, x) for x in blocks], r) for r in range(num_learners)
    ]


def constant(level):
    trajectory = empty_trajectory(SPEC, unroll_length=T, num_columns=B, core_units=0)
    for x in (trajectory.obs, trajectory.reward, trajectory.value, trajectory.behavior):
        x.fill_(level)
    trajectory.version.fill_(int(level))
    return trajectory


def test_everyone_reads_what_everyone_wrote():
    shards = make(3)
    for rank, own in enumerate(shards):
        own.ring.write([0, 1, 2, 3], constant(float(rank + 1)))
    shards[2].ring.write([4, 5, 6, 7], constant(7.0))
    for own in shards:
        every = own.readable()
        assert every.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, *range(16, 24)]
        into = empty_trajectory(SPEC, unroll_length=T, num_columns=16, core_units=0)
        assert (own.read(every, into) == 2).all()
        expected = [1] * 4 + [2] * 4 + [3] * 4 + [7] * 4
        assert into.version.tolist() == expected
        assert (into.obs == torch.tensor(expected)[:, None]).all()


def count(shards, places):
    at = np.array(places)
    shards.count_use(at, shards.sequences(at))


def uses(shards):
    places = np.arange(4)
    return shards.uses(places, shards.sequences(places)).tolist()


def test_each_counts_what_it_has_used_itself():
    one, other = make(2)
    one.ring.write([0, 1, 2, 3], constant(1.0))
    count(one, [0, 2])
    count(one, [0])
    count(other, [2])
    assert uses(one) == [2, 0, 1, 0]
    assert uses(other) == [0, 0, 1, 0]
    one.ring.write([2, 3, 4, 5], constant(2.0))  # what was in 2 is there no more
    assert uses(one) == [2, 0, 0, 0]
    assert uses(other) == [0, 0, 0, 0]


def test_a_column_that_is_half_written_is_none():
    one, other = make(2)
    one.ring.write([0, 1, 2, 3], constant(1.0))
    one.ring.sequence[1] += 1  # its writer was killed
    into = empty_trajectory(SPEC, unroll_length=T, num_columns=4, core_units=0)
    assert other.read(np.arange(4), into).tolist() == [2, -1, 2, 2]
    replay = Replay(other, UniformSettings(), candidates=None, seed=1)
    other.ring.write([0, 1, 2, 3], constant(2.0))
    replay.inserted, replay.newest = 4, other.first
    for _ in range(20):
        batch = as_batch(empty_trajectory(SPEC, unroll_length=T, num_columns=8, core_units=0))
        sample(replay, batch)
        assert 1 not in batch.entry % 16
    one.ring.write([1, 4, 5, 6], constant(3.0))  # its successor writes over it
    assert one.ring.sequence[1] == 4
    assert other.read(np.arange(4), into).tolist() == [2, 4, 2, 2]


def test_no_column_is_torn():
    one, other = make(2, capacity=4)
    one.ring.write([0, 1, 2, 3], constant(1.0))
    stop = threading.Event()

    def overwrite():
        level = 1.0
        while not stop.is_set():
            level += 1.0
            one.ring.write([0, 1, 2, 3], constant(level))

    writer = threading.Thread(target=overwrite)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that a read and a write often meet
    writer.start()
    try:
        into = empty_trajectory(SPEC, unroll_length=T, num_columns=4, core_units=0)
        whole = torn = 0
        deadline = time.monotonic() + 60.0
        while (whole < 100 or not torn) and time.monotonic() < deadline:
            good = other.read(np.arange(4), into) > 0
            for i in range(4):
                levels = {*into.obs[:, i].unique().tolist(), *into.value[:, i].unique().tolist()}
                levels |= {float(into.version[i]), *into.behavior[:, i].unique().tolist()}
                whole += bool(good[i])
                torn += not good[i]
                assert len(levels) == 1 or not good[i]
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
    assert whole >= 100
    assert torn > 0, "the comparison can fail"


def config(folder: Path, **settings: Any):
    given = {
        "num_envs": 4,
        "unroll_length": 8,
        "algorithm.name": "laser",
        "algorithm.num_minibatches": 1,
        "num_learners": 3,
        "topology.name": "single",
        "replays": [
            {"name": "queue", "fraction": 0.25},
            {"name": "elite", "fraction": 0.75, "capacity": 16, "shared": True},
        ],
        "optimizer": {"schedule": "constant", "learning_rate": [1e-3, 5e-4, 2e-4]},
        "algorithm.entropy_cost": [0.01, 0.02, 0.005],
        "evaluation.every_seconds": 0.0,
        "checkpoint_every_seconds": 0.0,
        "run_folder": str(folder),
        "total_env_steps": 3 * 32 * 12,
        **settings,
    }
    return make_config("CartPole-v1", given)


def columns_of(folder: Path) -> list[float]:
    """Of all learners' rows: who ends first may have found nobody else's columns."""
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["replay/elite_columns"] for row in rows if "replay/elite_columns" in row]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is mapped")
@pytest.mark.parametrize("placement", [slow("inline"), "local"])
def test_a_shared_replay_may_lie_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    """The files have no names; their room shows in the memory that is mapped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    there: set[str] = set()

    def look(pid: int) -> None:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # its last message outlives it
            return
        there.update(x.split()[4] for x in maps if str(disk) in x and "deleted" in x)

    for kind in (ThisProcess, Processes):

        def looks(placement: Any, poll: Any = kind.poll) -> Any:
            events = poll(placement)
            for host in placement.hosts:
                look(host.pid)
            return events

        monkeypatch.setattr(kind, "poll", looks)
    replays = config(tmp_path).replays
    replays = (replays[0], dataclasses.replace(replays[1], path=str(disk)))
    made = config(tmp_path / "run", placement=placement)
    train(dataclasses.replace(made, replays=replays), quiet=True)
    assert max(columns_of(tmp_path / "run")) > 16
    assert len(there) == 3, "a file for each learner, and no other"
    assert list(disk.iterdir()) == []


def test_a_population_shares_its_replay_and_resumes_exactly(tmp_path: Path) -> None:
    from gossamer.record.checkpoint import CheckpointStore

    common = {"placement": "inline", "checkpoint_replay": True}
    whole, first = 3 * 32 * 12, 3 * 32 * 6
    train(config(tmp_path / "one", total_env_steps=whole, **common), quiet=True)
    assert max(columns_of(tmp_path / "one")) > 16, "more than one learner's part"
    train(config(tmp_path / "two", total_env_steps=first, **common), quiet=True)
    longer = config(tmp_path / "two", total_env_steps=whole, **common)
    train(longer, resume=str(tmp_path / "two"), quiet=True)
    states = [
        CheckpointStore(tmp_path / name / "checkpoints", 0).load("last").tensors
        for name in ("one", "two")
    ]
    assert states[0].keys() == states[1].keys()
    assert [k for k, x in states[0].items() if not torch.equal(x, states[1][k])] == []


def test_the_others_go_on_when_a_writer_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    poll = Processes.poll

    def kills_one(placement: Processes) -> Any:
        if not killed and placement.hosts[1].version > 5:
            killed.append(placement.hosts[1].pid)
            os.kill(killed[0], signal.SIGKILL)
        return poll(placement)

    monkeypatch.setattr(Processes, "poll", kills_one)
    made = config(tmp_path / "run", total_env_steps=3 * 32 * 150, learners_per_process=1)
    result = train(made, quiet=True)
    assert killed
    assert result.summary["restarts"] == 1
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    assert max(columns_of(tmp_path / "run")) > 16


def test_what_was_collected_is_read_as_it_was():
    one, other = make(2)
    batch = random_batch(SPEC, T, B, seed=1)
    fields = {name: getattr(batch, name) for name in STORED}
    one.ring.write([3, 1, 0, 2], Trajectory(**fields))
    into = empty_trajectory(SPEC, unroll_length=T, num_columns=B, core_units=0)
    assert (other.read(np.array([3, 1, 0, 2]), into) == 2).all()
    for name, x in fields.items():
        assert torch.equal(getattr(into, name), x), name
