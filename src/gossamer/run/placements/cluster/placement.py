"""The placement of learners on a Ray cluster: an agent for each host, and the supervisor's copy of what they share."""

from __future__ import annotations

import dataclasses
import mmap
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from gossamer.config import to_dict
from gossamer.errors import RunFailed
from gossamer.links.mirror import Incoming, Outgoing
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.run.hosts import Died, Done, Failed, Notice, Ready, Snapshot
from gossamer.run.placements.boards import Memory
from gossamer.run.placements.cluster.agent import Assignment, from_array, packed_array
from gossamer.run.placements.cluster.session import Session
from gossamer.run.placements.layout import transport_of
from gossamer.run.placements.process_host import CLOSE_SECONDS, Task
from gossamer.run.placements.remote_hosts import RemoteHosts, part_of
from gossamer.run.snapshot import names_of
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.links.collective import MeetingPoint
    from gossamer.links.mirror import Letter
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.run.hosts import Begin, Event
    from gossamer.run.placements.cluster.agent import News, Where
    from gossamer.run.placements.layout import Layout
    from gossamer.types import EnvSpec

LOOK_SECONDS = 0.1
"""Longest time between two looks at signals, deadlines and agents."""
NEWS_SECONDS = 0.25
"""Longest time that an agent waits for something to tell."""
ANSWER_SECONDS = 60.0
"""Longest time for an agent to take an order."""


class ClusterHost:
    """A host on some machine of the cluster, as the supervisor sees it.

    Args:
        ranks: of its learners.
        agent: handle of its Ray actor.
        memory: the supervisor's copy.
    """

    def __init__(self, ranks: range, agent: Any, memory: Memory):
        self.ranks, self.agent = ranks, agent
        self.done = False
        """Whether it has told everything, or has died."""
        self.ready = False
        """Whether its learners have been made."""
        self.machine, self.here = "", False
        self.pid = 0
        self._memory = memory
        self._mail, self._policies = Incoming(memory.boxes), Incoming(memory.versions.boxes)
        self.where = agent.where.remote()
        self.news: Any = None

    @property
    def version(self) -> int:
        """Newest version of its first learner; -1 before the first."""
        return self._memory.versions.newest(self.ranks.start)

    def ask(self) -> None:
        """Ask for news."""
        self.news = self.agent.news.options(concurrency_group="news").remote(NEWS_SECONDS)

    def hear(self) -> list[Event]:
        """Return what the agent has told, now that it has."""
        try:
            news: News = cast("Any", ray.get(self.news))
        except RayActorError as error:
            self.done, self.news = True, None
            return [Died(_cause_of(error))]
        except RayTaskError as error:
            self.done, self.news = True, None
            return [
                Failed(RunFailed(f"learner {self.ranks.start}'s agent failed: {error.cause!r}"))
            ]
        if news.policies is not None:
            self._policies.deliver(news.policies)
        if news.mail is not None:
            self._mail.deliver(news.mail)
        found: list[Event] = []
        for event, packed in news.events:
            if packed is not None and isinstance(event, Snapshot):
                tensors, state = from_array(packed)
                event = dataclasses.replace(event, tensors=tensors, state=state)
            self.done = self.done or isinstance(event, Done | Died | Failed)
            found.append(event)
        self.news = None
        if not self.done:
            self.ask()
        return found


