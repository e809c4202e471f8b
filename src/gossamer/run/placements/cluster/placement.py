"""The placement of learners on a Ray cluster: an agent for each host, and the supervisor's copy of what they share."""

from __future__ import annotations

import math
import mmap
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)

from gossamer.config import to_dict
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.mailboxes import ENV_STEPS
from gossamer.links.mirror import Incoming, Outgoing
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.run.host_protocol import Died, Done, Event, Failed, Notice, Ready
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.cluster.agent import Assignment, Beginning
from gossamer.run.placements.cluster.session import Session
from gossamer.run.placements.layout import transport_of
from gossamer.run.placements.learners_memory import Memory
from gossamer.run.placements.out_of_process import OutOfProcess
from gossamer.run.placements.process_host import CLOSE_SECONDS
from gossamer.run.snapshot import part_of
from gossamer.run.state import RunState
from gossamer.system.messages import from_whole, to_array
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gossamer.build.auto import Plan
    from gossamer.config import TrainConfig
    from gossamer.links.collective import MeetingPoint
    from gossamer.links.wire import Address
    from gossamer.run.host_protocol import LoadInitialState
    from gossamer.run.placements.cluster.agent import News, Where
    from gossamer.run.placements.layout import Layout
    from gossamer.run.state import InitialState
    from gossamer.types import EnvSpec

FULL = (ObjectStoreFullError, OutOfDiskError)
NO_ROOM = "Ray's object store is full, and so is the disk beneath it: ray start --object-store-memory makes it larger"
LOOK_SECONDS = 0.1
"""Longest time between two looks at signals, deadlines and agents."""
NEWS_SECONDS = 0.25
"""Longest time that an agent waits for something to tell."""
ANSWER_SECONDS = 20.0
"""Longest time for an agent to take an order, after which another takes its place: learners may stand still meanwhile."""
UNREACHABLE_SECONDS = 1.0
"""Pause between two questions to an agent that cannot be reached at the moment: Ray says when it is gone for good."""
LONGEST_PAUSE_SECONDS = 1.0
"""Between two looks at agents: what goes beyond it counts for no agent's silence."""
RETRY_SECONDS = 60.0
"""Longest pause between two attempts to start an agent where the others train."""
SETTLE_SECONDS = 5.0
"""A run that may begin without some of its learners waits this long for one more of them."""

MAX_FAILURES = 5
"""Attempts to start an agent, after which the run ends."""
BECAUSE = "The actor is dead because"
"""How Ray begins the line that tells why."""


