"""The placement of learners on a Ray cluster: an agent for each host, and the supervisor's copy of what they share."""

from __future__ import annotations

import math
import mmap
import time
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import ray
from msgspec.structs import replace
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)

from gossamer.errors import ConfigError, RunFailed
from gossamer.links.mailboxes import ENV_STEPS
from gossamer.links.mirror import Incoming, Outgoing
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.run.checkpoint_contents import RunState
from gossamer.run.host_protocol import Died, Done, Event, Failed, Notice, Order, Ready
from gossamer.run.placements.cluster.actors import cause_of
from gossamer.run.placements.cluster.joining import HeadWatch
from gossamer.run.placements.cluster.session import Session
from gossamer.run.placements.out_of_process import OutOfProcess
from gossamer.run.placements.shared_memory import Memory
from gossamer.run.placements.spawn import CLOSE_SECONDS
from gossamer.run.snapshot import part_of
from gossamer.system.messages import from_whole, to_array
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.links.collective import MeetingPoint
    from gossamer.links.mirror import Letter
    from gossamer.links.wire import Address
    from gossamer.run.checkpoint_contents import InitialState
    from gossamer.run.host_protocol import LoadInitialState
    from gossamer.run.host_state import HostState
    from gossamer.run.placements.child_protocol import LearnerTask
    from gossamer.run.placements.cluster.agent import News
    from gossamer.run.placements.process_layout import Layout
    from gossamer.spec import EnvSpec

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

HEAD_TOLD_SECONDS, HEAD_LOST_SECONDS = 6.0, 40.0
"""Silence of the cluster's head after which the run saves a checkpoint, and ends: 60 s after it is gone Ray ends this process."""
MAX_FAILURES = 5
"""Attempts to start an agent, after which the run ends."""


