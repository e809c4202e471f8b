"""A process with one actor: it collects into memory that it shares with its learner's process, as that asks it to."""

from __future__ import annotations

import dataclasses
import mmap
import os
import queue
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.build.plan import Plan
from gossamer.build.roles import (
    actor_seeds,
    build_env_groups,
    build_inference_policy,
    build_policy,
    group_bounds,
)
from gossamer.config import from_dict
from gossamer.envs.registry import read_spec
from gossamer.links.shared_memory import Mailboxes
from gossamer.machine import keep_freed_memory, lower_priority, use_threads
from gossamer.roles.actor import Actor
from gossamer.roles.mixer import vectors, views
from gossamer.run.placements.channel import Channel, pack
from gossamer.run.stopping import Watch
from gossamer.system.blocks import Place
from gossamer.system.signs import all_signs
from gossamer.types import trajectory_in

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.roles.actor import Episode


@dataclasses.dataclass(frozen=True)
class ActorTask:
    """What a process with an actor is told when it begins: plain data."""

    config: dict[str, Any]
    plan: dict[str, Any]
    rank: int
    """Of the learner."""
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


def work(
    channel: Channel,
    told: dict[str, Any],
    begin: tuple[dict[str, Tensor], dict[str, Any]] | None,
    rest: list[dict[str, Any]],
) -> None:
    """Act as the team at the other end of the channel asks.

    Args:
        channel: to the team.
        told: an `ActorTask`, as plain data.
        begin: nothing; states follow in messages.
        rest: messages that came together with the task.
    """
    assert begin is None
    task = ActorTask(**told)
    inbox: queue.SimpleQueue[tuple[dict[str, Any], int | None]] = queue.SimpleQueue()
    for message in rest:
        inbox.put((message, channel.take_descriptor() if message.get("packed") else None))
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    use_threads(1)
    keep_freed_memory()
    signs = np.frombuffer(_mapped(task.blocks[1]), np.int64)

    def show_life() -> None:
        signs[task.actor] = sum(sign.own() for sign in all_signs())

    def say(text: str) -> None:
        with suppress(OSError):  # the team is gone
            channel.send({"kind": "notice", "text": text})

    config, plan = from_dict(task.config), Plan(**task.plan)
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
            channel.send({"kind": "ready"})
            _act(channel, task, plan, actor, learnt.shared_tensors(), inbox, episodes)


def _act(
    channel: Channel,
    task: ActorTask,
    plan: Plan,
    actor: Actor,
    like: list[Tensor],
    inbox: queue.SimpleQueue[tuple[dict[str, Any], int | None]],
    episodes: list[Episode],
) -> None:
    boxes = Mailboxes(_mapped(task.blocks[0]), 1, (task.sizes[0], task.sizes[1]))
    params = actor.policy.shared_tensors()  # may be of a lower precision than what is learnt
    heard = vectors(boxes.sizes, torch.device("cpu"))
    heard_views = views(heard, like)
    places = [Place(*place) for place in task.places]
    slots = [trajectory_in(_mapped(block), places) for block in task.blocks[2:]]
    if task.whole:
        bounds = group_bounds(plan)
        first, last = bounds[task.groups[0]], bounds[task.groups[1]]
        slots = [slot.columns(first, last) for slot in slots]
    version = -1
    while True:
        message, descriptor = inbox.get()
        match message["do"]:
            case "collect":
                asked = message["version"]  # -1: the newest
                newest = range(version + 1, 1 << 62) if asked < 0 else range(asked, asked + 1)
                if asked != version:
                    found = boxes.read(0, newest, heard)
                    if found is not None:
                        version = found
                        torch._foreach_copy_(params, heard_views)
                        actor.policy.refresh()
                spent = dict(actor.seconds)
                actor.collect(slots[message["slot"]], version)
                channel.send(
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
                channel.send({"kind": "state"}, block)
                os.close(block)
            case "load state":
                from gossamer.run.placements.channel import unpack

                assert descriptor is not None
                tensors, rest = unpack(descriptor)
                back = actor.load_state_dict({**tensors, **rest}, exact=message["exact"])
                channel.send({"kind": "loaded", "back": back})
            case _:
                return


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


def _listen(channel: Channel, inbox: queue.SimpleQueue[tuple[dict[str, Any], int | None]]) -> None:
    """Hand messages on; when the team's end of the channel closes, end this process without writing anything."""
    while not channel.closed:
        for message in channel.receive():
            inbox.put((message, channel.take_descriptor() if message.get("packed") else None))
    os._exit(1)