class Cluster(RemoteHosts):
    """The placement of learners on a cluster.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        layout: which learners share a host.
        tried: whether it is known if environments come back.
    """

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, plan: Plan, layout: Layout, *, tried: bool
    ):
        super().__init__(config, spec, plan, layout, tried=tried)
        self.hosts: list[ClusterHost] = []
        self._transport = transport_of(config, layout, plan.device)
        self._meeting: MeetingPoint | None = None
        self._session = Session(config, len(layout.ranks), layout.share)
        self._number, self._patched = 0, False
        self._told_places = False
        self._make_memory()

    def __str__(self) -> str:
        return f"{len(self.layout.ranks)} hosts in {self._session}"

    @property
    def ends_alone(self) -> bool:
        """Whether every learner counts as the others do."""
        return not self._patched

    def start(self, begin: Begin) -> None:
        """Start an agent for every part of the learners, and hand each its part of the checkpoint."""
        if self.hosts:  # the group has died
            self._make_memory()
            self.stop = StopSignal()
        self._number, self._patched, self._told_places = 0, False, False
        if self._transport != "memory":
            from gossamer.links.collective import MeetingPoint

            self._meeting = MeetingPoint(ray.util.get_node_ip_address())
        checkpoint = self._read_beginning(begin)
        indices = range(len(self.layout.ranks))
        self.hosts = [self._start(index, checkpoint) for index in indices]
        self._wait_placed()
        for index in indices:
            self._introduce([index])
            self.hosts[index].ask()

    def replace(self, index: int, restarts: int) -> bool:
        """Start a new agent where one has died; return whether it takes over from one that had learnt."""
        host = self.hosts[index]
        donors = self._leave(host)
        others = [x for x in self.hosts if x is not host and not x.done]
        if donors:
            self._patched = True
            for other in others:
                other.agent.patch.remote()
                other.agent.leave.remote(host.ranks, restarts)
        checkpoint = None
        if not donors:
            checkpoint = self._begin(names_of(host.ranks, replays=self.config.checkpoint_replay))
        with suppress(RayError):
            ray.kill(host.agent)
        made = self.hosts[index] = self._start(index, checkpoint, donors, restarts)
        if self._patched:
            made.agent.patch.remote()
        self._introduce([index])
        for at, other in enumerate(self.hosts):
            if other in others:
                other.agent.meet.remote({index: made.agent})
                made.agent.meet.remote({at: other.agent})
        made.ask()
        return bool(donors)

    def poll(self) -> list[tuple[int, Event]]:
        """Return what agents have told, by index; wait for the first of it a tenth of a second."""
        if self.stop.stopped:
            raise self.stop.error or Stopped
        asked = {host.news: i for i, host in enumerate(self.hosts) if host.news is not None}
        if not asked:
            self.stop.wait(LOOK_SECONDS)
            return []
        told, _ = ray.wait(list(asked), timeout=LOOK_SECONDS)
        if told:
            told, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        found: list[tuple[int, Event]] = []
        for index in sorted(asked[x] for x in told):
            for event in self.hosts[index].hear():
                if isinstance(event, Ready):
                    self._note_env(event)
                    found += [(index, Notice(text)) for text in self._places(self.hosts[index])]
                found.append((index, event))
        return found

    def order(self, *, ends: bool) -> int:
        """Ask all learners to save, those in lock-step after the same version; return the order's number."""
        self._number += 1
        together, at = self.config.topology.staleness == 0, 0
        while True:
            asked = [
                host.agent.propose.remote(self._number, at, ends=ends)
                for host in self.hosts
                if not host.done
            ]
            newest = max(self._answers(asked), default=0)
            if not together or newest < at:
                break
            at = newest + 1
        for host in self.hosts:
            host.agent.settle.remote()
        return self._number

    def end(self) -> None:
        """End the agents and their processes."""
        self.stop.stop()
        ends = [host.agent.end.remote() for host in self.hosts if host.done]
        with suppress(RayError):
            ray.wait(ends, num_returns=len(ends), timeout=2 * CLOSE_SECONDS) if ends else None
        for host in self.hosts:
            with suppress(RayError):
                ray.kill(host.agent)

    def close(self) -> None:
        """Leave the cluster."""
        self._session.close()

    def _answers(self, asked: Sequence[Any]) -> Iterable[int]:
        """Yield what agents answer; the dead answer nothing.

        Raises:
            RunFailed: one does not answer at all.
        """
        for one in asked:
            with suppress(RayActorError):
                try:
                    yield ray.get(one, timeout=ANSWER_SECONDS)
                except GetTimeoutError:
                    raise RunFailed(
                        f"a machine of the cluster has not answered for {ANSWER_SECONDS:.0f} s"
                    ) from None

    def _make_memory(self) -> None:
        blocks = [mmap.mmap(-1, n) for n in self.sizes.nbytes(self.config.num_learners)]
        self.memory = Memory(blocks, self.config, self.sizes, self.policy.shared_tensors())

    def _wait_placed(self) -> None:
        """Wait until all agents are somewhere.

        Raises:
            RunFailed: some are not, in time.
        """
        waiting, seconds = {x.where: x for x in self.hosts}, self.config.cluster.wait_seconds
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            if self.stop.stopped:
                raise self.stop.error or Stopped
            done, _ = ray.wait(list(waiting), timeout=LOOK_SECONDS)
            for one in done:
                host = waiting.pop(one)
                try:
                    ray.get(one)
                except RayError as error:
                    what = f"learner {host.ranks.start} could not be started on the cluster"
                    raise RunFailed(f"{what}: {_first_line(error)}") from error
                self._note_place(host)
        if waiting:
            free = cast("dict[str, float]", ray.available_resources())
            raise RunFailed(
                f"{len(waiting)} of {len(self.hosts)} hosts had no place in the cluster after {seconds:.0f} s: each needs "
                f"{self.layout.share:g} CPUs and {self.config.cluster.gpus_per_learner:g} GPUs, and {free.get('CPU', 0):g} CPUs "
                f"and {free.get('GPU', 0):g} GPUs are free; --cluster.wait-seconds waits longer"
            )

    def _places(self, host: ClusterHost) -> list[str]:
        """Say where learners are: all of them once they are there, later one that has come back."""
        host.ready = True
        self._note_place(host)
        if self._told_places:
            return [f"learner {host.ranks.start} is back, on {host.machine}"]
        if not all(x.ready for x in self.hosts):
            return []
        self._told_places = True
        machines: dict[str, list[str]] = {}
        for one in self.hosts:
            machines.setdefault(one.machine, []).extend(map(str, one.ranks))
        told = (f"{', '.join(ranks)} on {name}" for name, ranks in machines.items())
        return [f"learners {'; '.join(told)}"]

    def _note_place(self, host: ClusterHost) -> None:
        with suppress(RayError):
            where: Where = cast("Any", ray.get(host.where, timeout=ANSWER_SECONDS))
            host.machine, host.pid = where.machine, where.pid
            host.here = where.machine == ray.util.get_node_ip_address()

    def _introduce(self, indices: Iterable[int]) -> None:
        agents = {i: x.agent for i, x in enumerate(self.hosts) if not x.done}
        for index in indices:
            others = {i: agent for i, agent in agents.items() if i != index}
            self.hosts[index].agent.meet.remote(others)

    def _hears(self, index: int) -> dict[int, tuple[int, ...]]:
        """Return, by host, the learners of one host whose messages it ever needs."""
        topology, ranks = self.config.topology, self.layout.ranks
        turns = topology.turns(self.config.num_learners, self.config.seed)
        return {
            host: tuple(
                rank
                for rank in ranks[index]
                if any(rank in weights[reader] for weights in turns for reader in ranks[host])
            )
            for host in range(len(ranks))
            if host != index
        }

    def _start(
        self,
        index: int,
        checkpoint: Checkpoint | None,
        donors: dict[str, list[int]] | None = None,
        restarts: int = 0,
    ) -> ClusterHost:
        ranks = self.layout.ranks[index]
        task = Task(
            config=to_dict(self.config),
            plan=dataclasses.asdict(self.plan),
            ranks=(ranks.start, ranks.stop),
            process=0,
            num_processes=1,
            blocks=(),
            mixed_sizes=self.sizes.mixed,
            policy_sizes=self.sizes.policy,
            cores=(),
            overlaps=self.layout.overlaps,
            restarts=restarts if donors else 0,
            donors=donors or {},
            differs=self.spec.differs if self._tried else None,
            transport=self._transport,
            meeting=self._meeting.address if self._meeting is not None else "",
        )
        assignment = Assignment(
            dataclasses.asdict(task),
            self.plan.device,
            epoch=restarts,
            lock_step=self.config.topology.staleness == 0,
            awaited=self.config.topology.staleness < FOREVER,
            hears=self._hears(index),
        )
        agent = self._session.agent(
            assignment, self._packed(checkpoint, ranks), self._known(donors)
        )
        return ClusterHost(ranks, agent, self.memory)

    def _packed(self, checkpoint: Checkpoint | None, ranks: range) -> np.ndarray[Any, Any] | None:
        part = part_of(checkpoint, ranks)
        if part is None:
            return None
        facts = {"updates": part.updates, "state": part.state, "path": str(part.path)}
        return packed_array(part.tensors, facts)

    def _known(
        self, donors: dict[str, list[int]] | None
    ) -> tuple[Sequence[Letter], Sequence[Letter]]:
        """Return what a host that takes over has to know: all headers, and the policies of its donors and its own."""
        if not donors:
            return (), ()
        everyone = range(self.config.num_learners)
        policies = {int(x) for x in donors} | {x for each in donors.values() for x in each}
        boards = self.memory.versions.boxes
        mail = Outgoing(self.memory.boxes, everyone, (), every=False, epoch=0)
        known = Outgoing(boards, policies, policies, every=False, epoch=0)
        letters = mail.letter(life=True), known.letter(life=True)
        return tuple(((x,) if x is not None else ()) for x in letters)  # type: ignore[return-value]


def _cause_of(error: RayActorError) -> str:
    return f"on the cluster: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    return lines[0] if lines else type(error).__name__