class ClusterHost:
    """A host on some machine of the cluster, as the supervisor sees it.

    Args:
        ranks: of its learners.
        agent: handle of its Ray actor, which may have no place yet.
        memory: the supervisor's copy.
        strangers: learners with which its own exchange no letters.
    """

    def __init__(self, ranks: range, agent: Any, memory: Memory, strangers: Sequence[int]):
        self.ranks, self.agent, self.strangers = ranks, agent, strangers
        self.away = True
        """Whether it has no place: nobody waits for it, and a checkpoint does without it."""
        self.done = False
        """Whether it has told everything, or has died."""
        self.ready = False
        """Whether its learners have been made."""
        self.told_away = False
        """Whether the user knows that it has no place."""
        self.asked_at = self.unreachable_at = self.heard_at = time.monotonic()
        self.machine, self.here = "", False
        self.letterbox: Address
        """Where its agent takes letters, once it has a place."""
        self.pid = 0
        self._memory = memory
        self._mail, self._policies = Incoming(memory.boxes), Incoming(memory.versions.boxes)
        self._heard = 0  # number of the agent's last answer
        self._begun: Any = None
        self._ordered: tuple[int, bool] | None = None
        self.placed: Any = agent.where.remote()
        self.news: Any = None

    @property
    def version(self) -> int:
        """Newest version of its first learner; -1 before the first."""
        return self._memory.versions.newest(self.ranks.start)

    @property
    def who(self) -> str:
        """Its learners, in words."""
        more = f" to {self.ranks[-1]}" if len(self.ranks) > 1 else ""
        return f"learner{'s' * bool(more)} {self.ranks.start}{more}"

    def note_place(self) -> None:
        """Take notice that it has a place; raise what Ray says if it will have none."""
        where: Where = cast("Any", ray.get(self.placed))
        self.machine, self.letterbox = where
        self.here = self.machine == ray.util.get_node_ip_address()

    def put_off(self, seconds: float) -> None:
        """Take notice of time in which it could not have been heard."""
        self.asked_at += seconds
        self.unreachable_at += seconds
        self.heard_at += seconds

    @property
    def is_beginning(self) -> bool:
        """Whether its agent is still taking in what its learners begin with."""
        return self._begun is not None and not ray.wait([self._begun], timeout=0)[0]

    def begin(self, beginning: Beginning) -> None:
        """Let its learners begin.

        Raises:
            RunFailed: there is no room on this machine for what they begin with.
        """
        try:
            self._begun = self.agent.begin.remote(beginning)
        except FULL as error:
            raise RunFailed(f"{NO_ROOM}, on this machine") from error
        self.away = False
        self.heard_at = time.monotonic()

    def failed_to_begin(self) -> str | None:
        """Return why its agent could not begin, and hear it no more; None: it has begun, or is about to."""
        if self._begun is None or self.is_beginning:
            return None
        begun, self._begun = self._begun, None
        try:
            self.pid = cast("int", ray.get(begun))
        except RayError as error:
            self.done, self.news = True, None
            return _first_line(error)
        return None

    def order(self, number: int, *, ends: bool) -> None:
        """Let its learners save after their next version; said again whenever news are asked for, as it may be lost on the way."""
        self._ordered = number, ends
        self.agent.order.remote(number, ends=ends)

    def ask(self) -> None:
        """Ask for news, and tell how far learners are that it does not hear."""
        self.asked_at = time.monotonic()
        env_steps = {rank: self._memory.boxes.env_steps(rank) for rank in self.strangers}
        news = self.agent.news.options(concurrency_group="news")
        self.news = news.remote(NEWS_SECONDS, self._heard, env_steps, self._ordered)

    def hear(self) -> list[Event] | None:
        """Return what the agent has told, now that it has; None: it cannot be reached at the moment."""
        try:
            news: News = cast("Any", ray.get(self.news))
        except ActorUnavailableError:
            self.news, self.unreachable_at = None, time.monotonic()
            return None
        except RayActorError as error:
            self.done, self.news = True, None
            return [Died(f"on {self.machine}: {_cause_of(error)}")]
        except RayTaskError as error:
            self.done, self.news = True, None
            return [Failed("RunFailed", f"{self.who}: the agent failed: {error.cause!r}")]
        except FULL:
            self.done, self.news = True, None
            return [Died(f"on {self.machine}: {NO_ROOM}")]
        except RayError:  # the answer was lost on its way
            self.news, self.unreachable_at = None, time.monotonic()
            return None
        self.heard_at = time.monotonic()
        known, self._heard = news.number <= self._heard, news.number
        if news.policies is not None:
            self._policies.deliver(news.policies)
        if news.mail is not None:
            self._mail.deliver(news.mail)
        found: list[Event] = []
        for told in () if known else news.events:
            event: Event = from_whole(told.copy(), Event)  # Ray lends its memory for reading
            self.done = self.done or isinstance(event, Done | Died | Failed)
            found.append(event)
        self.news = None
        if not self.done:
            self.ask()
        return found


