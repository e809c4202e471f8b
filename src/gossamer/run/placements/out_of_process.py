"""Base of placements whose learners run in other processes: their shared memory, and the donors of a dead learner."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import torch

from gossamer.build.plan import on_cpu
from gossamer.build.roles import build_evaluator, build_learner, build_policy
from gossamer.config import to_dict
from gossamer.links.mailboxes import AWAITS
from gossamer.links.stopping import StopSignal
from gossamer.links.threads import Roles, ThreadQueue
from gossamer.replay.batches import BatchSource
from gossamer.run.checkpoint_contents import RunState
from gossamer.run.host_protocol import Ready
from gossamer.run.host_state import HostState
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.process_layout import transport_of
from gossamer.run.placements.shared_memory import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.roles.evaluator import Evaluator
    from gossamer.run.checkpoint_contents import InitialState
    from gossamer.run.host_protocol import Event, Host, LoadInitialState
    from gossamer.run.placements.process_layout import Layout
    from gossamer.run.placements.shared_memory import Memory, PolicyBoards
    from gossamer.spec import EnvSpec


class OutOfProcess:
    """A placement of learners that are not in this process, which sees their mailboxes and policies in memory.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        layout: which learners share a host.
        tried: whether it is known if environments come back.
    """

    evaluates: Literal["in turn", "beside"] = "beside"
    restore_seconds: float | None = None
    stuck = False
    """No role but the evaluator is in this process."""
    memory: Memory
    """Mailboxes and policies of all learners, or a copy of them."""

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, plan: Plan, layout: Layout, *, tried: bool
    ):
        self.config, self.spec, self.plan, self.layout = config, spec, plan, layout
        self.stop = StopSignal()
        self.before_snapshot: Callable[[], None] = lambda: None
        self.asked_to_stop: Callable[[], bool] = lambda: False
        self.say: Callable[[str], None] = lambda _: None
        self.policy = build_policy(config, spec)
        self.names = self.policy.shared_names()
        self._tried = tried
        self.transport = transport_of(config, layout, plan.device)
        queue = ThreadQueue([], StopSignal(), Roles(config.patience_seconds))
        learner = build_learner(config, plan, self.policy, BatchSource(queue))
        self.sizes = Sizes.of(learner)
        learner.close()
        self._resumed = (0, 0)

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners."""
        size = self.config.num_learners
        return max(sum(map(self.memory.boxes.env_steps, range(size))), self._resumed[1])

    def env_steps_of(self, rank: int) -> int:
        """Decisions that a learner has learnt from."""
        return self.memory.boxes.env_steps(rank)

    @property
    def updates(self) -> int:
        """Updates behind learner 0's newest version, or those that the run was resumed with."""
        return max(self.memory.versions.updates(0), self._resumed[0])

    @property
    def boards(self) -> PolicyBoards:
        """The newest policies of all learners."""
        return self.memory.versions

    def absent(self) -> dict[int, int]:
        """Every learner has its place."""
        return {}

    def make_evaluator(self) -> Evaluator | None:
        """Return an evaluator of the newest policies; None where none is wanted."""
        # Learners may have GPUs where this machine has none.
        plan = self.plan if torch.cuda.is_available() else on_cpu(self.plan)
        read = self.memory.versions.read_next
        return build_evaluator(self.config, plan, self.policy, read, self.stop)

    def show_life(self) -> None:
        """Nobody waits for the learners in this process."""

    def _states_after(self, hosts: Sequence[Host]) -> list[HostState]:
        """Return the states that hosts are started with together, again after these, or at first."""
        return [host.state.successor() for host in hosts] or [
            HostState() for _ in self.layout.ranks
        ]

    def _task(self, index: int, *, meeting: str) -> LearnerTask:
        """Return what a host's process is to do, but for its memory, its donors and what it begins with."""
        ranks = self.layout.ranks[index]
        return LearnerTask(
            config=to_dict(self.config),
            plan=self.plan,
            ranks=(ranks.start, ranks.stop),
            sizes=self.sizes,
            overlaps=self.layout.overlaps,
            transport=self.transport,
            meeting=meeting,
        )

    def _load_initial_state(self, load: LoadInitialState) -> InitialState | None:
        """Return the state that all learners begin with."""
        self._load = load
        initial = load(range(self.config.num_learners))
        self._resumed = (0, 0)
        if isinstance(initial, RunState):
            self._resumed = initial.updates[0], initial.env_steps
        return initial

    def _leave(self, host: Host) -> dict[int, list[int]]:
        """Mark the learners of a dead host as gone; return the donors of each, none if it had published nothing."""
        self.memory.boxes.headers[host.ranks.start][AWAITS] = 0
        if host.version < 0:  # the others wait for it
            return {}
        self._mark_left(host)
        return self._donors_of(host.ranks)

    def _mark_left(self, host: Host) -> None:
        """Let others go on without a host, until its learners have published anew."""
        for rank in host.ranks:
            self.memory.boxes.mark_left(rank)
            self.memory.versions.boxes.mark_left(rank)

    def _donors_of(self, gone: range) -> dict[int, list[int]]:
        """Return, for each learner of a host that died, whose average it begins with again.

        Of those whom it ever hears; of all others, or of itself alone, if none of them is there.
        """
        config, versions = self.config, self.memory.versions
        topology = config.topology
        alive = [rank for rank in versions.present() if rank not in gone]
        others = alive if topology.talks else []
        heard = {rank: topology.sources(rank, config.num_learners, config.seed) for rank in gone}
        return {rank: [x for x in alive if x in heard[rank]] or others or [rank] for rank in gone}

    def _hear_env(self, event: Event) -> Event:
        """Return what a host has told; whether its environments come back is recorded, and passed on only if that is news."""
        if not isinstance(event, Ready):
            return event
        if self._tried and not (event.differs and not self.spec.differs):
            return Ready(None)
        self._tried, self.spec = True, dataclasses.replace(self.spec, differs=event.differs or "")
        return event
