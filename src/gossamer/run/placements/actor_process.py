"""A process with one actor, which collects as its learner's process asks it to: into memory that both share, or far away."""

from __future__ import annotations

import dataclasses
import mmap
import os
import queue
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from gossamer.build.auto import Plan, on_cpu
from gossamer.build.roles import (
    actor_seeds,
    build_env_groups,
    build_inference_policy,
    build_policy,
    group_bounds,
)
from gossamer.config import from_dict
from gossamer.envs.registry import read_spec
from gossamer.links.mailboxes import FAR, Mailboxes
from gossamer.links.wire import Address
from gossamer.machine import keep_freed_memory, lower_priority, use_threads
from gossamer.roles.actor import Actor
from gossamer.roles.mixer import vectors, views
from gossamer.run.placements.channel import Channel, pack, tell_failure, unpack
from gossamer.run.placements.remote_actor import Parcel, WireToTeam
from gossamer.run.stopping import Overdue, Watch
from gossamer.system.blocks import Place
from gossamer.system.signs import all_signs
from gossamer.types import empty_trajectory, trajectory_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.roles.actor import Episode
    from gossamer.types import Trajectory


@dataclasses.dataclass(frozen=True)
class ActorTask:
    """What a process with an actor is told when it begins: plain data."""

    config: dict[str, Any]
    plan: dict[str, Any]
    rank: int
    """Rank of the learner."""
    actor: int
    """Index among the learner's actors."""
    groups: tuple[int, int]
    """Its first group of environments among the learner's, and the one behind its last."""
    blocks: tuple[int, ...]
    """File descriptors: of the parameters' memory, of the actors' signs of life, and of every slot that it writes."""
    places: list[list[Any]]
    """Where the fields of a slot lie."""
    whole: bool
    """Slots have the columns of all actors, and it writes its own; otherwise they are its own."""
    sizes: tuple[int, int]
    """float32 and float64 numbers of the parameters and moments."""
    restarts: int
    """How often this actor, or its learner, has been replaced; its streams and episodes are new ones then."""
    start: bool
    """Begin episodes; otherwise a state follows."""
    address: tuple[str, int, str] | None = None
    """Where its learner's process waits for it on another machine; None: they share memory."""
    machine: str = ""
    """Address of its own machine then."""


class _Team(Protocol):
    """The team, as one of its actors sees it."""

    def request(self) -> tuple[dict[str, Any], int | None]:
        """Wait for what the team asks next, and a descriptor of what came with it."""
        ...

    def params(
        self, message: Mapping[str, Any], version: int
    ) -> tuple[int, Sequence[Tensor]] | None:
        """Return the version that a request is to be acted with, and its numbers; None: `version` acts on."""
        ...

    def slot(self, number: int) -> Trajectory:
        """Return the memory to collect into."""
        ...

    def tell(self, message: Mapping[str, Any], block: int | None = None) -> None:
        """Tell the team something."""
        ...

    def show_life(self, beats: int) -> None:
        """Show the signs of life of this process."""
        ...


class _SharedMemory:
    """A team in another process of this machine.

    Args:
        channel: to it.
        task: with the memory that both map.
        rest: messages that came together with the task.
    """

    def __init__(self, channel: Channel, task: ActorTask, rest: list[dict[str, Any]]):
        self._channel, self._index = channel, task.actor
        self._inbox: queue.SimpleQueue[tuple[dict[str, Any], int | None]] = queue.SimpleQueue()
        self._take(rest)
        self._boxes = Mailboxes(_mapped(task.blocks[0]), 1, (task.sizes[0], task.sizes[1]))
        self._signs = np.frombuffer(_mapped(task.blocks[1]), np.int64)
        self._heard = vectors(self._boxes.sizes, torch.device("cpu"))
        places = [Place(*place) for place in task.places]
        slots = [trajectory_in(_mapped(block), places) for block in task.blocks[2:]]
        if task.whole:
            bounds = group_bounds(Plan(**task.plan))
            first, last = bounds[task.groups[0]], bounds[task.groups[1]]
            slots = [slot.columns(first, last) for slot in slots]
        self._slots = slots
        threading.Thread(target=self._listen, daemon=True).start()

    def request(self) -> tuple[dict[str, Any], int | None]:
        return self._inbox.get()

    def params(
        self, message: Mapping[str, Any], version: int
    ) -> tuple[int, Sequence[Tensor]] | None:
        asked = message["version"]  # -1: the newest
        newest = range(version + 1, FAR) if asked < 0 else range(asked, asked + 1)
        found = None if asked == version else self._boxes.read(0, newest, self._heard)
        return None if found is None else (found, self._heard)

    def slot(self, number: int) -> Trajectory:
        return self._slots[number]

    def tell(self, message: Mapping[str, Any], block: int | None = None) -> None:
        self._channel.send(message, block)

    def show_life(self, beats: int) -> None:
        self._signs[self._index] = beats

    def _take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            packed = message.get("packed")
            self._inbox.put((message, self._channel.take_descriptor() if packed else None))

    def _listen(self) -> None:
        """Hand messages on; when the team's end of the channel closes, end this process without writing anything."""
        while not self._channel.closed:
            self._take(self._channel.receive())
        os._exit(1)


