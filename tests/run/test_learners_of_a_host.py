"""Learners of a host: when they have learnt all, who tells them, and what those begin with that were away."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from fake_placement import part

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError, RunFailed
from gossamer.run.checkpoint_contents import RecorderState, RunState
from gossamer.run.host_protocol import FINAL, Snapshot
from gossamer.run.placements import metric_rows
from gossamer.run.placements.host_learners import HostLearners, build_learners
from gossamer.run.placements.host_loop import HostLoop
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.loop_overlapped import learn_overlapped
from gossamer.run.placements.metric_rows import Rows
from gossamer.run.placements.orders import SharedOrders
from gossamer.run.snapshot import fill_absent_learners, restore, take

IN_STEP = {"name": "gossip", "graph": "complete", "max_staleness": 0}


def built(topology: Any, env_id: str = "CartPole-v1", **settings: Any) -> HostLearners:
    given = {"num_learners": 2, "num_envs": 2, "unroll_length": 8, "placement": "inline"}
    given |= {"device": "cpu", "evaluation.every_seconds": 0, "policy.hidden_sizes": [8]}
    given |= {"algorithm": {"name": "a2c", "num_minibatches": 1}, "topology": topology, **settings}
    config = make_config(env_id, given)
    spec = read_spec(config.env_id, config.env, 0)
    return build_learners(config, spec, make_plan(config, spec))


OLD = [
    {"name": "queue", "fraction": 0.5},
    {"name": "uniform", "fraction": 0.5, "capacity": 8, "path": "/no/such/folder"},
]


@pytest.mark.parametrize(
    ("settings", "spoilt", "says"),
    [
        ({}, "5", "no port is free"),
        ({"algorithm": "vtrace", "replays": OLD, "num_learners": 1}, "0", "/no/such/folder"),
    ],
    ids=["of another learner", "of the same one"],
)
def test_simulators_are_closed_where_learners_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, spoilt: str, says: str
) -> None:
    """Each is a process here; the first is made for its spec, and the fifth is the second learner's."""
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("SPOILT", spoilt)
    topology = "single" if "num_learners" in settings else IN_STEP
    with pytest.raises(ConfigError, match=says):
        built(topology, "counting_envs:OfItsOwn", **settings)
    assert len((tmp_path / "made").read_text()) >= (3 if settings == {} else 1), (
        "once one cannot be built no other is begun"
    )
    assert not list(tmp_path.glob("*.lives"))


@pytest.mark.parametrize(
    ("talks", "env_steps", "learnt"),
    [
        (True, (100, 90), True),  # each counts the steps of all, as far as it has heard
        (True, (90, 90), False),
        (False, (100, 90), False),  # each has a share of its own
        (False, (100, 110), True),
    ],
)
def test_independent_learners_have_learnt_all_once_each_has(
    talks: bool, env_steps: tuple[int, int], learnt: bool
) -> None:
    topology = SimpleNamespace(talks=talks)
    parts: Any = [
        SimpleNamespace(learner=SimpleNamespace(env_steps=x, topology=topology)) for x in env_steps
    ]
    config = make_config("CartPole-v1", {"num_learners": 2})
    learners = HostLearners(parts, None, exact=True, config=config)
    assert learners.has_learnt(100) == learnt


@pytest.mark.parametrize("replaced", [False, True])
def test_in_lock_step_learners_end_by_themselves_unless_one_was_replaced(replaced: bool) -> None:
    """It counts fewer steps than the others, who would end without it: the supervisor says when."""
    learners = built(IN_STEP, total_env_steps=64)
    learners.join()
    orders = SharedOrders(mmap.mmap(-1, SharedOrders.nbytes(1)))
    if replaced:
        orders.note_replacement()
    loop = HostLoop(learners, learn_inline(learners), orders, here=True)
    for _ in range(6):
        told = loop.step()
        if ended := any(isinstance(x, Snapshot) and x.number == FINAL for x in told):
            break
    loop.close()
    version = learners.first.learner.version
    learners.close()
    assert (ended, version) == ((False, 6) if replaced else (True, 2))


