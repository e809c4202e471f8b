"""The two ends of a connection between a learner and an actor on another machine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core_fakes import spec_of

from gossamer.links.wire import Listener
from gossamer.run.placements.child_protocol import ActorLocated, Collect, EndActor, RemoteReply
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
