"""Hosts of a cluster: how they find a place, lose it and come back, and how orders reach them; without a cluster."""

from __future__ import annotations

import math
import socket
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_for

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.run.host_protocol import (
    Died,
    Done,
    Event,
    Failed,
    LoadInitialState,
    Notice,
    Order,
    Ready,
)
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.process_layout import layout_of
from gossamer.system.messages import from_whole, to_array

pytest.importorskip("ray", reason="Ray is an optional extra")

from ray.exceptions import (
    ActorUnavailableError,
    ObjectStoreFullError,
    RayActorError,
    RayError,
    RayTaskError,
)

from gossamer.links.wire import Address
from gossamer.run.placements.cluster import joining
from gossamer.run.placements.cluster import placement as placement_module
from gossamer.run.placements.cluster.agent import News
from gossamer.run.placements.cluster.placement import Cluster

WAIT_SECONDS, PATIENCE_SECONDS = 60.0, 300.0


class Ref:
    """An answer that an agent has yet to give."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.given = False

    def give(self, answer: Any) -> None:
        self.answer, self.given = answer, True


class FakeAgent:
    """An agent that answers when a test says so; `told` lists what it was told.

    Args:
        answers: what it answers at once, by the name of the question.
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = {"propose": 7, "settle": None, **answers}
        self.told: list[tuple[str, Any]] = []
        self.refs: dict[str, Ref] = {}
        self.killed = False
        self.numbers = 0

    def __getattr__(self, name: str) -> Any:
        def remote(*words: Any, **more: Any) -> Ref:
            self.told.append((name, (*words, *more.values())))
            self.refs[name] = Ref()
            if name in self.answers:
                self.refs[name].give(self.answers[name])
            return self.refs[name]

        method = SimpleNamespace(remote=remote)
        method.options = lambda **_: method
        return method

    def answer(self, *events: Event) -> None:
        """Answer the last question for news."""
        self.numbers += 1
        self.refs["news"].give(News(self.numbers, [to_array(x) for x in events], None, None))

    def words_of(self, name: str) -> list[Any]:
        return [words for told, words in self.told if told == name]

    @property
    def task(self) -> LearnerTask:
        """The one that it was told to begin with."""
        return from_whole(self.words_of("begin")[0][0], LearnerTask)

    @property
    def orders(self) -> list[Order | None]:
        """What it was told of orders with questions for news."""
        return [words[3] for words in self.words_of("news")]


