"""Processes of learners as they are begun, and begun again: their cores, their donors, and what they count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_placement import PLAN, part

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.run.checkpoint_contents import RecorderState, RunState
from gossamer.run.placements import processes as processes_module
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.process_layout import Layout, gpu_of
from gossamer.run.placements.processes import Processes
from gossamer.run.placements.shared_memory import Memory
from gossamer.run.placements.spawn import end_children
from gossamer.run.stopping import Overdue

LOCK_STEP = {"name": "gossip", "graph": "complete", "max_staleness": 0}


class FakeProcess:
    """A host that keeps its task, and has published what a test posts."""

    def __init__(self, task: LearnerTask, memory: Memory, *_: Any):
        self.task, self._memory = task, memory
        self.ranks, self.pid, self.machine, self.here = range(*task.ranks), os.getpid(), "", True
        self.popen = SimpleNamespace(poll=lambda: None)
        self.channel = SimpleNamespace(close=lambda: None)
        self.state: Any = None

    @property
    def version(self) -> int:
        return self._memory.versions.newest(self.ranks.start)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what places three learners, each in a process and on a core of its own."""
    monkeypatch.setattr(processes_module, "ProcessHost", FakeProcess)
    made: list[Processes] = []

    def place(topology: Any, initial: Any = None) -> Processes:
        settings = {"num_learners": 3, "num_envs": 2, "topology": topology, "device": "cpu"}
        config = make_config("CartPole-v1", settings)
        spec = read_spec(config.env_id, config.env, 0, tries=False)
        ranks = tuple(range(i, i + 1) for i in range(3))
        layout = Layout(ranks, 1, ((4,), (5,), (6,)), overlaps=False)
        plan = make_plan(config, spec)
        placement = Processes(config, spec, plan, layout, tried=True, hold=lambda: 0)
        made.append(placement)
        placement.start(lambda _: initial)
        return placement

    yield place
    for placement in made:
        placement.close()


def post(placement: Processes, *versions: int) -> None:
    """Let learners have published versions, by rank."""
    for rank, version in enumerate(versions):
        tensors = [torch.zeros_like(x) for x in placement.policy.shared_tensors()]
        placement.memory.versions.post(rank, tensors, version, updates=version, env_steps=version)


def dies(placement: Processes, index: int) -> Any:
    """Let a host have died, and return the task of the one that takes its place."""
    placement.hosts[index].state.move("dead")
    placement.replace(index)
    return placement.hosts[index].task  # type: ignore[attr-defined]


def test_each_process_runs_on_the_cores_of_its_own(placed):
    placement = placed("gossip")
    assert [host.task.cores for host in placement.hosts] == [(4,), (5,), (6,)]
    post(placement, 3, 3, 3)
    assert dies(placement, 1).cores == (5,)


def test_a_learner_that_mixes_begins_again_with_the_others_average(placed):
    placement = placed({"name": "gossip", "graph": "complete"})
    post(placement, 3, 4, 5)
    assert dies(placement, 1).donors == {1: [0, 2]}


def test_an_independent_learner_begins_again_with_its_own_policy(placed):
    """An average with others would make one of two that are to be compared."""
    placement = placed("single")
    post(placement, 3, 4, 5)
    assert dies(placement, 1).donors == {1: [1]}


def test_a_learner_that_had_published_nothing_begins_as_it_began(placed):
    placement = placed("gossip")
    assert dies(placement, 1).donors == {}
    assert placement.ends_alone, "it has learnt as much as the others"


def test_where_one_was_replaced_learners_do_not_know_the_end_by_themselves(placed):
    placement = placed(LOCK_STEP)
    post(placement, 3, 3, 3)
    assert placement.ends_alone
    dies(placement, 2)
    assert not placement.ends_alone


def test_a_resumed_run_has_its_steps_before_anybody_has_published(placed):
    """By them it ends, and its rows are numbered."""
    learners = [part(rank, updates=40 + rank)[1].learners[rank] for rank in range(3)]
    recorder = RecorderState(window=[], episode_rows=0, seconds=1.0, paced=(0, 0.0))
    placement = placed("gossip", RunState(learners, PLAN, exact=True, recorder=recorder))
    assert (placement.updates, placement.env_steps) == (40, 400 + 410 + 420)


@pytest.mark.parametrize(
    ("visible", "seen", "found"),
    [("3,5", 2, ["3", "5", "3"]), ("7", 1, ["7", "7", "7"]), ("3,5,", 2, ["3", "5", "3"]), ("3,-1,5", 1, ["3", "3", "3"])],
)  # fmt: skip
def test_learners_are_dealt_over_the_gpus_that_the_run_may_use(monkeypatch, visible, seen, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    assert [gpu_of(rank) for rank in range(3)] == found


def test_policies_can_be_evaluated_where_all_learners_have_died_at_once(placed):
    """Until they are back the last that each has published are there."""
    placement = placed("gossip")
    post(placement, 3, 4, 5)
    boards = placement.memory.versions
    for rank in range(3):
        boards.boxes.mark_left(rank)
    into = [torch.empty_like(x) for x in placement.policy.shared_tensors()]
    assert boards.read_next(into).version == 3
    assert boards.present() == [0, 1, 2]


class Closing:
    """A process that closes what it holds, at which a deadline passes."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._looks = 0

    def poll(self) -> int | None:
        self._looks += 1
        if self._looks == 1:
            raise Overdue
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9


def test_a_deadline_that_passes_as_processes_close_leaves_none_of_them() -> None:
    """A program would go on beside them, and could not resume its run."""
    closed: list[bool] = []
    process: Any = Closing()
    channel: Any = SimpleNamespace(close=lambda: closed.append(True))
    with pytest.raises(Overdue):
        end_children([(process, channel)], [process])
    assert process.returncode == -9
    assert closed
