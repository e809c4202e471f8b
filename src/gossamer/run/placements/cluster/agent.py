"""An agent runs one host's learners on some machine of a cluster: it starts their process, and carries its mail.

The process is the same as on one machine (`learner_process`): it has shared memory with the mailboxes of all learners.
The agent keeps them equal with those of other machines, takes orders for the process, and keeps what it tells until the
supervisor asks.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import ray
from msgspec.structs import replace

from gossamer.config import from_dict
from gossamer.links.mailboxes import ENV_STEPS, make_memory
from gossamer.links.mirror import Incoming, Outgoing
from gossamer.run.host_protocol import Died, Done, Failed, Notice, ProgressReport, Ready, Snapshot
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.cluster.actors import RemoteActors
from gossamer.run.placements.cluster.agent_connections import Correspondent, Letterbox
from gossamer.run.placements.fork_server import ready
from gossamer.run.placements.orders import SharedOrders
from gossamer.run.placements.process_host import ProcessHost, end_processes
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.placements.shared_memory import Memory
from gossamer.system.messages import from_whole, to_array
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from gossamer.links.mirror import Letter
    from gossamer.links.wire import Address
    from gossamer.run.host_protocol import Event, Order

POLICY_BYTES_PER_SECOND = 64e6
"""Policies that all learners together send the supervisor at most."""
POLICY_SECONDS = 5.0
"""Shortest time between two policies of a learner that the supervisor is sent."""
LOOK_SECONDS = 0.1
"""Longest time between two looks at the process."""
WHOSE = "a learner's agent"
"""Begins what is told of its own failures."""


class News(NamedTuple):
    """An agent's answer to the supervisor."""

    number: int
    """Number of the answer, from 1 on: the supervisor says which it has, as answers may be lost on the way."""
    events: list[NDArray[np.uint8]]
    """Each in one array."""
    mail: Letter | None
    """Headers of its mailboxes."""
    policies: Letter | None


