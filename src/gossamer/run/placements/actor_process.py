"""A process with one actor, which collects as its learner's process asks it to: into memory that both share, or far away."""

from __future__ import annotations

import mmap
import queue
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.build.plan import on_cpu
from gossamer.build.roles import (
    actor_seeds,
    build_env_groups,
    build_inference_policy,
    build_policy,
)
from gossamer.config import from_dict
from gossamer.errors import RunFailed
from gossamer.links.mailboxes import Mailboxes
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.machine import keep_freed_memory, lower_priority, use_threads
from gossamer.roles.actor import Actor
from gossamer.roles.mixer import vectors, views
from gossamer.run.host_protocol import Failed, Notice
from gossamer.run.placements.child_protocol import (
    ActorLost,
    ActorReady,
    ActorSettled,
    ActorState,
    Collect,
    Collected,
    EndActor,
    LoadState,
    StateLoaded,
    StillHere,
    TellState,
)
from gossamer.run.placements.remote_actor import TcpTeamLink, TeamMemory
from gossamer.run.stopping import Stop, Watch, Watched, cause_of
from gossamer.system.signs_of_life import all_signs, made_until
from gossamer.types import empty_trajectory, trajectory_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.roles.acting_group import Episode
    from gossamer.run.placements.channel import Channel
    from gossamer.run.placements.child_protocol import ActorReply, ActorRequest, ActorTask
    from gossamer.types import Trajectory


class _MemoryTeamLink:
    """The actor's end of what joins it with its team in another process of this machine; methods as `TcpTeamLink` has them.

    Args:
        channel: to it.
        task: with the memory that both map.
        rest: messages that came together with the task.
    """

    def __init__(self, channel: Channel[Any], task: ActorTask, rest: Iterable[Any]):
        self._channel, self._index = channel, task.actor
        self._inbox: queue.SimpleQueue[ActorRequest | RunFailed] = queue.SimpleQueue()
        for asked in rest:
            self._inbox.put(asked)
        params, signs, *blocks = [mmap.mmap(block, 0) for block in task.blocks]
        slots = [trajectory_in(block, task.places).columns(*task.columns) for block in blocks]
        boxes = Mailboxes(params, 1, task.sizes)
        self._memory = TeamMemory(boxes, np.frombuffer(signs, np.int64), slots)
        self._heard = vectors(task.sizes, torch.device("cpu"))
        self.stop = StopSignal()
        channel.end_with_other_end(self._hear)

    def _hear(self, asked: ActorRequest | RunFailed) -> None:
        if isinstance(asked, EndActor):
            self.stop.stop()
        self._inbox.put(asked)

    def request(self) -> ActorRequest:
        asked = self._inbox.get()
        if isinstance(asked, RunFailed):
            raise asked
        return asked

    def params(self, asked: Collect, version: int) -> tuple[int, Sequence[Tensor]] | None:
        found = self._memory.read(asked, version, self._heard)
        return None if found is None else (found, self._heard)

    def slot(self, number: int) -> Trajectory:
        return self._memory.slots[number]

    def tell(self, reply: ActorReply) -> None:
        self._channel.send(reply)

    def show_life(self, beats: int) -> None:
        self._memory.signs[self._index] = beats


_TeamLink = _MemoryTeamLink | TcpTeamLink


def work(channel: Channel[Any], task: ActorTask, rest: Iterable[Any]) -> None:
    """Act as a team asks.

    Args:
        channel: to the team; if that is on another machine, to whoever has started this process there.
        task: what to act for.
        rest: messages that came together with the task.
    """
    config, plan = from_dict(task.config), on_cpu(task.plan)
    use_threads(1)
    keep_freed_memory()
    if task.address is None:
        _serve(_MemoryTeamLink(channel, task, rest), task, config, plan)
        return
    channel.end_with_other_end()
    slot = empty_trajectory(
        task.spec,
        unroll_length=config.unroll_length,
        num_columns=task.columns[1] - task.columns[0],
        core_units=build_policy(config, task.spec).core_units,
    )
    try:
        team = TcpTeamLink(task, slot)
    except OSError as error:  # whoever has started this process does so again, if the team still wants this actor
        where = f"{task.address.host}, port {task.address.port}"
        channel.send(ActorLost(f"it does not reach its learner at {where} ({error})"))
        return
    channel.send(ActorSettled())
    try:
        _serve(team, task, config, plan)
    except BaseException as error:
        team.tell(Failed.of(cause_of(error), "an actor"))
        raise


class _Watched(Watched):
    """This process: it shows its team that it lives, and tells it what is to be said."""

    def __init__(self, team: _TeamLink):
        self._team = team

    def say(self, text: str) -> None:
        with suppress(OSError):  # the team is gone
            self._team.tell(Notice(text))

    def look(self) -> None:
        self._team.show_life(sum(sign.own() for sign in all_signs()))


def _serve(team: _TeamLink, task: ActorTask, config: TrainConfig, plan: Plan) -> None:
    with Watch(config.patience_seconds, _Watched(team), Stop()), suppress(Stopped):
        if plan.lag is not None:
            lower_priority()
        with made_until(lambda: team.stop.stopped):
            groups, first_obs = build_env_groups(
                config,
                task.spec,
                plan,
                rank=task.rank,
                restarts=task.restarts,
                start=task.start,
                only=range(*task.groups),
            )
        learnt = build_policy(config, task.spec, rank=task.rank)
        policy = build_inference_policy(learnt, plan)
        episodes: list[Episode] = []
        seeds = actor_seeds(config, plan, task.rank, task.restarts)
        actor = Actor(
            groups,
            policy,
            first_obs=first_obs,
            unroll_length=config.unroll_length,
            seeds=seeds[task.groups[0] : task.groups[1]],
            on_episode=episodes.append,
            stop=team.stop,
            num_threads=plan.actor_threads,
            moment=lambda _, t: t,
        )
        with closing(actor):
            team.tell(ActorReady())
            _act(team, actor, learnt.shared_tensors(), episodes)


def _act(team: _TeamLink, actor: Actor, like: list[Tensor], episodes: list[Episode]) -> None:
    params = actor.policy.shared_tensors()  # may be of a lower precision than what is learnt
    version = -1
    while True:
        match team.request():
            case Collect(slot) as asked:
                if (found := team.params(asked, version)) is not None:
                    version, heard = found
                    torch._foreach_copy_(params, views(heard, like))
                    actor.policy.refresh()
                spent = dict(actor.seconds)
                actor.collect(team.slot(slot), version)
                seconds = {k: x - spent[k] for k, x in actor.seconds.items()}
                team.tell(Collected(slot, list(episodes), seconds))
                episodes.clear()
            case TellState():
                state = actor.state_dict()
                team.tell(ActorState({k: x for k, x in state.items() if k != "env_steps"}))
            case LoadState(tensors, exact):
                back = actor.load_state_dict({**tensors, "env_steps": 0}, exact=exact)
                team.tell(StateLoaded(back))
            case StillHere():
                pass
            case EndActor():
                return
