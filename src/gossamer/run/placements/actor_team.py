"""Actors in processes of their own, which are one actor to their learner's process: IMPALA's shape.

Every actor steps some of the learner's groups of environments. With a set lag all fill their columns of one slot, so what
is collected is what one actor with as many groups collects, bit for bit. Without one each fills slots of its own, and a
trajectory is made of those that are ready: nobody waits for the slowest. An actor that dies is replaced, and its
environments begin new episodes.

Source: Espeholt et al. 2018 (arXiv:1802.01561), section 3.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from gossamer.build.roles import group_bounds
from gossamer.config import to_dict
from gossamer.errors import RunFailed
from gossamer.links.mailboxes import Mailboxes, make_memory
from gossamer.links.stopping import Stopped
from gossamer.roles.actor import generator_name
from gossamer.roles.mixer import message_sizes, views
from gossamer.run.host_protocol import Failed, Notice
from gossamer.run.placements.child_protocol import (
    ActorReady,
    ActorReply,
    ActorState,
    ActorTask,
    Collect,
    Collected,
    EndActor,
    LoadState,
    StateLoaded,
    TellState,
)
from gossamer.run.placements.fork_server import ready
from gossamer.run.placements.remote_actor import RemoteActor, TeamMemory
from gossamer.run.placements.spawn import CLOSE_SECONDS, end_children, how_ended, spawn
from gossamer.system.prefixes import without_prefix
from gossamer.system.signs_of_life import START_SECONDS, Patience, Sign
from gossamer.types import lay_out_trajectory, trajectory_in

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from torch import Tensor

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.links.stopping import StopSignal
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.roles.acting_group import Episode
    from gossamer.run.placements.channel import Channel
    from gossamer.run.placements.child_protocol import ActorRequest
    from gossamer.run.placements.spawn import Popen
    from gossamer.spec import EnvSpec
    from gossamer.types import Trajectory

T = TypeVar("T")
LOOK_SECONDS = 0.2
"""Longest time between two looks at actors and at whether the run stops."""
MAX_DEATHS_IN_A_ROW = 3
"""Deaths of an actor, with no trajectory collected in between, that end the run."""
MARGIN_SECONDS = 5.0
"""An actor that gives itself up knows its environment by name: others give it up later."""
RESTARTS_APART = 1_000_000
"""Distance between the random streams of an actor that was replaced and those of a learner that was."""
FREE_SLOTS = 2
"""Slots of an actor without a set lag: one is read while it fills the other."""


class _Params(NamedTuple):
    """Tensors that the learner's side writes parameters into, in place of an actor's own policy."""

    tensors: list[Tensor]

    def shared_tensors(self) -> list[Tensor]:
        """Parameters and moments, as a policy's."""
        return self.tensors

    def refresh(self) -> None:
        """Nothing follows from the parameters here."""


class _Member:
    """One actor: its process, while it lives, and what it was asked for."""

    def __init__(self, index: int, groups: range):
        self.index, self.groups = index, groups
        self.popen: Popen
        self.channel: Channel[ActorReply]
        self.asked: deque[ActorRequest] = deque()
        """Requests that it has yet to carry out, the oldest first."""
        self.answers: deque[ActorState | StateLoaded] = deque()
        """To those about its state."""
        self.ready = False
        self.deaths_in_a_row = 0
        self.restarts = 0