def work(
    channel: Channel,
    told: dict[str, Any],
    begin: tuple[dict[str, Tensor], dict[str, Any]] | None,
    rest: list[dict[str, Any]],
) -> None:
    """Act as a team asks.

    Args:
        channel: to the team; if that is on another machine, to whoever has started this process there.
        told: an `ActorTask`, as plain data.
        begin: nothing; states follow in messages.
        rest: messages that came together with the task.
    """
    assert begin is None
    task = ActorTask(**told)
    config, plan = from_dict(task.config), on_cpu(Plan(**task.plan))
    use_threads(1)
    keep_freed_memory()
    if task.address is None:
        _serve(_SharedMemory(channel, task, rest), task, config, plan)
        return
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=False)
    bounds, units = group_bounds(plan), build_policy(config, spec).core_units
    size: dict[str, Any] = {
        "unroll_length": config.unroll_length,
        "num_columns": bounds[task.groups[1]] - bounds[task.groups[0]],
        "core_units": units,
    }
    slot, parcel = empty_trajectory(spec, **size), Parcel(spec, **size)
    sizes = (task.sizes[0], task.sizes[1])
    try:
        team = WireToTeam(Address(*task.address), task.machine, slot, parcel, sizes)
    except ConnectionRefusedError:  # it has another actor, or is gone
        channel.send({"kind": "unwanted"})
        return
    except (
        OSError
    ):  # a network that fails for a while; whoever has started this process does so again
        return
    channel.send({"kind": "called"})
    try:
        _serve(team, task, config, plan)
    except BaseException as error:
        cause = error.failure if isinstance(error, Overdue) else None
        tell_failure(team.tell, cause or error)
        raise


def _serve(team: _Team, task: ActorTask, config: TrainConfig, plan: Plan) -> None:
    def show_life() -> None:
        team.show_life(sum(sign.own() for sign in all_signs()))

    def say(text: str) -> None:
        with suppress(OSError):  # the team is gone
            team.tell({"kind": "notice", "text": text})

    with Watch(config.patience_seconds, say, on_look=show_life):
        spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=False)
        if plan.lag is not None:
            lower_priority()
        groups, first_obs = build_env_groups(
            config,
            spec,
            plan,
            rank=task.rank,
            restarts=task.restarts,
            start=task.start,
            only=range(*task.groups),
        )
        learnt = build_policy(config, spec, rank=task.rank)
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
            num_threads=plan.actor_threads,
            moment=lambda _, t: t,
        )
        with closing(actor):
            team.tell({"kind": "ready"})
            _act(team, actor, learnt.shared_tensors(), episodes)


def _act(team: _Team, actor: Actor, like: list[Tensor], episodes: list[Episode]) -> None:
    params = actor.policy.shared_tensors()  # may be of a lower precision than what is learnt
    version = -1
    while True:
        message, descriptor = team.request()
        match message["do"]:
            case "collect":
                if (found := team.params(message, version)) is not None:
                    version, heard = found
                    torch._foreach_copy_(params, views(heard, like))
                    actor.policy.refresh()
                spent = dict(actor.seconds)
                actor.collect(team.slot(message["slot"]), version)
                team.tell(
                    {
                        "kind": "collected",
                        "slot": message["slot"],
                        "episodes": [dataclasses.asdict(episode) for episode in episodes],
                        "seconds": {k: x - spent[k] for k, x in actor.seconds.items()},
                    }
                )
                episodes.clear()
            case "tell state":
                state = actor.state_dict()
                tensors = {k: x for k, x in state.items() if isinstance(x, torch.Tensor)}
                block = pack(tensors, {"env_steps": state["env_steps"]})
                team.tell({"kind": "state"}, block)
                os.close(block)
            case "load state":
                assert descriptor is not None
                tensors, rest = unpack(descriptor)
                back = actor.load_state_dict({**tensors, **rest}, exact=message["exact"])
                team.tell({"kind": "loaded", "back": back})
            case _:
                return


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


def _end_with(channel: Channel) -> None:
    """End this process when whoever started it is gone."""
    while not channel.closed:
        channel.receive()
    os._exit(1)