class FakeRay:
    """Ray with a clock that stands still; `agents` lists all agents that were ever made, with their first learner."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.agents: list[tuple[int, FakeAgent]] = []
        self.where: dict[int, Any] = {}
        """Answers of agents that are made to the question where they are, by learner; others do not answer at once."""
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address="10.0.0.1:6379")

    def monotonic(self) -> float:
        return self.now

    def wait(
        self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        given = [x for x in refs if x.given]
        if not given and timeout:
            self.now += timeout
        return given[:num_returns], [x for x in refs if x not in given[:num_returns]]

    def get(self, ref: Ref, timeout: float | None = None) -> Any:
        assert ref.given
        if isinstance(ref.answer, RayError):
            raise ref.answer
        return ref.answer

    def kill(self, agent: FakeAgent) -> None:
        agent.killed = True

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}


class FakeSession:
    def __init__(self, ray: FakeRay) -> None:
        self._ray = ray

    def agent(self, task: Any, hears: Any) -> FakeAgent:
        rank = task.ranks[0]
        made = FakeAgent({"where": self._ray.where[rank]} if rank in self._ray.where else {})
        self._ray.agents.append((rank, made))
        return made

    def close(self) -> None: ...


class FakeHead:
    """The head of a cluster, which has been silent for as long as a test says."""

    silent_seconds = 0.0

    def __init__(self, address: str) -> None:
        self.address = address

    def close(self) -> None: ...


def place_on(machine: str) -> Address:
    return Address(machine, 1, "secret")


class Run:
    """A placement on a fake cluster; `poll` moves hosts as the supervisor does."""

    def __init__(self, ray: FakeRay, learners: int, **settings: Any):
        given = {
            "num_learners": learners,
            "num_envs": 2,
            "placement": "cluster",
            "topology.name": "gossip",
            "cluster.cpus_per_learner": 1,
            "cluster.wait_seconds": WAIT_SECONDS,
            "patience_seconds": PATIENCE_SECONDS,
            **settings,
        }
        config = make_config("CartPole-v1", given)
        spec = read_spec(config.env_id, config.env, 0, tries=False)
        layout = layout_of(config)
        assert layout is not None
        self.ray = ray
        self.cluster = Cluster(config, spec, make_plan(config, spec), layout, tried=True)

    def agent(self, rank: int) -> FakeAgent:
        """The newest agent of a learner."""
        return [agent for first, agent in self.ray.agents if first == rank][-1]

    def place(self, rank: int, machine: str = "10.0.0.2") -> None:
        self.agent(rank).refs["where"].give(place_on(machine))

    def start(self, *placed: int, load: LoadInitialState = lambda _: None) -> None:
        """Start with some of the learners placed, which then learn."""
        self.ray.where = {rank: place_on("10.0.0.2") for rank in placed}
        self.cluster.start(load)
        self.ray.where = {}
        for rank in placed:
            self.learn(rank)

    def learn(self, rank: int) -> None:
        self.agent(rank).refs["begin"].give(100 + rank)
        self.agent(rank).answer(Ready(""))
        self.poll()

    def poll(self, seconds: float = 0.0) -> list[tuple[int, Event]]:
        """Poll, after seconds in which the supervisor looks as often as it does."""
        found: list[tuple[int, Event]] = []
        until = self.ray.now + seconds
        while True:
            told = self.cluster.poll()
            for index, event in told:
                state = self.cluster.hosts[index].state
                if isinstance(event, Ready):
                    state.move("learning")
                if isinstance(event, Died) and state.die(self.cluster.hosts[index].version):
                    self.cluster.replace(index)
            found += told
            if self.ray.now >= until:
                return found

    @property
    def phases(self) -> list[str]:
        return [host.state.phase for host in self.cluster.hosts]


def notices(events: list[tuple[int, Event]]) -> list[str]:
    return [event.text for _, event in events if isinstance(event, Notice)]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(placement_module, "ray", fake)
    monkeypatch.setattr(placement_module, "time", fake)
    monkeypatch.setattr(placement_module, "Session", lambda *_: FakeSession(fake))
    monkeypatch.setattr(placement_module, "HeadWatch", FakeHead)

    def wait(_: StopSignal, seconds: float) -> None:
        fake.now += seconds

    monkeypatch.setattr(StopSignal, "wait", wait)
    return fake


def test_a_host_starts_once_it_has_a_place_and_all_are_told_where_they_are(ray: FakeRay) -> None:
    run = Run(ray, 2)
    run.start(0, 1)
    assert run.phases == ["learning", "learning"]
    assert notices(run.poll()) == ["learners 0, 1 on 10.0.0.2"]
    assert notices(run.poll()) == []
    host = run.cluster.hosts[0]
    assert (host.pid, host.machine, host.here) == (100, "10.0.0.2", False)
    assert run.agent(0).words_of("meet")[-1][0].keys() == {1}


def test_too_few_places_end_the_run_before_it_begins(ray: FakeRay) -> None:
    run = Run(ray, 2)
    says = r"no place in the cluster for learner 1: each host needs 1 CPUs, and 0 CPUs are free; .* after 60 s"
    with pytest.raises(RunFailed, match=says):
        run.start(0)


def test_an_agent_that_cannot_be_made_is_placed_again_and_five_times_at_most(ray: FakeRay) -> None:
    run = Run(ray, 1)
    ray.where = {0: RayActorError()}
    with pytest.raises(RunFailed, match="learner 0 could not be started on the cluster in 5 "):
        run.cluster.start(lambda _: None)
    assert len(ray.agents) == 5


def test_the_others_go_on_without_a_host_that_finds_no_place_and_it_joins_them(
    ray: FakeRay,
) -> None:
    run = Run(ray, 3, **{"cluster.min_learners": 2})
    run.start(0, 1)
    assert run.phases == ["learning", "learning", "placing"]
    assert notices(run.poll()) == ["learners 0, 1 on 10.0.0.2; 2 on no machine yet"]
    assert run.cluster.absent() == {2: 0}
    assert not run.cluster.ends_alone
    (told,) = notices(run.poll(WAIT_SECONDS))
    assert told.startswith("no place in the cluster for learner 2: ")
    assert told.endswith(". The run goes on without it")
    assert run.phases[2] == "unplaced"
    assert {2: (range(2, 3), 0)} in [gone for _, gone, _ in run.agent(0).words_of("meet")]
    publish(run, 0)
    run.place(2)
    run.poll()
    assert run.phases[2] == "starting"
    task = run.agent(2).task
    assert task.donors == {2: [0]}
    assert task.incarnation == 0
    there, gone, has_replacement = run.agent(2).words_of("meet")[-1]
    assert (there.keys(), gone, has_replacement) == ({0, 1}, {}, True)
    assert {2} in [x[0].keys() for x in run.agent(0).words_of("meet")]
    run.agent(2).answer(Ready(""))
    assert notices(run.poll()) == ["learner 2 has joined, on 10.0.0.2"]
    assert run.cluster.absent() == {}


def publish(run: Run, rank: int) -> None:
    """Let a learner show a version."""
    boxes = run.cluster.memory.versions.boxes
    with boxes.posting(rank, 1, notes=(1, 1)):
        pass
    boxes.mark_back(rank)


def test_one_that_cannot_be_made_while_others_train_is_tried_later(ray: FakeRay) -> None:
    run = Run(ray, 2, **{"cluster.min_learners": 1})
    run.start(0)
    publish(run, 0)
    told: list[str] = []
    for attempt in range(1, 6):
        assert len(ray.agents) == 1 + attempt
        run.agent(1).refs["where"].give(RayActorError())
        told += notices(run.poll())
        assert len(ray.agents) == 1 + attempt
        told += notices(run.poll(min(2.0**attempt, 60.0) + 0.2))
    assert len(ray.agents) == 7
    assert any(
        x.startswith("learner 1 could not be started on the cluster in 5 attempts: ")
        and x.endswith("; the run goes on without it, and tries again every minute")
        for x in told
    )
    run.place(1)
    run.poll()
    assert run.phases[1] == "starting"


def test_one_that_comes_when_the_checkpoint_of_the_resume_is_gone_is_told_to_begin_anew(
    ray: FakeRay,
) -> None:
    there = True

    def load(_: range) -> None:
        if not there:
            raise ConfigError("run/checkpoints/7 does not exist")

    run = Run(ray, 2, **{"topology.name": "single", "cluster.min_learners": 1})
    run.start(0, load=load)
    there = False
    run.place(1)
    said = "learner 1 cannot go on and begins anew: run/checkpoints/7 does not exist"
    assert said in notices(run.poll())
    assert run.phases[1] == "starting"


def test_nobody_waits_for_one_that_died_early_and_cannot_be_made_again(ray: FakeRay) -> None:
    """Who has no version yet is waited for; once the run is said to go on without it, it has to."""
    run = Run(ray, 2, **{"topology.max_staleness": 0, "cluster.min_learners": 1})
    run.start(0, 1)
    run.agent(1).refs["news"].give(RayActorError())
    told = notices(run.poll())
    for attempt in range(1, 6):
        assert not run.cluster.memory.boxes.has_left(1)
        run.agent(1).refs["where"].give(RayActorError())
        told += notices(run.poll())
        if attempt < 5:
            told += notices(run.poll(2.0**attempt + 0.2))
    assert told[-1].endswith("; the run goes on without it, and tries again every minute")
    assert run.agent(0).words_of("meet")[-1] == ({}, {1: (range(1, 2), 1)}, True)
    assert run.cluster.memory.boxes.has_left(1)


def test_a_dead_host_comes_back_in_its_next_incarnation(ray: FakeRay) -> None:
    run = Run(ray, 2)
    run.start(0, 1)
    publish(run, 0)
    publish(run, 1)
    old = run.agent(1)
    old.refs["news"].give(RayActorError())
    (died,) = [x for _, x in run.poll() if isinstance(x, Died)]
    assert died.how.startswith("on 10.0.0.2: ")
    assert old.killed
    host = run.cluster.hosts[1]
    assert (host.state.phase, host.state.incarnation, host.machine) == ("placing", 1, "")
    assert run.agent(0).words_of("meet")[-1] == ({}, {1: (range(1, 2), 1)}, True)
    run.place(1, "10.0.0.3")
    run.poll()
    task = run.agent(1).task
    assert (task.incarnation, task.donors) == (1, {1: [0]})
    assert host.state.phase == "starting"
    host.state.move("learning")
    assert host.version == 1


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        (ObjectStoreFullError("full"), Died),
        (RayTaskError("news", "traceback", ValueError("no")), Failed),
    ],
)
def test_what_an_agent_cannot_tell_ends_it(ray: FakeRay, answer: RayError, event: Any) -> None:
    run = Run(ray, 1)
    run.start(0)
    run.agent(0).refs["news"].give(answer)
    assert [type(x) for _, x in run.cluster.poll() if not isinstance(x, Notice)] == [event]


def test_what_keeps_an_agent_from_being_made_is_told_with_its_machine(ray: FakeRay) -> None:
    where = "\x1b[36mray::Agent.__init__()\x1b[39m (pid=7, ip=10.0.0.9, actor_id=01, repr=<...>)"
    told = f"""The actor died because of an error raised in its creation task, {where}
  File "agent.py", line 1, in __init__
