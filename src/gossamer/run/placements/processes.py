"""Learners in processes of their own on this machine: started, listened to, given orders, replaced.

The processes share memory: mailboxes to mix through, everyone's newest policy, and the orders.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import TYPE_CHECKING, Literal

from gossamer.build.replays import shared_blocks
from gossamer.build.roles import build_evaluator, build_learner, build_policy
from gossamer.config import to_dict
from gossamer.links.shared_memory import AWAITS, make_memory
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.links.threads import Roles, ThreadQueue
from gossamer.replay.base import ReplayMix
from gossamer.replay.ring import make_shared_block
from gossamer.run.hosts import Ready
from gossamer.run.placements.boards import Memory, Sizes
from gossamer.run.placements.layout import transport_of
from gossamer.run.placements.orders import SharedOrders
from gossamer.run.placements.process_host import ProcessHost, Task, end_processes
from gossamer.run.placements.template import ready
from gossamer.run.snapshot import names_of, progress_of

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from torch import Tensor

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.roles.evaluator import Evaluator, Source
    from gossamer.run.hosts import Begin, Event
    from gossamer.run.placements.layout import Layout
    from gossamer.types import EnvSpec

LOOK_SECONDS = 0.1
"""Longest time between two looks at signals, deadlines and processes."""


class Processes:
    """The placement of learners in processes.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        layout: which learners share a process.
        tried: whether it is known if environments come back.
        hold: returns a descriptor of a lock on the run folder, which every process keeps open until it ends.
    """

    evaluates: Literal["in turn", "beside"] = "beside"
    restore_seconds: float | None = None

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
        self.config, self.spec, self.plan = config, spec, plan
        self.stop = StopSignal()
        self.before_snapshot: Callable[[], None] = lambda: None
        self.hosts: list[ProcessHost] = []
        self._tried, self._hold = tried, hold
        self._layout = layout
        self._transport = transport_of(config, layout, plan.device)
        self._policy = build_policy(config, spec)
        self.names = self._policy.shared_names()
        queue = ThreadQueue([], StopSignal(), Roles(config.patience_seconds))
        learner = build_learner(config, plan, self._policy, ReplayMix(queue))
        self._sizes = Sizes.of(learner)
        self._shared = shared_blocks(config, spec, self._policy)
        learner.close()
        self._resumed = (0, 0)
        self._descriptors: list[int] = []
        self._meeting: tempfile.TemporaryDirectory[str] | None = None
        self._make_memory()

    def __str__(self) -> str:
        return str(self._layout)

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners."""
        size = self.config.num_learners
        return max(sum(map(self._memory.boxes.env_steps, range(size))), self._resumed[1])

    @property
    def version(self) -> int:
        """Of learner 0."""
        return max(self._memory.versions.newest(0), 0)

    @property
    def updates(self) -> int:
        """Of learner 0."""
        return max(self._memory.versions.updates(0), self._resumed[0])

    @property
    def disagreement(self) -> Callable[[], float] | None:
        """Tells how far learners are apart."""
        return self._memory.versions.disagreement

    @property
    def stuck(self) -> bool:
        """No role but the evaluator is in this process."""
        return False

    @property
    def ends_alone(self) -> bool:
        """Whether every learner counts as the others do."""
        return not self._orders.patched

    def make_evaluator(self) -> Evaluator | None:
        """Return an evaluator of the newest policies; None where none is wanted."""

        def read(into: list[Tensor]) -> Source:
            return self._memory.versions.read_next(into)

        return build_evaluator(self.config, self.plan, self._policy, read, self.stop)

    def score_next(self, learner: int) -> None:
        """Let the next policy to be evaluated be one of independent learners."""
        self._memory.versions.score_next(learner)

    def score_policy_next(self, best: int | None) -> None:
        """Let the next policy to be evaluated be the run's."""
        self._memory.versions.score_policy_next(best)

    def start(self, begin: Begin) -> None:
        """Start a process for every part of the learners, and hand each its part of the checkpoint."""
        if self.hosts:  # the group has died, and left the memory as it was
            self._free_memory()
            self._make_memory()
            self.stop = StopSignal()
        if self._transport != "memory":
            self._meeting = tempfile.TemporaryDirectory(
                prefix="gossamer-", ignore_cleanup_errors=True
            )
        self._begin = begin
        checkpoint = begin(
            names_of(range(self.config.num_learners), replays=self.config.checkpoint_replay)
        )
        resumes = checkpoint is not None and bool(checkpoint.state)
        self._resumed = progress_of(checkpoint) if checkpoint and resumes else (0, 0)
        self.hosts = []
        for index in range(len(self._layout.ranks)):
            self.hosts.append(self._start(index, checkpoint))

    def replace(self, index: int, restarts: int) -> bool:
        """Start a new process where one has died; return whether it takes over from one that had learnt."""
        ranks, boxes = self.hosts[index].ranks, self._memory.boxes
        self._orders.forget(index)
        boxes.headers[ranks.start][AWAITS] = 0
        donors: dict[str, list[int]] = {}
        if (
            self.hosts[index].version >= 0
        ):  # the others do without it, or they would still wait for it
            self._orders.patch()  # before counts may differ
            for rank in ranks:
                boxes.mark_left(rank)
            donors = self._donors_of(ranks)
        checkpoint = None
        if not donors:
            checkpoint = self._begin(names_of(ranks, replays=self.config.checkpoint_replay))
        self.hosts[index].close()
        self.hosts[index] = self._start(index, checkpoint, donors, restarts)
        return bool(donors)

    def poll(self) -> list[tuple[int, Event]]:
        """Return what processes have told, by index; wait for the first of it a tenth of a second."""
        if self.stop.stopped:
            raise self.stop.error or Stopped
        listening = [host.fileno for host in self.hosts if host.fileno >= 0]
        if listening:
            readable = ready(listening, LOOK_SECONDS)
        else:
            readable = set[int]()
            self.stop.wait(LOOK_SECONDS)
        found: list[tuple[int, Event]] = []
        for index, host in enumerate(self.hosts):
            for event in host.poll(readable=host.fileno in readable):
                if isinstance(event, Ready):
                    self._note_env(event)
                found.append((index, event))
        return found

    def order(self, *, ends: bool) -> int:
        """Ask all learners to save, those in lock-step after the same version; return the order's number."""
        return self._orders.announce(ends=ends, together=self.config.topology.staleness == 0)

    def show_life(self) -> None:
        """Nobody waits for the learners in this process."""

    def end(self) -> None:
        """End the processes."""
        self.stop.stop()
        end_processes(self.hosts)

    def close(self) -> None:
        """Free what outlives processes."""
        self._free_memory()

    def _note_env(self, event: Ready) -> None:
        if not self._tried or (event.differs and not self.spec.differs):
            self.spec = dataclasses.replace(self.spec, differs=event.differs)
        self._tried = True

    def _donors_of(self, gone: range) -> dict[str, list[int]]:
        """Return, for each learner of a process that died, whose average it begins with again.

        Of those whom it ever hears; of all others, or of itself alone, if none of them is there.
        """
        config, versions = self.config, self._memory.versions
        topology, size = config.topology, config.num_learners
        alive = [rank for rank in range(size) if rank not in gone and versions.newest(rank) >= 0]
        others = alive if topology.talks else []
        turns = topology.turns(size, config.seed)
        return {
            str(rank): [x for x in alive if any(x in weights[rank] for weights in turns)]
            or others
            or [rank]
            for rank in gone
        }

    def _make_memory(self) -> None:
        size = self.config.num_learners
        blocks: list[mmap.mmap] = []
        for nbytes in (*self._sizes.nbytes(size), SharedOrders.nbytes(len(self._layout.ranks))):
            descriptor, block = make_memory(nbytes)
            self._descriptors.append(descriptor)
            blocks.append(block)
        for nbytes, path in self._shared:
            self._descriptors += [make_shared_block(nbytes, path)[0] for _ in range(size)]
        self._memory = Memory(blocks[:2], self.config, self._sizes, self._policy.shared_tensors())
        self._orders = SharedOrders(blocks[2], len(self._layout.ranks))

    def _free_memory(self) -> None:
        if self._meeting is not None:
            self._meeting.cleanup()
            self._meeting = None
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _start(
        self,
        index: int,
        checkpoint: Checkpoint | None,
        donors: dict[str, list[int]] | None = None,
        restarts: int = 0,
    ) -> ProcessHost:
        ranks = self._layout.ranks[index]
        task = Task(
            config=to_dict(self.config),
            plan=dataclasses.asdict(self.plan),
            ranks=(ranks.start, ranks.stop),
            process=index,
            num_processes=len(self._layout.ranks),
            blocks=(self._hold(), *self._descriptors),
            mixed_sizes=self._sizes.mixed,
            policy_sizes=self._sizes.policy,
            cores=self._layout.cores[index],
            overlaps=self._layout.overlaps,
            restarts=restarts if donors else 0,
            donors=donors or {},
            differs=self.spec.differs if self._tried else None,
            transport=self._transport,
            meeting=f"{self._meeting.name}/meeting" if self._meeting else "",
        )
        part = None if checkpoint is None else _part_of(checkpoint, ranks)
        return ProcessHost(task, part, self._memory, self.plan.device, self.config.patience_seconds)


def _part_of(checkpoint: Checkpoint, ranks: range) -> Checkpoint:
    """Return what learners of a process begin with: their part of a checkpoint, which loses it; of a policy all."""
    if not checkpoint.state:
        return checkpoint
    wanted = names_of(ranks)
    mine = {name: x for name, x in checkpoint.tensors.items() if wanted(name)}
    for name in mine:
        del checkpoint.tensors[name]
    loaded = {name: x for name, x in mine.items() if not x.is_meta}
    return dataclasses.replace(checkpoint, tensors=loaded)