class Agent:
    """Runs the learners of a host; a Ray actor, whose methods come in on several threads.

    Made when it has a place, which may be long after it was asked for; told only then what to begin with.

    Args:
        task: of the learners' process, but for its memory, and for what is known only when this has a place.
        hears: learners of this host whose messages another needs, by that host.
    """

    def __init__(self, task: LearnerTask, hears: Mapping[int, tuple[int, ...]]):
        self._ranks, self._hears = range(*task.ranks), hears
        self._incarnation, self._bare = task.incarnation, task.transport != "memory"
        self._config = config = from_dict(task.config)
        layout = layout_of(config)
        assert layout is not None, "a cluster has hosts"
        self._ranks_of = layout.ranks
        sizes = task.sizes
        # In place of the lock on the run folder, which is elsewhere: processes end with their agent.
        made = [make_memory(1)]
        made += map(make_memory, (*sizes.nbytes(config.num_learners), SharedOrders.nbytes(1)))
        self._descriptors, blocks = [x for x, _ in made], [x for _, x in made[1:]]
        self._memory = Memory(blocks[:2], config, sizes, [])
        self._orders = SharedOrders(blocks[2])
        self._mail = Incoming(self._memory.boxes)
        boxes, boards, ranks = self._memory.boxes, self._memory.versions.boxes, self._ranks
        self._headers = Outgoing(boxes, ranks, incarnation=task.incarnation)
        self._policies = Outgoing(boards, ranks, ranks, incarnation=task.incarnation)
        self._peers: dict[int, Correspondent] = {}
        self._machine = ray.util.get_node_ip_address()
        self._letterbox = Letterbox(self._machine, self._mail.deliver)
        nbytes = config.num_learners * (4 * sizes.policy[0] + 8 * sizes.policy[1])
        self._policy_seconds = max(POLICY_SECONDS, nbytes / POLICY_BYTES_PER_SECOND)
        self._told_policies = float("-inf")
        self._events: deque[Event] = deque()
        self._answer = News(0, [], None, None)
        self._told = threading.Condition()
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._host: ProcessHost | None = None
        self._actors = RemoteActors(config, self._tell)
        self._ordering = threading.Lock()
        self._sent = 0, time.monotonic()  # bytes, and when
        self._sent_before = 0  # to agents that are gone

    def where(self) -> Address:
        """Return where this takes letters, on its machine."""
        return self._letterbox.address

    def begin(self, told: NDArray[np.uint8], mail: Letter | None, policies: Letter | None) -> int:
        """Start the learners' process; return its number, 0 if it could not be started, of which the news tell.

        Args:
            told: task of the process, but for its memory and its machine, in one array.
            mail: headers of mailboxes that others cannot send.
            policies: policies of the donors, and the learners' own last ones.
        """
        self._mail.deliver(mail)
        Incoming(self._memory.versions.boxes).deliver(policies)
        try:
            task = from_whole(told.copy(), LearnerTask)  # Ray lends its memory for reading
            task = replace(task, blocks=tuple(self._descriptors), machine=self._machine)
            self._host = ProcessHost(
                task,
                self._memory,
                self._config.patience_seconds,
                self._actors.place,
                self._carry,
            )
        except Exception as error:  # noqa: BLE001 - the supervisor ends the run
            self._tell(Failed.of(error, WHOSE))
            return 0
        finally:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._begun.set()
        threading.Thread(target=self._listen, args=(self._host,), daemon=True).start()
        return self._host.pid

    def meet(
        self,
        there: Mapping[int, Address],
        gone: Mapping[int, tuple[range, int]],
        *,
        has_replacement: bool,
    ) -> None:
        """Write to other agents from now on, and send them everything; write to those that are gone no more.

        Args:
            there: where others take letters, by host.
            gone: learners that are gone, by host, and the incarnation in which they come back.
            has_replacement: a learner of the run was replaced.
        """
        if has_replacement:  # before counts may differ
            self._orders.note_replacement()
        for host, (ranks, incarnation) in gone.items():
            self._mail.leave(ranks, incarnation)
            self._forget(host)
        staleness = self._config.topology.staleness
        for host, address in there.items():
            mail = Outgoing(
                self._memory.boxes,
                self._ranks,
                self._hears.get(host, ()),
                every=staleness == 0,
                incarnation=self._incarnation,
                bare=self._bare,
                readers=self._ranks_of[host],
            )
            self._forget(host)
            paced = staleness >= FOREVER  # nobody waits for them
            self._peers[host] = Correspondent(address, mail, paced=paced, say=self._say)

    def _say(self, text: str) -> None:
        self._tell(Notice(f"on {self._machine}: {text}"))

    def _carry(self) -> None:
        for peer in tuple(self._peers.values()):
            peer.look()

    def _forget(self, host: int) -> None:
        if (before := self._peers.pop(host, None)) is not None:
            before.close()
            self._sent_before += before.sent_bytes

    def propose(self, order: Order, at: int) -> int:
        """Write an order for the process; return the version that it has reached."""
        with self._ordering:
            return self._orders.propose(order, at)

    def settle(self) -> None:
        """Let the process carry the order out."""
        self._orders.settle()

    def news(
        self, seconds: float, heard: int, env_steps: Mapping[int, int], order: Order | None
    ) -> News:
        """Return what there is to tell, after so many seconds at most; the last answer again if it has not arrived.

        Args:
            seconds: longest wait.
            heard: number of the last answer that has arrived.
            env_steps: of learners that write no letters to this agent, by rank.
            order: to be carried out after the next version, unless it is known; None: there was none.
        """
        with self._ordering:
            if order is not None and order.number > self._orders.number:
                self._orders.propose(order, 0)
                self._orders.settle()
        for rank, count in env_steps.items():
            self._memory.boxes.headers[rank][ENV_STEPS] = count
        self._begun.wait(seconds)
        if not self._begun.is_set() or heard < self._answer.number:
            return self._answer
        with self._told:
            self._told.wait_for(lambda: self._events, seconds)
            events = [self._events.popleft() for _ in range(len(self._events))]
        now = time.monotonic()
        policies = None
        # Everyone's is there once all are ready, and the last with what ends.
        urgent = any(isinstance(event, Ready | Snapshot | Done) for event in events)
        if urgent or now - self._told_policies >= self._policy_seconds:
            policies = self._policies.letter(life=False)
            self._told_policies = now
        told = [to_array(event) for event in events]
        self._answer = News(heard + 1, told, self._headers.letter(life=True), policies)
        return self._answer

    def end(self) -> None:
        """End the process; it may close what it holds if it is done."""
        self._ended.set()
        self._letterbox.close()
        for host in tuple(self._peers):
            self._forget(host)
        if self._host is not None:
            end_processes([self._host])
        self._actors.end()

    def _listen(self, host: ProcessHost) -> None:
        try:
            while not self._ended.is_set():
                readable = bool(ready([host.fileno], LOOK_SECONDS))
                for event in host.poll(readable=readable):
                    self._tell(event)
                    if isinstance(event, Done | Died | Failed):
                        return
        except BaseException as error:  # noqa: BLE001 - the supervisor ends the run
            self._tell(Failed.of(error, WHOSE))

    def _tell(self, event: Event) -> None:
        if isinstance(event, ProgressReport):
            event = self._with_sent_bytes(event)
        with self._told:
            self._events.append(event)
            self._told.notify_all()

    def _with_sent_bytes(self, told: ProgressReport) -> ProgressReport:
        """Add to the first row of a host what it has sent since the row before."""
        if not told.rows:
            return told
        sent, now = self._sent_before, time.monotonic()
        sent += sum(peer.sent_bytes for peer in tuple(self._peers.values()))
        (before, at), self._sent = self._sent, (sent, now)
        rate = max(sent - before, 0) / max(now - at, 1e-9)
        first, *others = told.rows
        return replace(told, rows=[{**first, "cluster/sent_bytes_per_second": rate}, *others])