RuntimeError: The actor with name Agent failed to import on the worker. This may be because ...:

{where}
ModuleNotFoundError: No module named 'mine'"""
    ray.where = {0: RayActorError("01", told)}
    says = r"in 5 attempts: on 10\.0\.0\.9: ModuleNotFoundError: No module named 'mine'; gossamer "
    with pytest.raises(RunFailed, match=says):
        Run(ray, 1).cluster.start(lambda _: None)


DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: Agent
The actor is dead because its node has died. Node Id: 0123"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ObjectStoreFullError("too large"), "too large"),
        (RayActorError(error_msg=DIED), "its node has died"),
    ],
)
def test_one_that_could_not_begin_is_replaced(ray: FakeRay, error: RayError, told: str) -> None:
    run = Run(ray, 2, **{"cluster.min_learners": 1})
    run.start(0)
    publish(run, 0)
    run.place(1)
    run.poll()
    assert run.phases[1] == "starting"
    run.agent(1).refs["begin"].give(error)
    assert [x.how for _, x in run.poll() if isinstance(x, Died)] == [f"on 10.0.0.2: {told}"]
    assert (run.phases[1], run.cluster.hosts[1].state.incarnation) == ("placing", 1)


def test_a_silent_agent_is_replaced_but_a_suspended_supervisor_forgives(ray: FakeRay) -> None:
    run = Run(ray, 1)
    run.start(0)
    run.poll()
    ray.now += 10 * PATIENCE_SECONDS  # as if it had been stopped
    assert run.poll(PATIENCE_SECONDS - 10) == []
    assert not run.agent(0).killed
    told = "learner 0 on 10.0.0.2: the agent has not answered for 300 s; another takes its place"
    assert notices(run.poll(20)) == [told]
    assert run.agent(0).killed


def test_a_run_saves_while_the_head_is_silent_and_ends_before_ray_ends_the_supervisor(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(ray, 1)
    run.start(0)
    run.poll()
    for silent, told in ((5.0, 0), (7.0, 1), (30.0, 0), (0.0, 0), (7.0, 1)):
        monkeypatch.setattr(FakeHead, "silent_seconds", silent)
        found = [x for _, x in run.poll() if isinstance(x, Notice)]
        assert [x.saves for x in found] == [True] * told
    assert "the head of the Ray cluster, 10.0.0.1:6379, takes no connections" in found[0].text
    monkeypatch.setattr(FakeHead, "silent_seconds", 41.0)
    with pytest.raises(RunFailed, match=r"10\.0\.0\.1:6379, has taken no connections for 41 s"):
        run.poll()


def test_nobody_waits_for_places_of_a_head_that_is_gone(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeHead, "silent_seconds", 41.0)
    run = Run(ray, 1)
    with pytest.raises(RunFailed, match="has taken no connections for 41 s"):
        run.cluster.start(lambda _: None)
    assert ray.now < 1001.0


def test_a_head_that_is_gone_is_silent_until_it_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 1e-3)
    with socket.create_server(("127.0.0.1", 0)) as head:
        host, port = head.getsockname()
        watch = joining.HeadWatch(f"{host}:{port}")
        head.accept()[0].close()
    with closing(watch):
        wait_for(lambda: watch.silent_seconds > 0.01, "silence")
        with socket.create_server((host, port)):
            wait_for(lambda: watch.silent_seconds == 0, "an answer")


def test_an_order_arrives_though_questions_are_lost(ray: FakeRay) -> None:
    run = Run(ray, 2)
    run.start(0, 1)
    asked = len(run.agent(0).orders)
    assert run.cluster.order(ends=False) == 1
    run.agent(0).refs["news"].give(ActorUnavailableError("a link is down", b"1" * 16))
    assert [x for x in run.poll() if not isinstance(x[1], Notice)] == []
    assert len(run.agent(0).orders) == asked, "not at once"
    run.poll(2.0)
    assert run.agent(0).orders[asked:] == [Order(1, ends=False)]
    assert run.cluster.order(ends=True) == 2
    run.agent(0).answer()
    run.poll()
    assert run.agent(0).orders[-1] == Order(2, ends=True)
    assert not run.agent(0).words_of("propose")


def test_in_lock_step_all_agree_on_a_version_that_nobody_has_reached(ray: FakeRay) -> None:
    run = Run(ray, 2, **{"topology.max_staleness": 0})
    run.start(0, 1)
    run.cluster.order(ends=False)
    for rank in (0, 1):
        order = Order(1, ends=False)
        assert run.agent(rank).words_of("propose") == [(order, 0), (order, 8)]
        assert len(run.agent(rank).words_of("settle")) == 1
        run.agent(rank).answer()
    run.poll()
    assert run.agent(0).orders[-1] is None
    publish(run, 0)
    run.agent(1).refs["news"].give(RayActorError())
    run.poll()
    run.place(1)
    run.poll()
    assert run.agent(1).orders == [order], "one that comes later is told what the others do"


def test_who_is_reached_again_hears_who_has_ended_but_not_that_somebody_was_replaced(
    ray: FakeRay,
) -> None:
    """In lock-step it would wait for an order to end, and nobody gives one."""
    run = Run(ray, 2, **{"topology.max_staleness": 0})
    run.start(0, 1)
    run.agent(1).answer(Done())
    run.cluster.memory.boxes.mark_left(1)
    run.agent(0).refs["news"].give(ActorUnavailableError("a link is down", b"1" * 16))
    run.poll(2.0)
    assert run.agent(0).words_of("meet")[-1] == ({}, {1: (range(1, 2), 0)}, False)
    assert run.cluster.ends_alone


def test_nobody_joins_others_that_end(ray: FakeRay) -> None:
    run = Run(ray, 2, **{"cluster.min_learners": 1})
    run.start(0)
    publish(run, 0)
    run.cluster.order(ends=True)
    run.place(1)
    run.poll()
    assert run.phases[1] == "placing"
    run.agent(0).answer(Done())
    assert [type(x) for _, x in run.poll(2 * WAIT_SECONDS) if not isinstance(x, Notice)] == [Done]
    assert run.cluster.hosts[0].over
    run.cluster.end()
    assert run.agent(0).words_of("end")
    assert not run.agent(1).words_of("end")


def test_fewer_learners_than_there_must_be_end_the_run(ray: FakeRay) -> None:
    run = Run(ray, 2, **{"cluster.min_learners": 2})
    run.start(0, 1)
    run.agent(1).refs["news"].give(RayActorError())
    run.poll()
    assert math.isclose(run.cluster.hosts[1].heard_at, ray.now, abs_tol=1.0)
    with pytest.raises(RunFailed, match=r"fewer than 2 learners for 60 s: no place .* learner 1:"):
        run.poll(2 * WAIT_SECONDS)


def test_a_group_that_begins_again_keeps_its_incarnations(ray: FakeRay) -> None:
    run = Run(ray, 2, **{"topology.name": "allreduce"})
    run.start(0, 1)
    assert run.cluster.hosts[1].state.die(-1)
    run.cluster.end()
    run.start(0, 1)
    assert [host.state.incarnation for host in run.cluster.hosts] == [0, 1]
    assert run.phases == ["learning", "learning"]
