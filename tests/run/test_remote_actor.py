"""The two ends of a connection between a learner and an actor on another machine."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core_fakes import spec_of

from gossamer.build.plan import make_plan
from gossamer.config import make_config, to_dict
from gossamer.links.wire import Address, Listener
from gossamer.run.host_protocol import Failed
from gossamer.run.placements.child_protocol import (
    ActorLocated,
    ActorTask,
    Collect,
    EndActor,
    RemoteReply,
)
from gossamer.run.placements.remote_actor import TcpTeamLink
from gossamer.types import empty_trajectory


# An actor's connection is closed by the end of its process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_actor_that_is_busy_takes_what_its_team_sends() -> None:
    """More than a network holds: it may make environments for minutes before it asks."""
    listener, spec = Listener("127.0.0.1"), spec_of()
    task: Any = SimpleNamespace(address=listener.address, machine="127.0.0.1", spec=spec)
    slot = empty_trajectory(spec, unroll_length=2, num_columns=1, core_units=0)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(listener.accept, lambda: True)
        actor = TcpTeamLink(task, slot)
        team = called.result(30.0)
    assert team is not None
    assert isinstance(team.receive(RemoteReply), ActorLocated)
    for version in (3, 4):
        params = [torch.full((16 << 20,), float(version)), torch.zeros(1, dtype=torch.float64)]
        sends = threading.Thread(target=team.send, args=(Collect(0, version, params),), daemon=True)
        sends.start()
        sends.join(20.0)
        assert not sends.is_alive(), "nobody takes it"
    for version in (3, 4):  # each has numbers of its own
        asked = actor.request()
        assert isinstance(asked, Collect)
        assert asked.params is not None
        assert asked.version == version == asked.params[0][0] == asked.params[0][-1]
    team.send(EndActor())
    assert isinstance(actor.request(), EndActor)
    team.close()  # by now the actor closes its environments, and is not cut off in that


class FakeRay:
    """Makes Ray actors of a class in this process, and runs their methods at once."""

    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def __init__(self) -> None:
        self.made: list[Any] = []

    def remote(self, **_: Any) -> Callable[[type], Any]:
        def of(kind: type) -> Any:
            def make(*args: Any) -> Any:
                inner = kind(*args)
                done = ThreadPoolExecutor(1)
                self.made.append(inner)
                return SimpleNamespace(
                    __ray_ready__=SimpleNamespace(remote=lambda: done.submit(lambda: None)),
                    run=SimpleNamespace(remote=lambda: done.submit(inner.run)),
                )

            return SimpleNamespace(remote=make)

        return of

    def wait(self, asked: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        done = [x for x in asked if x.exception(timeout) is None]
        return done, []

    def get(self, asked: Any) -> Any:
        return asked.result(60.0)

    def kill(self, host: Any) -> None:
        pass


# Ray ends the process that holds an actor's channel.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_actor_whose_learner_refuses_its_call_is_tried_again_and_then_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A firewall refuses as a team does that is gone; whether it wants the actor its machine knows."""
    pytest.importorskip("ray", reason="Ray is an optional extra")
    from gossamer.run.placements.cluster import actors

    ray = FakeRay()
    monkeypatch.setattr(actors, "ray", ray)
    monkeypatch.setattr(actors, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(actors, "AGAIN_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    config = make_config("CartPole-v1", {"num_envs": 2, "unroll_length": 2})
    spec = spec_of()
    task = ActorTask(
        config=to_dict(config),
        plan=make_plan(config, spec),
        spec=spec,
        rank=3,
        actor=1,
        groups=(0, 1),
        blocks=(),
        places=[],
        columns=(0, 2),
        sizes=(1, 1),
        restarts=0,
        start=True,
        address=Address("127.0.0.1", port, "0" * 32),
    )
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    placed = actors.RemoteActors(config, told.put)
    placed.place(task)
    failed = told.get(timeout=60.0)
    assert isinstance(failed, Failed)
    assert "actor 1 of learner 3" in failed.text
    assert f"does not reach its learner at 127.0.0.1, port {port}" in failed.text
    assert "refused" in failed.text
    assert len(ray.made) == 2
    placed.end()
