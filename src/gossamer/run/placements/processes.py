"""Learners in processes of their own on this machine: started, listened to, given orders, replaced.

The processes share memory: mailboxes to mix through, everyone's newest policy, and the orders.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from gossamer.build.replays import shared_blocks
from gossamer.links.mailboxes import make_memory
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.replay.ring import make_shared_block
from gossamer.run.placements.fork_server import ready
from gossamer.run.placements.orders import SharedOrders
from gossamer.run.placements.out_of_process import OutOfProcess
from gossamer.run.placements.process_host import ProcessHost, end_processes
from gossamer.run.placements.shared_memory import Memory
from gossamer.run.snapshot import part_of

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.run.checkpoint_contents import InitialState
    from gossamer.run.host_protocol import Event, LoadInitialState
    from gossamer.run.host_state import HostState
    from gossamer.run.placements.process_layout import Layout
    from gossamer.spec import EnvSpec

LOOK_SECONDS = 0.1
"""Longest time between two looks at signals, deadlines and processes."""


class Processes(OutOfProcess):
    """The placement of learners in processes.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        layout: which learners share a process.
        tried: whether it is known if environments come back.
        hold: returns a descriptor of a lock on the run folder, which every process keeps open until it ends.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        plan: Plan,
        layout: Layout,
        *,
        tried: bool,
        hold: Callable[[], int],
    ):
        super().__init__(config, spec, plan, layout, tried=tried)
        self.hosts: list[ProcessHost] = []
        self._hold = hold
        self._shared = shared_blocks(config, self.policy)
        self._descriptors: list[int] = []
        self._meeting: tempfile.TemporaryDirectory[str] | None = None
        self._make_memory()

    def __str__(self) -> str:
        return str(self.layout)

    @property
    def ends_alone(self) -> bool:
        """Whether every learner counts as the others do."""
        return not self._orders.has_replacement

    def start(self, load: LoadInitialState) -> None:
        """Start a process for every part of the learners, and hand each its part of the initial state."""
        if self.hosts:  # the group has died, and left the memory as it was
            self.close()
            self._make_memory()
            self.stop = StopSignal()
        if self.transport != "memory":
            self._meeting = tempfile.TemporaryDirectory(
                prefix="gossamer-", ignore_cleanup_errors=True
            )
        initial, states = self._load_initial_state(load), self._states_after(self.hosts)
        self.hosts = []
        for index, state in enumerate(states):
            self.hosts.append(self._start(index, state, initial))

    def replace(self, index: int) -> None:
        """Start a new process where one has died."""
        host = self.hosts[index]
        self._orders.forget(index)
        if host.version >= 0:
            self._orders.note_replacement()  # before counts may differ
        for other in self.hosts:  # one that has died too, which is told next, is nobody's donor
            if not other.state.has_told_last and _has_ended(other):
                for rank in other.ranks:
                    self.memory.versions.boxes.mark_left(rank)
        donors = self._leave(host)
        initial = None if donors else self._load(host.ranks)
        host.channel.close()
        self.hosts[index] = self._start(index, host.state.successor(host.version), initial, donors)

    def poll(self) -> list[tuple[int, Event]]:
        """Return what processes have told, by index; wait for the first of it a tenth of a second."""
        if self.stop.stopped:
            raise self.stop.error or Stopped
        readable = ready((x.fileno for x in self.hosts), LOOK_SECONDS)
        found: list[tuple[int, Event]] = []
        for index, host in enumerate(self.hosts):
            told = map(self._hear_env, host.poll(readable=host.fileno in readable))
            found += [(index, event) for event in told]
        return found

    def order(self, *, ends: bool) -> int:
        """Ask all learners to save, those in lock-step after the same version; return the order's number."""
        return self._orders.announce(ends=ends, together=self.config.topology.staleness == 0)

    def end(self) -> None:
        """End the processes."""
        self.stop.stop()
        end_processes(self.hosts)

    def close(self) -> None:
        """Free what outlives processes."""
        if self._meeting is not None:
            self._meeting.cleanup()
            self._meeting = None
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _make_memory(self) -> None:
        size = self.config.num_learners
        blocks: list[mmap.mmap] = []
        for nbytes in (*self.sizes.nbytes(size), SharedOrders.nbytes(len(self.layout.ranks))):
            descriptor, block = make_memory(nbytes)
            self._descriptors.append(descriptor)
            blocks.append(block)
        for nbytes, path in self._shared:
            self._descriptors += [make_shared_block(nbytes, path)[0] for _ in range(size)]
        self.memory = Memory(blocks[:2], self.config, self.sizes, self.policy.shared_tensors())
        self._orders = SharedOrders(blocks[2])

    def _start(
        self,
        index: int,
        state: HostState,
        initial: InitialState | None,
        donors: dict[int, list[int]] | None = None,
    ) -> ProcessHost:
        task = replace(
            self._task(index, meeting=f"{self._meeting.name}/meeting" if self._meeting else ""),
            process=index,
            blocks=(self._hold(), *self._descriptors),
            cores=self.layout.cores[index],
            incarnation=state.incarnation,
            donors=donors or {},
            differs=self.spec.differs if self._tried else None,
            initial=part_of(initial, self.layout.ranks[index]),
        )
        host = ProcessHost(task, self.memory, self.config.patience_seconds)
        host.state = state
        state.move("starting")
        return host


def _has_ended(host: ProcessHost) -> bool:
    """Whether a host's process is there no more, also where the fork server has not told of it yet."""
    if host.popen.poll() is not None:
        return True
    try:
        return psutil.Process(host.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