class ActorTeam:
    """K actors of one learner, with the interface of one.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became; its groups of environments are shared out among the actors.
        policy: the learner's.
        rank: of the learner.
        restarts: how often the learner was replaced.
        start: begin episodes; otherwise `load_state_dict` follows.
        on_episode: told every finished episode.
        say: shows a line.
        stop: ends waiting.
        placer: has an actor placed on another machine; None: they are processes of this one.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        plan: Plan,
        policy: ActorCritic,
        *,
        rank: int,
        restarts: int,
        start: bool,
        on_episode: Callable[[Episode], None],
        say: Callable[[str], None],
        stop: StopSignal,
        placer: Callable[[ActorTask, TeamMemory], RemoteActor] | None = None,
    ):
        self.env_steps = 0
        self.seconds = {"env": 0.0, "inference": 0.0}
        self.exact = True
        """Whether no actor was replaced: others' episodes are of streams that a later session would not know."""
        self.sign = Sign("every actor")
        self.policy = _Params([torch.empty_like(x) for x in policy.shared_tensors()])
        self._config, self._spec, self._plan = config, spec, plan
        self._rank, self._restarts, self._starts = rank, restarts, start
        self._on_episode, self._say, self._stop = on_episode, say, stop
        self._placer = placer
        self._free = plan.lag is None
        self._bounds = group_bounds(plan)
        count, groups = plan.actors, plan.env_groups
        self._members = [
            _Member(k, range(k * groups // count, (k + 1) * groups // count)) for k in range(count)
        ]
        self._finished: deque[tuple[_Member, Collected]] = deque()
        self._descriptors: list[int] = []
        self._sizes = message_sizes(self.policy.tensors)
        self._boxes = Mailboxes(self._make(Mailboxes.nbytes(1, self._sizes)), 1, self._sizes)
        self._views = [views(message, self.policy.tensors) for message in self._boxes.messages[0]]
        self._signs = np.frombuffer(self._make(8 * count), np.int64)
        self._version = -1
        self._places, nbytes = lay_out_trajectory(
            spec,
            unroll_length=config.unroll_length,
            num_columns=plan.num_envs // (count if self._free else 1),
            core_units=policy.core_units,
        )
        made = FREE_SLOTS * count if self._free else 2
        self.slots = [trajectory_in(self._make(nbytes), self._places) for _ in range(made)]
        """Trajectories that the learner's queue is made of, with a set lag; without one the actors'."""
        self._places_of_slots = {slot.reward.data_ptr(): i for i, slot in enumerate(self.slots)}
        seconds = config.patience_seconds
        self._patience = Patience(
            seconds and seconds + MARGIN_SECONDS, "every actor", lambda: int(self._signs.sum())
        )
        self._began = time.monotonic()
        for member in self._members:
            self._begin(member)

    @property
    def thread_ids(self) -> list[int]:
        """Ids of the actors' processes, whose priority may be lowered; empty if they are placed on a cluster."""
        return [] if self._placer else [member.popen.pid for member in self._members]

    @property
    def processes(self) -> list[dict[str, Any]]:
        """Every actor's index, pid, restarts, and the machine if it is another than the learner's."""
        rows: list[dict[str, Any]] = []
        for member in self._members:
            popen = member.popen
            row = {"actor": member.index, "pid": popen.pid, "restarts": member.restarts}
            machine = {"machine": popen.machine} if isinstance(popen, RemoteActor) else {}
            rows.append(row | machine)
        return rows

    @torch.no_grad()
    def collect(self, slot: Trajectory, version: int) -> None:
        """Fill a slot with the next T steps of every environment, acted by `policy`, or without a set lag by older ones."""
        if version != self._version:
            with self._boxes.posting(0, version) as place:
                torch._foreach_copy_(self._views[place], self.policy.tensors)
            self._version = version
        if self._free:
            self._gather(slot)
        else:
            self._collect_together(slot, version)

    def _collect_together(self, slot: Trajectory, version: int) -> None:
        place = self._places_of_slots[slot.reward.data_ptr()]
        for member in self._members:
            self._ask(member, Collect(place, version))
        told = [self._wait_for(self._finished, "a trajectory") for _ in self._members]
        told.sort(key=lambda one: one[0].index)
        found: list[tuple[int, Episode]] = []
        for member, collected in told:
            found += self._episodes(member, collected, slot)
        # As one actor tells them: row by row, and in each from the first column on.
        for _, episode in sorted(found, key=lambda x: x[0]):
            self._on_episode(episode)
        slot.env_steps = int(slot.valid.sum())
        self.env_steps += slot.env_steps

    def _gather(self, slot: Trajectory) -> None:
        size = slot.reward.shape[1] // len(self._members)
        for member in self._members:
            busy = {asked.slot for asked in member.asked if isinstance(asked, Collect)}
            busy |= {told.slot for x, told in self._finished if x is member}
            for k in range(FREE_SLOTS):
                if (place := member.index * FREE_SLOTS + k) not in busy:
                    self._ask(member, Collect(place, -1))
        for k in range(len(self._members)):
            member, collected = self._wait_for(self._finished, "a trajectory")
            block, piece = slot.columns(k * size, (k + 1) * size), self.slots[collected.slot]
            for (_, target, _), (_, source, _) in zip(block.each(), piece.each(), strict=True):
                target.copy_(source)
            self._ask(member, Collect(collected.slot, -1))
            for _, episode in self._episodes(member, collected, block):
                self._on_episode(episode)
            self.env_steps += int(block.valid.sum())
        slot.env_steps = int(slot.valid.sum())

    def _episodes(
        self, member: _Member, collected: Collected, slot: Trajectory
    ) -> list[tuple[int, Episode]]:
        """Return finished episodes, each with the row that it ended in, which an actor tells as its env steps."""
        for name, seconds in collected.seconds.items():
            self.seconds[name] += seconds / len(self._members)
        first = self._bounds[member.groups.start]
        found: list[tuple[int, Episode]] = []
        for told in collected.episodes:
            t = told.env_steps
            steps = self.env_steps + int(slot.valid[: t + 1].sum())
            found.append((t, replace(told, env=told.env + first, env_steps=steps)))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, between two trajectories, in the form of one actor's state."""
        for member in self._members:
            self._ask(member, TellState())
        state: dict[str, Any] = {"env_steps": self.env_steps}
        for member in self._members:
            told = self._wait_for(member.answers, "its state")
            assert isinstance(told, ActorState)
            tensors = told.tensors
            for k, group in enumerate(member.groups):
                mine = without_prefix(tensors, f"{k}.")
                state |= {f"{group}.{x}": y for x, y in mine.items() if x != "generator"}
                state[generator_name(group)] = tensors[generator_name(k)]
        return state

    def load_state_dict(self, state: dict[str, Any], *, exact: bool) -> bool:
        """Continue from `state_dict`, or from one actor's; arguments and result as there."""
        self.env_steps = state["env_steps"]
        for member in self._members:
            tensors: dict[str, Tensor] = {}
            for k, group in enumerate(member.groups):
                mine = without_prefix(state, f"{group}.")
                tensors |= {f"{k}.{x}": y for x, y in mine.items() if x != "generator"}
                if generator_name(group) in state:
                    tensors[generator_name(k)] = state[generator_name(group)]
            self._ask(member, LoadState(tensors, exact))
        answers = [self._wait_for(member.answers, "its state") for member in self._members]
        return all(isinstance(told, StateLoaded) and told.back for told in answers)

    def close(self) -> None:
        """End the actors: before they are killed they leave what they are at, and close their environments."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.channel.end.setblocking(False)
                member.channel.send(EndActor())
        busy = self._free or any(
            not member.ready or any(isinstance(x, Collect | LoadState) for x in member.asked)
            for member in self._members
        )
        # Where they have nothing left to do they may take as long as in this process, less what killing them takes.
        patient = 0.0 if busy else self._config.stop_within_seconds - CLOSE_SECONDS
        children = [(member.popen, member.channel) for member in self._members]
        closing = [member.popen for member in self._members]
        end_children(children, closing, max(CLOSE_SECONDS, patient))
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _make(self, nbytes: int) -> mmap.mmap:
        descriptor, memory = make_memory(nbytes)
        self._descriptors.append(descriptor)
        return memory

    def _begin(self, member: _Member) -> None:
        threads = max(self._plan.env_threads // len(self._members), 1)
        first, last = self._bounds[member.groups.start], self._bounds[member.groups.stop]
        task = ActorTask(
            config=to_dict(self._config),
            plan=replace(self._plan, env_threads=threads),
            spec=self._spec,
            rank=self._rank,
            actor=member.index,
            groups=(member.groups.start, member.groups.stop),
            blocks=tuple(self._descriptors),
            places=self._places,
            columns=(0, last - first) if self._free else (first, last),
            sizes=self._sizes,
            restarts=self._restarts + RESTARTS_APART * member.restarts,
            start=self._starts or member.restarts > 0,
        )
        member.ready = False
        if self._placer is None:
            member.popen, member.channel = spawn(task, ActorReply)
            return
        slots = [slot.columns(*task.columns) for slot in self.slots]
        actor = self._placer(task, TeamMemory(self._boxes, self._signs, slots))
        member.popen, member.channel = actor, actor.channel

    def _ask(self, member: _Member, request: ActorRequest) -> None:
        member.asked.append(request)
        with contextlib.suppress(OSError):  # it is dead, which those who wait for it will see
            member.channel.send(request)

    def _wait_for(self, told: deque[T], what: str) -> T:
        """Wait for something that an actor tells, and take it; actors that begin may be silent for long."""
        wait = self._patience.wait(what)
        while not told:
            self._hear()
            all_ready = all(member.ready for member in self._members)
            starting = not all_ready and time.monotonic() - self._began < START_SECONDS
            if wait.look() or starting:
                self.sign.beats += 1
            if starting:
                wait = self._patience.wait(what)
        return told.popleft()

    def _hear(self) -> None:
        """Take what actors tell; wait for the first of it a moment."""
        if self._stop.stopped:
            raise Stopped
        open_ = [x.channel.end.fileno() for x in self._members if not x.channel.closed]
        readable = ready(open_, LOOK_SECONDS)
        for member in self._members:
            if member.channel.end.fileno() in readable:
                for reply in member.channel.receive():
                    self._take(member, reply)
            if member.channel.closed and member.popen.poll() is not None:
                self._replace(member)

    def _take(self, member: _Member, reply: ActorReply) -> None:
        match reply:
            case ActorReady():
                member.ready = True
            case Notice(text):
                self._say(text)
            case Collected():
                member.deaths_in_a_row = 0
                member.asked.popleft()
                self._finished.append((member, reply))
            case ActorState() | StateLoaded():
                member.asked.popleft()
                member.answers.append(reply)
            case Failed():
                raise reply.error

    def _replace(self, member: _Member) -> None:
        """Start a new process for an actor that has died; it does what the dead one had yet to do."""
        how = how_ended(member.popen)
        if isinstance(member.popen, RemoteActor):
            how = f"its connection from {member.popen.machine or 'another machine'} has ended"
        member.deaths_in_a_row += 1
        whose = f" of learner {self._rank}" if self._config.num_learners > 1 else ""
        name = f"actor {member.index}{whose}"
        if member.deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            raise RunFailed(
                f"{name} died {member.deaths_in_a_row} times before it had collected anything ({how}), which a simulator "
                f"can be the cause of: {self._config.env_id}"
            )
        once = "; from now on the run does not resume exactly" * self.exact
        self._say(f"{name} has died ({how}); a new one begins new episodes{once}")
        self.exact = False
        member.restarts += 1
        member.channel.close()
        asked, member.asked = member.asked, deque()
        if any(isinstance(told, StateLoaded) for told in member.answers):
            member.answers.clear()
            member.answers.append(StateLoaded(back=False))
        self._began = time.monotonic()
        self._begin(member)
        for request in asked:
            if isinstance(request, LoadState):  # its environments could not be brought back
                member.answers.append(StateLoaded(back=False))
            else:
                self._ask(member, request)