class ClusterHost:
    """A host on some machine of the cluster, as the supervisor sees it; its agent is another one in each incarnation.

    Args:
        task: of its process, but for its memory, and for what is known only when an agent has a place.
        state: of its first incarnation.
        memory: the supervisor's copy.
        strangers: learners with which its own exchange no letters.
        make_agent: has an agent with a task placed, and returns the handle of its Ray actor.
    """

    def __init__(
        self,
        task: LearnerTask,
        state: HostState,
        memory: Memory,
        strangers: Sequence[int],
        make_agent: Callable[[LearnerTask], Any],
    ):
        self.ranks, self.state = range(*task.ranks), state
        self.failures = 0
        """Attempts to start an agent that have failed, in a row."""
        self.letterbox: Address
        """Where its agent takes letters, once it has a place."""
        self.task = task
        """Task of its process, in its present incarnation."""
        self._memory, self._strangers, self._make_agent = memory, strangers, make_agent
        self._mail, self._policies = Incoming(memory.boxes), Incoming(memory.versions.boxes)
        self.place()

    def place(self) -> None:
        """Have an agent placed, and ask it where it is."""
        if self.state.phase == "unplaced":
            self.state.move("placing")
        self.machine, self.here, self.pid = "", False, 0
        self.order: Order | None = None
        """Goes with every question for news, so that it arrives though some are lost."""
        self.task = replace(self.task, incarnation=self.state.incarnation)
        self.agent = self._make_agent(self.task)
        self.asked: Any = self.agent.where.remote()
        """Its answer to the question where it is, or for news; None: it is asked nothing."""
        self.ask_at = math.inf
        """When it is to be asked next, if it is asked nothing; infinite: never again."""
        self.heard_at = time.monotonic()
        """When it last answered; before its first answer, when it was asked to begin or for a place."""
        self._answer = 0  # number of the agent's last answer
        self._begun: Any = None

    def begin_again(self) -> None:
        """Let another agent take the place of one that is dead."""
        self.end_agent()
        self.state = self.state.successor(self.version)
        self.place()

    def end_agent(self) -> None:
        """End the agent, whether it answers or not."""
        with suppress(RayError):
            ray.kill(self.agent)

    @property
    def version(self) -> int:
        """Newest version of its first learner; -1 before the first."""
        return self._memory.versions.newest(self.ranks.start)

    @property
    def who(self) -> str:
        """Its learners, in words."""
        more = f" to {self.ranks[-1]}" if len(self.ranks) > 1 else ""
        return f"learner{'s' * bool(more)} {self.ranks.start}{more}"

    @property
    def over(self) -> bool:
        """Whether it has told its last: it is asked nothing any more."""
        return self.asked is None and self.ask_at == math.inf

    @property
    def listens(self) -> bool:
        """Whether it has an agent that hears what it is told."""
        return self.state.is_placed and not self.over

    def note_place(self) -> None:
        """Record its place; raise what Ray says if it will have none."""
        asked, self.asked = self.asked, None
        self.letterbox = cast("Address", ray.get(asked))
        self.machine = self.letterbox.host
        self.here = self.machine == ray.util.get_node_ip_address()
        self.state.move("starting")

    @property
    def is_beginning(self) -> bool:
        """Whether its agent is still taking in what its learners begin with."""
        return self._begun is not None and not ray.wait([self._begun], timeout=0)[0]

    def begin(self, task: LearnerTask, *letters: Letter | None) -> None:
        """Let its learners begin, and ask for their news.

        Args:
            task: of their process, with what they begin with.
            letters: as `Agent.begin` has them.

        Raises:
            RunFailed: there is no room on this machine for what they begin with.
        """
        try:
            self._begun = self.agent.begin.remote(to_array(task), *letters)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise RunFailed(f"{NO_ROOM}, on this machine") from error
        self.heard_at = time.monotonic()
        self.ask()

    def failed_to_begin(self) -> str | None:
        """Return why its agent could not begin, and hear it no more; None: it has begun, or is about to."""
        if self._begun is None or self.is_beginning:
            return None
        begun, self._begun = self._begun, None
        try:
            self.pid = cast("int", ray.get(begun))
        except RayError as error:
            self.asked, self.ask_at = None, math.inf
            return cause_of(error)
        return None

    def ask(self) -> None:
        """Ask for news, and tell the last order and how far learners are that it does not hear."""
        env_steps = {rank: self._memory.boxes.env_steps(rank) for rank in self._strangers}
        news = self.agent.news.options(concurrency_group="news")
        self.asked = news.remote(NEWS_SECONDS, self._answer, env_steps, self.order)

    def hear(self) -> list[Event]:
        """Return what the agent has told, now that it has answered, and ask again unless that was its last."""
        asked, self.asked = self.asked, None
        try:
            news: News = cast("Any", ray.get(asked))
        except RayError as error:
            event = self._event_of(error)
            lost = event is None
            self.ask_at = time.monotonic() + UNREACHABLE_SECONDS if lost else math.inf
            return [] if event is None else [event]
        self.heard_at = time.monotonic()
        known, self._answer = news.number <= self._answer, news.number
        self._policies.deliver(news.policies)
        self._mail.deliver(news.mail)
        # Ray lends its memory for reading.
        events = [] if known else [from_whole(one.copy(), Event) for one in news.events]
        if any(isinstance(event, Ready) for event in events):
            self.failures = 0
            self.failed_to_begin()  # which tells its process
        if any(isinstance(event, Done | Died | Failed) for event in events):
            self.ask_at = math.inf
        else:
            self.ask()
        return events

    def _event_of(self, error: RayError) -> Event | None:
        """Return what an error in place of news means; None: they were lost on their way, or cannot come at the moment."""
        match error:
            case ActorUnavailableError():
                return None
            case RayActorError():
                return Died(f"on {self.machine}: {cause_of(error)}")
            case RayTaskError():
                return Failed("RunFailed", f"{self.who}: the agent failed: {error.cause!r}")
            case ObjectStoreFullError() | OutOfDiskError():
                return Died(f"on {self.machine}: {NO_ROOM}")
            case _:
                return None


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
        self._meeting: MeetingPoint | None = None
        size = config.num_learners
        per = len(layout.ranks[0])
        self._fewest = min(config.cluster.min_learners or size, size)
        self._heard = [self._hears(index) for index in range(len(layout.ranks))]
        self._order: Order | None = None  # the last one
        self._has_replacement = self._told_places = False
        self._enough_at = time.monotonic()  # when as many learners had places as there must be
        self._looked_at = math.inf
        self._make_memory()
        self._session = Session(config, len(layout.ranks), -(-self._fewest // per), layout.share)
        self._head = HeadWatch(ray.get_runtime_context().gcs_address)
        self._told_head = False

    def __str__(self) -> str:
        return f"{len(self.layout.ranks)} hosts in {self._session}"

    @property
    def ends_alone(self) -> bool:
        """Whether every learner counts as the others do."""
        return not self._has_replacement

    def start(self, load: LoadInitialState) -> None:
        """Have an agent placed for every part of the learners, and hand each its part of the initial state."""
        states = self._states_after(self.hosts)
        if self.hosts:  # the group has died
            self._make_memory()
            self.stop = StopSignal()
        self._order, self._told_places = None, False
        if self.transport != "memory":
            from gossamer.links.collective import MeetingPoint

            self._meeting = MeetingPoint(ray.util.get_node_ip_address())
        initial = self._load_initial_state(load)
        self.hosts = [self._host(index, state) for index, state in enumerate(states)]
        self._wait_placed()
        if isinstance(initial, RunState):  # until learners tell themselves how far they are
            for rank, learner in enumerate(initial.learners):
                self.memory.boxes.headers[rank][ENV_STEPS] = learner.own_env_steps
        placed = [index for index, host in enumerate(self.hosts) if host.state.is_placed]
        self._has_replacement = len(placed) < len(self.hosts)
        for host in self.hosts:
            if not host.state.is_placed:
                self._mark_left(host)
        for index in placed:
            self._begin_host(index, part_of(initial, self.hosts[index].ranks), {})
        for index in placed:
            self._introduce_neighbours(index)
        self._looked_at = time.monotonic()

    def replace(self, index: int) -> None:
        """Have a new agent placed where one has died; until it has a place the others go on without it."""
        host = self.hosts[index]
        takes_over = bool(self._leave(host))
        host.begin_again()
        if takes_over:
            self._tell_left(index)

    def poll(self) -> list[tuple[int, Event]]:
        """Return what agents have told, by index; wait for the first of it a tenth of a second."""
        if self.stop.stopped:
            raise self.stop.error or Stopped
        found = self._look()
        asked = {
            host.asked: index
            for index, host in enumerate(self.hosts)
            if host.asked is not None and (host.state.is_placed or self._may_begin(index))
        }
        if not asked:
            self.stop.wait(LOOK_SECONDS)
            return found
        told, _ = ray.wait(list(asked), timeout=LOOK_SECONDS)
        if told:
            told, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for index in sorted(asked[x] for x in told):
            host = self.hosts[index]
            for event in host.hear() if host.state.is_placed else self._begin_placed(index):
                if isinstance(event, Ready) and self._told_places:
                    joined = Notice(f"{host.who} has joined, on {host.machine}")
                    found.append((index, joined))
                found.append((index, self._hear_env(event)))
        return found

    def order(self, *, ends: bool) -> int:
        """Ask all learners to save, those in lock-step after the same version; return the order's number.

        In lock-step agents agree on a version that nobody has reached yet. Each must answer, or is replaced: so no order
        is lost. Elsewhere, and to an agent that comes later, the order goes with every question for news, which is asked
        until it is answered.
        """
        order = Order(self._order.number + 1 if self._order else 1, ends)
        self._order, listening = order, [host for host in self.hosts if host.listens]
        if self.config.topology.staleness:
            for host in listening:
                host.order = order
            return order.number
        at = 0
        while True:
            asked = [(x, x.agent.propose.remote(order, at)) for x in listening]
            newest = max(self._answers(asked), default=0)
            if newest < at:
                break
            at = newest + 1
        # Without it a learner that is there waits.
        list(self._answers([(x, x.agent.settle.remote()) for x in listening]))
        return order.number

    def end(self) -> None:
        """End the agents and their processes."""
        self.stop.stop()
        ends = [host.agent.end.remote() for host in self.hosts if host.over]
        with suppress(RayError):
            ray.wait(ends, num_returns=len(ends), timeout=2 * CLOSE_SECONDS) if ends else None
        for host in self.hosts:
            host.end_agent()

    def close(self) -> None:
        """Leave the cluster."""
        self._head.close()
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
                host.end_agent()  # another takes its place
            except RayActorError:
                pass  # its news tell

    def _make_memory(self) -> None:
        blocks = [mmap.mmap(-1, n) for n in self.sizes.nbytes(self.config.num_learners)]
        self.memory = Memory(blocks, self.config, self.sizes, self.policy.shared_tensors())

    def _wait_placed(self) -> None:
        """Wait until all agents are somewhere, or as many as there must be and no other comes for a while.

        Raises:
            RunFailed: too few are, in time, or the cluster's head is gone.
        """
        seconds, size = self.config.cluster.wait_seconds, self.config.num_learners
        began = came = time.monotonic()
        while waiting := {x.asked: x for x in self.hosts if not x.state.is_placed}:
            now = time.monotonic()
            if self.stop.stopped or self.asked_to_stop():
                raise self.stop.error or Stopped
            self._look_at_head()
            settled = self._num_placed >= self._fewest and now >= came + SETTLE_SECONDS
            if settled or now >= began + seconds:
                break
            done, _ = ray.wait(list(waiting), timeout=LOOK_SECONDS)
            for one in done:
                came = now
                try:
                    waiting[one].note_place()
                except RayError as error:
                    self._place_again(waiting[one], error, fewest=size)
        if self._num_placed < self._fewest:
            raise RunFailed(f"{self._without_place(waiting.values())} after {seconds:.0f} s")
        self._enough_at = time.monotonic()

    def _place_again(self, host: ClusterHost, error: RayError, *, fewest: int) -> list[Event]:
        """Have another agent placed where one could not be made: its machine is gone again, or lacks something.

        Args:
            host: without a place.
            error: why it has none.
            fewest: so many learners with a place go on without it, and it is placed after a pause.

        Returns:
            What is to be said of it.

        Raises:
            RunFailed: it has happened too often, and the others cannot go on.
        """
        host.failures += 1
        often = f"{host.who} could not be started on the cluster in {MAX_FAILURES} attempts: {cause_of(error)}"
        if self._num_placed < fewest:
            if host.failures >= MAX_FAILURES:
                raise RunFailed(
                    f"{often}; gossamer cluster check tells what machines lack"
                ) from error
            host.place()
            return []
        host.ask_at = time.monotonic() + min(2.0**host.failures, RETRY_SECONDS)
        told = f"{often}; the run goes on without it, and tries again every minute"
        return [Notice(told)] * (host.failures == MAX_FAILURES)

    @property
    def _num_placed(self) -> int:
        """Learners that have a place."""
        return sum(len(x.ranks) for x in self.hosts if x.state.is_placed)

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
        """Return what is to be said of hosts that have found no place, do not answer, or have all begun.

        Raises:
            RunFailed: too few learners have a place for too long, or the cluster's head is gone.
        """
        found = self._look_at_head()
        now, wait = time.monotonic(), self.config.cluster.wait_seconds
        missed = now - self._looked_at - LONGEST_PAUSE_SECONDS
        self._looked_at = now
        if missed > 0:  # this process was stopped, or busy: nobody could be heard
            self._enough_at += missed
            for host in self.hosts:
                host.heard_at += missed
        for index in range(len(self.hosts)):
            found += [(index, event) for event in self._look_at(index, now)]
        starting = any(host.state.phase == "starting" for host in self.hosts)
        if self._num_placed and not (self._told_places or starting):
            found.append((0, Notice(self._places())))
        ending = (self._ends and self._num_placed) or any(host.over for host in self.hosts)
        needed = self.config.cluster.min_learners or 1
        if self._num_placed >= needed or ending:
            self._enough_at = now
        if now >= self._enough_at + wait:
            unplaced = [x for x in self.hosts if not x.state.is_placed]
            raise RunFailed(
                f"fewer than {needed} learners for {wait:.0f} s: {self._without_place(unplaced)}"
            )
        return found

    def _look_at_head(self) -> list[tuple[int, Event]]:
        """Return what is to be said of the cluster's head."""
        silent, head = (
            self._head.silent_seconds,
            f"the head of the Ray cluster, {self._head.address},",
        )
        if silent >= HEAD_LOST_SECONDS:
            raise RunFailed(
                f"{head} has taken no connections for {silent:.0f} s: type ray stop on all machines, and start Ray anew"
            )
        told, self._told_head = self._told_head, silent >= HEAD_TOLD_SECONDS
        if told or not self._told_head:
            return []
        told_now = f"{head} takes no connections: the run saves a checkpoint, and ends unless the head is back in time"
        return [(0, Notice(told_now, saves=True))]

    def _look_at(self, index: int, now: float) -> list[Event]:
        """Return what is to be said of a host, and ask it what it is time to ask."""
        host = self.hosts[index]
        if not host.state.is_placed:
            if host.asked is None and now >= host.ask_at:
                host.place()
            late = now >= host.heard_at + self.config.cluster.wait_seconds and not self._ends
            if host.state.phase == "unplaced" or not late:
                return []
            host.state.move("unplaced")
            self._tell_left(index)  # who has waited for it does so no more
            return [Notice(f"{self._without_place([host])}. The run goes on without it")]
        if host.over:
            return []
        if (why := host.failed_to_begin()) is not None:
            return [Died(f"on {host.machine}: {why}")]
        patience = self.config.patience_seconds
        if patience and now >= host.heard_at + patience:
            host.heard_at = now
            host.end_agent()
            told = f"{host.who} on {host.machine}: the agent has not answered for {patience:.0f} s"
            return [Notice(f"{told}; another takes its place")]
        if host.asked is None and now >= host.ask_at:  # it may have missed anything
            self._introduce_neighbours(index)
            host.ask()
        return []

    @property
    def _ends(self) -> bool:
        """Whether the last order ends the run."""
        return self._order is not None and self._order.ends

    def _may_begin(self, index: int) -> bool:
        """Return whether a host may join once it has a place: at the end only if nobody else is there."""
        others = (x for i, x in enumerate(self.hosts) if i != index)
        if not any(x.state.is_placed for x in others):
            return True
        # Those that go on without it have nothing yet that it could take over.
        early = self.config.topology.talks and not self._are_learning
        has_left = self.memory.boxes.has_left(self.layout.ranks[index].start)
        return not self._ends and not (early and has_left)

    def _begin_placed(self, index: int) -> list[Event]:
        """Let learners that have a place now join the others; return what there is to say."""
        host = self.hosts[index]
        try:
            host.note_place()
        except RayError as error:
            fewest = self.config.cluster.min_learners or 1
            if told := self._place_again(host, error, fewest=fewest):
                self._tell_left(index)  # who has waited for it does so no more
            return told
        donors = self._donors_of(host.ranks) if host.version >= 0 or self._are_learning else {}
        initial, lines = None, list[Event]()
        if donors:
            self._tell_left(index)
        else:
            try:
                initial = part_of(self._load(host.ranks), host.ranks)
            except ConfigError as error:  # it may have been removed by now
                lines.append(Notice(f"{host.who} cannot go on and begins anew: {error}"))
        host.order = self._order
        self._begin_host(index, initial, donors)
        self._introduce_neighbours(index)
        for at in self._neighbours(index):
            if (other := self.hosts[at]).listens:
                there = {index: host.letterbox}
                other.agent.meet.remote(there, {}, has_replacement=self._has_replacement)
        return lines

    @property
    def _are_learning(self) -> bool:
        """Whether some learner has a version, so that whoever comes takes over from those that have."""
        return self.config.topology.talks and bool(self.memory.versions.present())

    def absent(self) -> dict[int, int]:
        """Return the learners without a place, and how many env steps each has learnt from."""
        unplaced = (host for host in self.hosts if not host.state.is_placed)
        return {rank: self.memory.boxes.env_steps(rank) for x in unplaced for rank in x.ranks}

    def _tell_left(self, index: int) -> None:
        """Let all that exchange letters with a host's learners know that they are gone, and in which incarnation they come back."""
        host = self.hosts[index]
        self._has_replacement = True
        self._mark_left(host)
        for at in self._neighbours(index):
            if (other := self.hosts[at]).listens:
                gone = {index: (host.ranks, host.state.incarnation)}
                other.agent.meet.remote({}, gone, has_replacement=True)

    def _introduce_neighbours(self, index: int) -> None:
        """Tell a host where those are that it exchanges letters with, and which of them are gone."""
        others = {at: self.hosts[at] for at in self._neighbours(index)}
        has_left = self.memory.boxes.has_left
        there = {at: x.letterbox for at, x in others.items() if x.listens}
        gone = {
            at: (x.ranks, x.state.incarnation)
            for at, x in others.items()
            if at not in there and has_left(x.ranks.start)
        }
        self.hosts[index].agent.meet.remote(there, gone, has_replacement=self._has_replacement)

    def _places(self) -> str:
        """Say where all learners are, once."""
        self._told_places = True
        machines: dict[str, list[str]] = {}
        for host in self.hosts:
            ranks = machines.setdefault(host.machine or "no machine yet", [])
            ranks.extend(map(str, host.ranks))
        told = (f"{', '.join(ranks)} on {name}" for name, ranks in machines.items())
        return f"learner{'s' * (self.config.num_learners > 1)} {'; '.join(told)}"

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
        config, ranks = self.config, self.layout.ranks
        heard = {
            reader: config.topology.sources(reader, config.num_learners, config.seed)
            for reader in range(config.num_learners)
        }
        return {
            host: tuple(
                rank
                for rank in ranks[index]
                if any(rank in heard[reader] for reader in ranks[host])
            )
            for host in range(len(ranks))
            if host != index
        }

    def _host(self, index: int, state: HostState) -> ClusterHost:
        """Have an agent placed."""
        meeting = self._meeting.address if self._meeting is not None else ""
        near = {index, *self._neighbours(index)}
        far = (ranks for at, ranks in enumerate(self.layout.ranks) if at not in near)
        return ClusterHost(
            self._task(index, meeting=meeting),
            state,
            self.memory,
            [*chain.from_iterable(far)],
            partial(self._session.agent, hears=self._heard[index]),
        )

    def _begin_host(
        self, index: int, initial: InitialState | None, donors: dict[int, list[int]]
    ) -> None:
        """Let the learners of a host that has a place begin; it is told whom it cannot hear itself."""
        host, everyone = self.hosts[index], range(self.config.num_learners)
        policies = set(donors) | {x for each in donors.values() for x in each}
        gone = everyone if donors else self.absent()
        differs = self.spec.differs if self._tried else None
        host.begin(
            replace(host.task, donors=donors, differs=differs, initial=initial),
            Outgoing(self.memory.boxes, gone).letter(life=True),
            Outgoing(self.memory.versions.boxes, policies, policies).letter(life=True),
        )