class Cluster(OutOfProcess):
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
        size = config.num_learners
        per = len(layout.ranks[0])
        self._fewest = min(config.cluster.min_learners or size, size)
        self._session = Session(config, len(layout.ranks), -(-self._fewest // per), layout.share)
        self._lives = [0] * len(layout.ranks)
        self._failures = [0] * len(layout.ranks)  # to start an agent, in a row
        self._heard = [self._hears(index) for index in range(len(layout.ranks))]
        self._number, self._ends, self._patched = 0, False, False
        self._told_places = False
        self._enough_at = time.monotonic()  # when as many learners had places as there must be
        self._looked_at = math.inf
        self._retry_at: dict[int, float] = {}  # of agents that could not be started
        try:
            self._make_memory()
        except BaseException:
            self._session.close()
            raise

    def __str__(self) -> str:
        return f"{len(self.layout.ranks)} hosts in {self._session}"

    @property
    def ends_alone(self) -> bool:
        """Whether every learner counts as the others do."""
        return not self._patched

    def start(self, load: LoadInitialState) -> None:
        """Have an agent placed for every part of the learners, and hand each its part of the initial state."""
        if self.hosts:  # the group has died
            self._make_memory()
            self.stop = StopSignal()
        self._number, self._ends, self._patched, self._told_places = 0, False, False, False
        self._retry_at.clear()
        if self._transport != "memory":
            from gossamer.links.collective import MeetingPoint

            self._meeting = MeetingPoint(ray.util.get_node_ip_address())
        initial = self._load_initial_state(load)
        self.hosts = [self._host(index) for index in range(len(self.layout.ranks))]
        self._wait_placed()
        self._note_env_steps(initial)
        for host in self.hosts:
            if not host.machine:
                self._do_without(host)
        for index, host in enumerate(self.hosts):
            if host.machine:
                self._begin_host(index, part_of(initial, host.ranks), {})
        self._introduce()
        self._looked_at = time.monotonic()

    def replace(self, index: int, restarts: int) -> bool:
        """Have a new agent placed where one has died; return whether it is to take over from one that had learnt.

        Until it has a place the others go on without it.
        """
        host = self.hosts[index]
        takes_over = bool(self._leave(host))
        with suppress(RayError):
            ray.kill(host.agent)
        self._lives[index] += 1
        self._retry_at.pop(index, None)
        self.hosts[index] = self._host(index)
        if takes_over:
            self._tell_left(index)
        return takes_over

    def poll(self) -> list[tuple[int, Event]]:
        """Return what agents have told, by index; wait for the first of it a tenth of a second."""
        if self.stop.stopped:
            raise self.stop.error or Stopped
        found = self._look()
        waited = {x.news: i for i, x in enumerate(self.hosts) if x.news is not None}
        for index in [i for i, at in self._retry_at.items() if time.monotonic() >= at]:
            del self._retry_at[index]
            self.hosts[index] = self._host(index)
        waited |= {x.placed: i for i, x in enumerate(self.hosts) if x.away and self._may_begin(i)}
        if not waited:
            self.stop.wait(LOOK_SECONDS)
            return found
        told, _ = ray.wait(list(waited), timeout=LOOK_SECONDS)
        if told:
            told, _ = ray.wait(list(waited), num_returns=len(waited), timeout=0)
        for index in sorted(waited[x] for x in told):
            host = self.hosts[index]
            if host.away:
                found += self._come_back(index)
                continue
            for event in host.hear() or ():
                if isinstance(event, Ready):
                    self._note_env(event)
                    found += [(index, Notice(text)) for text in self._places(host)]
                found.append((index, event))
        return found

    def order(self, *, ends: bool) -> int:
        """Ask all learners to save, those in lock-step after the same version; return the order's number."""
        self._number, self._ends = self._number + 1, ends
        there = [host for host in self.hosts if not (host.done or host.away)]
        if self.config.topology.staleness:
            for host in there:
                host.order(self._number, ends=ends)
            return self._number
        at = 0
        while True:
            asked = [(x, x.agent.propose.remote(self._number, at, ends=ends)) for x in there]
            newest = max(self._answers(asked), default=0)
            if newest < at:
                break
            at = newest + 1
        # Without it a learner that is there waits.
        list(self._answers([(x, x.agent.settle.remote()) for x in there]))
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

    def _answers(self, asked: Sequence[tuple[ClusterHost, Any]]) -> Iterable[int]:
        """Yield what agents answer; the dead answer nothing, and who cannot be reached in time is given up."""
        until = time.monotonic() + ANSWER_SECONDS
        patience = self.config.patience_seconds or math.inf
        for host, one in asked:
            # One that takes in what it begins with, which may be many GB, answers after that.
            while host.is_beginning and time.monotonic() < host.heard_at + patience:
                if self.stop.stopped or ray.wait([one], timeout=LOOK_SECONDS)[0]:
                    break
                until = time.monotonic() + ANSWER_SECONDS
            try:
                yield ray.get(one, timeout=max(until - time.monotonic(), 0.0))
            except (GetTimeoutError, ActorUnavailableError):
                self._give_up(host)
            except RayActorError:
                pass  # its news tell

    def _give_up(self, host: ClusterHost) -> None:
        """End an agent that has not answered, so that another takes its place."""
        with suppress(RayError):
            ray.kill(host.agent)

    def _make_memory(self) -> None:
        blocks = [mmap.mmap(-1, n) for n in self.sizes.nbytes(self.config.num_learners)]
        self.memory = Memory(blocks, self.config, self.sizes, self.policy.shared_tensors())

    def _wait_placed(self) -> None:
        """Wait until all agents are somewhere, or as many as there must be and no other comes for a while.

        Raises:
            RunFailed: too few are, in time.
        """
        waiting, seconds = {x.placed: x for x in self.hosts}, self.config.cluster.wait_seconds
        began = came = time.monotonic()
        while waiting and (now := time.monotonic()) < began + seconds:
            if self.stop.stopped or self.asked_to_stop():
                raise self.stop.error or Stopped
            if self._num_placed >= self._fewest and now >= came + SETTLE_SECONDS:
                break
            done, _ = ray.wait(list(waiting), timeout=LOOK_SECONDS)
            for one in done:
                host, came = waiting.pop(one), now
                try:
                    host.note_place()
                except RayError as error:
                    again = self._place_again(self.hosts.index(host), error)
                    waiting[again.placed] = again
        if self._num_placed < self._fewest:
            raise RunFailed(f"{self._without_place(waiting.values())} after {seconds:.0f} s")
        self._enough_at = time.monotonic()

    def _place_again(self, index: int, error: RayError) -> ClusterHost:
        """Have another agent placed where one could not be made: its machine is gone again, or lacks something.

        Raises:
            RunFailed: it has happened too often.
        """
        self._failures[index] += 1
        if self._failures[index] >= MAX_FAILURES:
            raise RunFailed(
                f"{self.hosts[index].who} could not be started on the cluster in {MAX_FAILURES} attempts: {_cause(error)}; gossamer "
                "cluster check tells what machines lack"
            ) from error
        self.hosts[index] = self._host(index)
        return self.hosts[index]

    def _try_later(self, index: int, error: RayError) -> list[tuple[int, Event]]:
        """Have another agent placed after a pause, where one could not be made while others train; return what to say."""
        if self._num_placed < (self.config.cluster.min_learners or 1):
            self._place_again(index, error)
            return []
        self._failures[index] += 1
        pause = min(2.0 ** self._failures[index], RETRY_SECONDS)
        self._retry_at[index] = time.monotonic() + pause
        if self._failures[index] != MAX_FAILURES:
            return []
        told = (
            f"{self.hosts[index].who} could not be started on the cluster in {MAX_FAILURES} attempts: {_cause(error)}; "
            "the run goes on without it, and tries again every minute"
        )
        return [(index, Notice(told))]

    @property
    def _num_placed(self) -> int:
        """Learners that have a place."""
        return sum(len(x.ranks) for x in self.hosts if x.machine and not x.done)

    def _without_place(self, hosts: Iterable[ClusterHost]) -> str:
        names = ", ".join(x.who for x in hosts)
        free = cast("dict[str, float]", ray.available_resources())
        gpus = self.config.cluster.gpus_per_learner * len(self.layout.ranks[0])
        each = f"{self.layout.share:g} CPUs" + f" and {gpus:g} GPUs" * bool(gpus)
        there = f"{free.get('CPU', 0):g} CPUs" + f" and {free.get('GPU', 0):g} GPUs" * bool(gpus)
        has_room = free.get("CPU", 0) >= self.layout.share and free.get("GPU", 0) >= gpus
        lacks = "which its machines have not started yet" if has_room else f"and {there} are free"
        return (
            f"no place in the cluster for {names}: each host needs {each}, {lacks}; "
            "--cluster.wait-seconds waits longer"
        )

    def _look(self) -> list[tuple[int, Event]]:
        """Return what is to be said of agents that have no place, do not answer, or can be reached again.

        Raises:
            RunFailed: too few learners have a place for too long.
        """
        found: list[tuple[int, Event]] = []
        now, wait = time.monotonic(), self.config.cluster.wait_seconds
        missed = now - self._looked_at - LONGEST_PAUSE_SECONDS
        self._looked_at = now
        if missed > 0:  # this process was stopped, or busy: nobody could be heard
            self._enough_at += missed
            for host in self.hosts:
                host.put_off(missed)
        patience = self.config.patience_seconds
        for index, host in enumerate(self.hosts):
            if host.done:
                continue
            if host.away:
                if now >= host.asked_at + wait and not host.told_away and not self._ends:
                    host.told_away = True
                    self._tell_left(index)  # who has waited for it does so no more
                    told = f"{self._without_place([host])}. The run goes on without it"
                    found.append((index, Notice(told)))
            elif (why := host.failed_to_begin()) is not None:
                found.append((index, Died(f"on {host.machine}: {why}")))
            elif patience and now >= host.heard_at + patience:
                told = (
                    f"{host.who} on {host.machine}: the agent has not answered for {patience:.0f} s"
                )
                found.append((index, Notice(f"{told}; another takes its place")))
                self._give_up(host)
                host.heard_at = now
            elif host.news is None and now >= host.unreachable_at + UNREACHABLE_SECONDS:
                self._reach(index)
        ending = self._ends and any(not host.away for host in self.hosts)
        ending = ending or any(host.done for host in self.hosts)
        needed = self.config.cluster.min_learners or 1
        if self._num_placed >= needed or ending:
            self._enough_at = now
        if now >= self._enough_at + wait:
            away = [x for x in self.hosts if x.away]
            raise RunFailed(
                f"fewer than {needed} learners for {wait:.0f} s: {self._without_place(away)}"
            )
        return found

    def _may_begin(self, index: int) -> bool:
        """Whether a host without a place may join once it has one: at the end only if nobody else is there."""
        if index in self._retry_at:
            return False
        host, others = self.hosts[index], [x for i, x in enumerate(self.hosts) if i != index]
        if all(x.away for x in others):
            return True
        # Those that go on without it have nothing yet that it could take over.
        early = self.config.topology.talks and not self._are_learning
        return not self._ends and not (early and self.memory.boxes.has_left(host.ranks.start))

    def _come_back(self, index: int) -> list[tuple[int, Event]]:
        """Let learners that have a place now join the others; return what there is to say."""
        host = self.hosts[index]
        try:
            host.note_place()
        except RayError as error:
            return self._try_later(index, error)
        donors = self._donors_of(host.ranks) if host.version >= 0 or self._are_learning else {}
        initial = None
        if donors:
            self._patched = True
            if not self._lives[index]:
                self._lives[index] = 1
            self._tell_left(index)
        else:
            with suppress(ConfigError):  # what the run began with may have been removed by now
                initial = part_of(self._load(host.ranks), host.ranks)
        self._begin_host(index, initial, donors)
        for at in self._neighbours(index):
            other = self.hosts[at]
            if not (other.done or other.away):
                other.agent.meet.remote({index: host.letterbox})
                host.agent.meet.remote({at: other.letterbox})
        if self._number:
            host.order(self._number, ends=self._ends)
        return []

    @property
    def _are_learning(self) -> bool:
        """Whether some learner has a version, so that whoever comes takes over from those that have."""
        return self.config.topology.talks and bool(self.memory.versions.present())

    def absent(self) -> dict[int, int]:
        """Return the learners without a place, and how many env steps each has learnt from."""
        boxes = self.memory.boxes
        return {rank: boxes.env_steps(rank) for x in self.hosts if x.away for rank in x.ranks}

    def _note_env_steps(self, initial: InitialState | None) -> None:
        """Remember how far each learner was, until it tells how far it is."""
        if isinstance(initial, RunState):
            for rank, learner in enumerate(initial.learners):
                self.memory.boxes.headers[rank][ENV_STEPS] = learner.own_env_steps

    def _do_without(self, host: ClusterHost) -> None:
        """Let the others begin without a host."""
        self._patched = True
        for rank in host.ranks:
            self.memory.boxes.mark_left(rank)
            self.memory.versions.boxes.mark_left(rank)

    def _tell_left(self, index: int) -> None:
        """Let all learners know that a host's are gone, and with which epoch they come back."""
        host = self.hosts[index]
        self._patched = True
        for rank in host.ranks:
            self.memory.boxes.mark_left(rank)
            self.memory.versions.boxes.mark_left(rank)
        near = self._neighbours(index)
        for at, other in enumerate(self.hosts):
            if other is not host and not (other.done or other.away):
                other.agent.patch.remote()
                if at in near:
                    other.agent.leave.remote(index, host.ranks, self._lives[index])

    def _reach(self, index: int) -> None:
        """Tell an agent that can be reached again, perhaps, what it may have missed, and ask for its news."""
        host = self.hosts[index]
        for at in self._neighbours(index):
            other = self.hosts[at]
            if other.away or other.done:
                if self.memory.boxes.has_left(other.ranks.start):
                    host.agent.leave.remote(at, other.ranks, self._lives[at])
            else:
                host.agent.meet.remote({at: other.letterbox})
        if self._patched:
            host.agent.patch.remote()
        if self._number and self.config.topology.staleness:
            host.order(self._number, ends=self._ends)
        host.ask()

    def _places(self, host: ClusterHost) -> list[str]:
        """Say where learners are: all of them once they are there, later one that has come."""
        host.ready = True
        self._failures[self.hosts.index(host)] = 0
        host.failed_to_begin()
        if self._told_places:
            return [f"{host.who} has joined, on {host.machine}"]
        if not all(x.ready or x.away for x in self.hosts):
            return []
        self._told_places = True
        machines: dict[str, list[str]] = {}
        for one in self.hosts:
            where = "no machine yet" if one.away else one.machine
            machines.setdefault(where, []).extend(map(str, one.ranks))
        told = (f"{', '.join(ranks)} on {name}" for name, ranks in machines.items())
        return [f"learner{'s' * (self.config.num_learners > 1)} {'; '.join(told)}"]

    def _introduce(self) -> None:
        """Let all agents that are there write to each other."""
        there = {i: x for i, x in enumerate(self.hosts) if not (x.done or x.away)}
        for index, host in there.items():
            near = self._neighbours(index)
            host.agent.meet.remote({i: x.letterbox for i, x in there.items() if i in near})

    def _neighbours(self, index: int) -> set[int]:
        """Return the hosts that a host exchanges letters with: where nobody waits, those that hear it or that it hears.

        Who waits has to know of everyone: how far they are, and whom those wait for that it waits for.
        """
        others = set(range(len(self.layout.ranks))) - {index}
        if self.config.topology.staleness < FOREVER:
            return others
        return {x for x in others if self._heard[index].get(x) or self._heard[x].get(index)}

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

    def _host(self, index: int) -> ClusterHost:
        """Have an agent placed."""
        ranks = self.layout.ranks[index]
        task = LearnerTask(
            config=to_dict(self.config),
            plan=self.plan,
            ranks=(ranks.start, ranks.stop),
            process=0,
            num_processes=1,
            blocks=(),
            mixed_sizes=self.sizes.mixed,
            policy_sizes=self.sizes.policy,
            cores=(),
            overlaps=self.layout.overlaps,
            restarts=0,
            donors={},
            differs=None,
            transport=self._transport,
            meeting=self._meeting.address if self._meeting is not None else "",
        )
        assignment = Assignment(
            task,
            lock_step=self.config.topology.staleness == 0,
            awaited=self.config.topology.staleness < FOREVER,
            hears=self._heard[index],
        )
        near = self._neighbours(index)
        far = [x for at, x in enumerate(self.layout.ranks) if at != index and at not in near]
        strangers = [rank for ranks in far for rank in ranks]
        return ClusterHost(ranks, self._session.agent(assignment), self.memory, strangers)

    def _begin_host(
        self, index: int, initial: InitialState | None, donors: dict[int, list[int]]
    ) -> None:
        """Let the learners of a host that has a place begin; it is told whom it cannot hear itself."""
        host, everyone = self.hosts[index], range(self.config.num_learners)
        policies = set(donors) | {x for each in donors.values() for x in each}
        gone = everyone if donors else [r for x in self.hosts if not x.machine for r in x.ranks]
        mail = Outgoing(self.memory.boxes, gone, (), every=False, epoch=0)
        boards = Outgoing(self.memory.versions.boxes, policies, policies, every=False, epoch=0)
        beginning = Beginning(
            epoch=self._lives[index],
            donors=donors,
            differs=self.spec.differs if self._tried else None,
            initial=None if initial is None else to_array(initial),
            mail=mail.letter(life=True),
            policies=boards.letter(life=True),
        )
        host.begin(beginning)
        if self._patched:
            host.agent.patch.remote()
        host.ask()


def _cause(error: RayError) -> str:
    return _cause_of(error) if isinstance(error, RayActorError) else _first_line(error)


def _cause_of(error: RayActorError) -> str:
    """Return why an actor is dead, in Ray's words."""
    lines = [x.strip() for x in str(error).splitlines()]
    known = [x.removeprefix(BECAUSE).strip() for x in lines if x.startswith(BECAUSE)]
    return known[0].partition(". ")[0] if known else _first_line(error)


def _first_line(error: Exception) -> str:
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    return lines[0] if lines else type(error).__name__