def test_an_error_of_an_actor_for_which_a_snapshot_waits_is_told() -> None:
    """The snapshot is of a moment at which the actor has finished its trajectory, in which its environment fails."""
    learners = built(
        "single", num_learners=1, lag="1", placement="local", algorithm={"name": "vtrace"}
    )
    collect, snapshot_begun, calls = learners.first.actor.collect, threading.Event(), []

    def fails_the_second_time(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            snapshot_begun.wait(60.0)
            raise RunFailed("the motor is on fire")
        collect(*given)

    learners.first.actor.collect = fails_the_second_time  # type: ignore[method-assign]
    orders = SharedOrders(mmap.mmap(-1, SharedOrders.nbytes(1)))
    versions = learn_overlapped(learners)
    loop = HostLoop(learners, versions, orders, here=True, before_snapshot=snapshot_begun.set)
    loop.step()
    orders.announce(ends=False, together=False)
    with pytest.raises(RunFailed, match="the motor is on fire"):
        loop.step()
    loop.close()
    learners.close()


def test_an_order_is_for_versions_of_those_that_are_there() -> None:
    """One that is gone, and was ahead, would let the others go on until they are where it was."""
    memory = mmap.mmap(-1, SharedOrders.nbytes(2))
    supervisor, first, second = (SharedOrders(memory, process) for process in (0, 0, 1))
    first.reach(3)
    second.reach(9)
    supervisor.forget(1)
    assert supervisor.newest == 3
    supervisor.announce(ends=False, together=True)
    assert first.reach(4) is not None


def test_a_learner_that_was_absent_goes_on_with_a_count_of_its_own() -> None:
    """Independent learners count their own steps for all; that of a copy is another's."""
    learners = built("single")
    versions = learn_inline(learners)
    for _ in range(3):
        next(versions)
    states = take(learners, begun=True)
    versions.close()
    whole = {0: states[0]}
    fill_absent_learners(whole, {1: 16}, {0: 3, 1: 1}, lambda _: None)
    assert whole[1].own_env_steps == 16
    recorder = RecorderState(window=[], episode_rows=0, seconds=1.0, paced=(0, 0.0))
    plan = learners.first.plan
    state = RunState([whole[0], whole[1]], plan, exact=False, recorder=recorder)
    learners.close()
    again = built("single")
    restore(again, state)
    counts = [(x.learner.own_env_steps, x.learner.env_steps) for x in again.parts]
    again.close()
    own = states[0].own_env_steps
    assert counts == [(own, 2 * own), (16, 32)]


def test_a_learner_with_another_policy_has_nothing_of_what_the_copy_has_learnt_beside_it() -> None:
    """Its optimizer begins, as does the rate that follows how far its policy has moved."""
    _, given = part(0, updates=3)
    numbers = {
        "learner.optimizer.0.step": 40,
        "learner.outer.0.step": 7,
        "learner.algorithm.lr_scale": 0.25,
        "learner.algorithm.kl_nats": 0.5,
        "learner.replay.0.draws": 9,
    }
    learners = {0: msgspec.structs.replace(given.learners[0], numbers=numbers)}
    policy = {"weight": torch.full((2,), 8.0)}
    assert fill_absent_learners(learners, {1: 20}, {0: 3, 1: 2}, lambda _: policy) == [(1, 1)]
    assert learners[1].numbers == {
        "learner.algorithm.lr_scale": 1.0,
        "learner.algorithm.kl_nats": 0.0,
        "learner.replay.0.draws": 9,
    }
    assert "learner.optimizer.0.exp_avg" not in learners[1].tensors
    assert learners[0].numbers == numbers


def read(learners: HostLearners) -> tuple[Any, list[torch.Tensor]]:
    """Return what an evaluation reads: whose policy it is, and the policy."""
    into = [torch.empty_like(x) for x in learners.first.policy.shared_tensors()]
    return learners.read_policy(into), into


@pytest.mark.parametrize("overlaps", [False, True])
def test_what_is_evaluated_at_last_is_what_was_learnt_last(overlaps: bool) -> None:
    """The policy that a run leaves is scored, and with the steps that are behind it."""
    settings = {"num_learners": 1, "placement": "local" if overlaps else "inline"}
    learners = built("single", **settings)
    versions = (learn_overlapped if overlaps else learn_inline)(learners)
    for _ in range(3):
        next(versions)
    versions.close()
    learner = learners.first.learner
    source, policy = read(learners)
    learnt = [x.clone() for x in learners.first.policy.shared_tensors()]
    counts = learner.version, (learner.update, learner.env_steps)
    learners.close()
    assert (source.version, source.at) == counts
    assert counts[0] == 3
    assert all(torch.equal(x, y) for x, y in zip(policy, learnt, strict=True))


def test_a_checkpoint_that_is_being_written_is_not_what_is_learnt_meanwhile() -> None:
    learners = built("single", num_learners=1)
    orders = SharedOrders(mmap.mmap(-1, SharedOrders.nbytes(1)))
    loop = HostLoop(learners, learn_inline(learners), orders, here=True)
    loop.step()
    orders.announce(ends=False, together=False)
    (given,) = [x for x in loop.step() if isinstance(x, Snapshot)]
    (state,) = given.learners.values()
    before = {name: x.clone() for name, x in state.tensors.items()}
    for _ in range(3):
        loop.step()
    loop.close()
    learners.close()
    changed = [name for name, x in state.tensors.items() if not torch.equal(x, before[name])]
    assert changed == []
    assert any(name.startswith("learner.policy.") for name in before)


def test_the_learning_rate_of_every_learner_falls_to_the_end_of_the_run() -> None:
    """The run's steps are those of all."""
    rates = {"schedule": "linear", "learning_rate": [0.1]}
    learners = built(IN_STEP, total_env_steps=160, optimizer=rates)
    learners.join()
    versions, found = learn_inline(learners), list[list[float]]()
    for _ in range(5):
        next(versions)
        metrics = [parts.learner.take_metrics() for parts in learners.parts]
        found.append([x["learner/learning_rate"] for x in metrics])
    versions.close()
    learners.close()
    assert all(one == other for one, other in found)
    falling = [one for one, _ in found]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == pytest.approx(0.1)
    assert falling[-1] < 0.03


def test_what_a_learner_waits_for_and_mixes_is_no_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """By these shares a run says what limits its speed."""
    now = [100.0]
    monkeypatch.setattr(metric_rows, "time", SimpleNamespace(monotonic=lambda: now[0]))
    learners = built(IN_STEP)
    learners.join()
    rows, parts = Rows(learners), learners.first
    rows.make()
    now[0] += 10.0
    assert parts.learner.mixer is not None
    parts.learner.seconds["learn"] += 8.0
    parts.learner.mixer.seconds += 1.0
    parts.learner.mixer.peers.waited_seconds += 3.0
    parts.queue.waited_seconds["slot"] += 30.0  # begun long before, and over now
    (row, *_) = rows.make()
    learners.close()
    shares = {name: row[f"share/{name}"] for name in ("learn", "mix", "wait_peers", "wait_actor")}
    assert shares == {
        "learn": pytest.approx(0.4),
        "mix": pytest.approx(0.1),
        "wait_peers": pytest.approx(0.3),
        "wait_actor": 1.0,
    }
