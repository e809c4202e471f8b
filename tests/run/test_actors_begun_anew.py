"""Actors that die in between are begun anew, with streams of their own, as often as it takes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.build.plan import make_plan
from gossamer.build.roles import build_policy
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.run.placements.actor_team import ActorTeam
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import (
    ActorReady,
    ActorReply,
    ActorTask,
    Collect,
    Collected,
)


class Told(Channel[Any]):
    """An actor's channel, of which a test sees what is sent."""

    def __init__(self, end: socket.socket, hears: Any, take: Callable[[Any], None]):
        super().__init__(end, hears)
        self._take = take

    def send(self, message: Any) -> None:
        self._take(message)


class FakeActor:
    """To its team a child process: it collects, or dies where it is asked to."""

    def __init__(self, task: ActorTask, dies: bool):
        self.task, self.pid, self._dies = task, 0, dies
        self.returncode: int | None = None
        ours, theirs = socket.socketpair()
        self.channel = Told(ours, ActorReply, self._hear)
        self._end: Channel[Any] = Channel(theirs, ActorReply)
        self._end.send(ActorReady())

    def _hear(self, message: Any) -> None:
        if isinstance(message, Collect) and self._dies:
            self.end()
        elif isinstance(message, Collect):
            self._end.send(Collected(message.slot, [], {"env": 0.0, "inference": 0.0}))

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.end()

    def end(self) -> None:
        self.returncode = -9
        self._end.close()


@pytest.fixture
def team():
    """A team of one actor: `actors` are those that it has begun, `deaths` says which of them die, in their order."""
    settings = {"num_envs": 2, "unroll_length": 4, "lag": "1", "actors_per_learner": 1}
    config = make_config("CartPole-v1", {**settings, "algorithm.name": "vtrace", "device": "cpu"})
    spec = read_spec(config.env_id, config.env, 0, tries=False)
    found = SimpleNamespace(actors=[], deaths=[])

    def place(task: ActorTask, _: Any) -> Any:
        found.actors.append(FakeActor(task, found.deaths.pop(0)))
        return found.actors[-1]

    def begin(*deaths: bool) -> Callable[[int], None]:
        """Return what lets the team collect a trajectory."""
        found.deaths = list(deaths)
        found.team = ActorTeam(
            config,
            spec,
            make_plan(config, spec),
            build_policy(config, spec),
            rank=0,
            restarts=2,
            start=False,
            on_episode=lambda _: None,
            say=lambda _: None,
            stop=StopSignal(),
            placer=place,
        )
        return lambda version: found.team.collect(found.team.slots[0], version)

    found.begin = begin
    yield found
    for actor in found.actors:
        actor.end()
    found.team.close()


def test_an_actor_that_dies_in_between_is_begun_anew_as_often_as_it_takes(team):
    """Of those that collect nothing three in a row end the run."""
    collect = team.begin(*[False, True] * 3, False)
    for version in range(4):
        collect(version)
        team.actors[-1].end()
    assert len(team.actors) == 7
    assert [row["restarts"] for row in team.team.processes] == [6]


def test_three_actors_in_a_row_that_collect_nothing_end_the_run(team):
    collect = team.begin(True, True, True)
    with pytest.raises(RunFailed, match="actor 0 died 3 times before it had collected anything"):
        collect(0)


def test_an_actor_in_anothers_place_has_streams_of_its_own(team):
    """With the dead one's it would play its episodes again, action for action."""
    collect = team.begin(True, True, False)
    collect(0)
    restarts = [actor.task.restarts for actor in team.actors]
    assert restarts[0] == 2, "of its learner"
    assert len(set(restarts)) == 3
    assert [actor.task.start for actor in team.actors] == [False, True, True]
    assert not team.team.exact
