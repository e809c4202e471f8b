"""What a learner that takes over from a dead one begins with."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fleets import TOPOLOGIES, config
from waiting import wait_for

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.host_learners import build_learners
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.process_host import ProcessHost
from gossamer.run.placements.processes import Processes
from gossamer.run.placements.shared_memory import Memory
from gossamer.run.train import train

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def learners(request):
    made_for = make_config(
        "CartPole-v1",
        {
            "num_learners": 4,
            "num_envs": 2,
            "algorithm": {"name": "vtrace", "num_minibatches": 2},
            "topology": {"name": "diffusion"},
            "placement": "inline",
            "same_start": False,
            "device": request.param,
            "evaluation.every_seconds": 0,
        },
    )
    spec = read_spec(made_for.env_id, made_for.env, 0)
    made = build_learners(made_for, spec, make_plan(made_for, spec))
    made.join()
    yield made
    made.close()


def test_it_begins_with_the_average_of_its_heirs_and_counts_on(learners):
    boxes = learners.memory.boxes
    for rank, parts in enumerate(learners.parts):
        parts.learner.version = 10 + rank
        parts.learner.mixer.peers.report(1000 * (rank + 1))
        learners.publish(parts)
    theirs = [learners.parts[rank].policy.shared_tensors() for rank in (0, 2)]
    expected = [(a.double() + b.double()) / 2 for a, b in zip(*theirs, strict=True)]
    new = learners.parts[3]
    learners.take_over(new, [0, 2])
    for x, y in zip(new.policy.shared_tensors(), expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-6, atol=1e-7)
    # its own last version was 13, the newest of the donors' 12
    assert new.learner.version == 14
    assert new.actor.env_steps == new.learner.own_env_steps == 4000
    assert new.learner.env_steps == 1000 + 2000 + 3000 + 4000
    learners.publish(new)
    assert learners.memory.versions.newest(3) == 14
    assert boxes.env_steps(3) == 4000


def test_in_lock_step_it_has_the_version_that_others_will_have(learners):
    versions = learn_inline(learners)
    for _ in range(5):
        next(versions)
    first, new = learners.first.learner, learners.parts[3]
    assert first.updates_per_version == 2
    assert (first.version, first.update) == (5, 10)
    learners.memory.boxes.mark_left(3)
    learners.take_over(new, [0, 2])
    replace(learners, parts=[new]).join(late=True)
    # nobody has mixed update 13 yet, which is in the midst of version 6, the seventh
    assert new.learner.update == 13
    assert new.learner.version == 7


@pytest.mark.parametrize("topology", ["diffusion", "gossip in step", "gossip"])
def test_the_others_go_on_before_a_new_process_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str
) -> None:
    learnt: list[int] = []
    poll = Processes.poll

    def kills_one(placement: Processes) -> Any:
        if not learnt and placement.hosts[1].version > 0:
            learnt.append(0)
            os.kill(placement.hosts[1].pid, signal.SIGKILL)
        return poll(placement)

    def waits_for_the_others(task: LearnerTask, memory: Memory, *rest: Any) -> Any:
        if task.donors:
            end = memory.boxes.env_steps(0) + 400
            wait_for(lambda: memory.boxes.env_steps(0) >= end, "the others", seconds=60.0)
            learnt.append(1)
        return ProcessHost(task, memory, *rest)

    monkeypatch.setattr(Processes, "poll", kills_one)
    monkeypatch.setattr("gossamer.run.placements.processes.ProcessHost", waits_for_the_others)
    chosen = {**TOPOLOGIES, "gossip": {"name": "gossip"}}[topology]
    result = train(config(tmp_path / "run", chosen, 4_000), quiet=True)
    assert len(learnt) == 2
    assert result.summary["restarts"] == 1
    assert result.summary["env_steps"] >= 4_000


def test_of_two_that_die_at_once_neither_begins_with_the_others_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    donors: dict[int, list[int]] = {}
    poll = Processes.poll

    def kills_two(placement: Processes) -> Any:
        if not killed and all(host.version > 0 for host in placement.hosts):
            killed.extend([1, 2])
            for k in killed:
                os.kill(placement.hosts[k].pid, signal.SIGKILL)
            # until it is known of both: the one that is replaced first could be a donor later
            popens = [placement.hosts[k].popen for k in killed]
            wait_for(lambda: None not in [popen.poll() for popen in popens], "both deaths")
        return poll(placement)

    def notes_donors(task: LearnerTask, *rest: Any) -> Any:
        donors.update(task.donors)
        return ProcessHost(task, *rest)

    monkeypatch.setattr(Processes, "poll", kills_two)
    monkeypatch.setattr("gossamer.run.placements.processes.ProcessHost", notes_donors)
    chosen = {"name": "gossip", "graph": "complete"}
    heavy = {"schedule": "constant", "outer_momentum": 0.3}
    run = config(tmp_path / "run", chosen, 4_000, num_learners=4, optimizer=heavy)
    result = train(run, quiet=True)
    assert donors == {1: [0, 3], 2: [0, 3]}
    assert result.summary["restarts"] == 2
