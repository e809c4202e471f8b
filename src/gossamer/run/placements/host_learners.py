"""Learners side by side: each one's parts, the memory they mix through, and what they have in common."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gossamer.build.replays import shared_blocks
from gossamer.build.roles import LearnerBundle, build_bundle, build_policy
from gossamer.links.mailboxes import Mailbox
from gossamer.links.stopping import StopSignal
from gossamer.replay.ring import make_block
from gossamer.roles.evaluator import Source
from gossamer.run.placements.actor_team import ActorTeam
from gossamer.run.placements.shared_memory import Memory, Sizes
from gossamer.run.resume import resumes_exactly
from gossamer.system.devices import ROOM, PageLocked, memory_told

VERSIONS_REMEMBERED = 100_000
"""An evaluation may end this many versions after its own."""

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from gossamer.build.plan import Plan
    from gossamer.build.replays import Blocks
    from gossamer.config import TrainConfig
    from gossamer.links.collective import Collective
    from gossamer.roles.acting_group import Episode
    from gossamer.run.placements.child_protocol import ActorTask
    from gossamer.run.placements.remote_actor import RemoteActor, TeamMemory
    from gossamer.spec import EnvSpec


@dataclass
class HostLearners:
    """Learners of a run in one process, by rank, and what joins them with all others."""

    parts: list[LearnerBundle]
    """Learners in this process, and what serves each of them."""
    memory: Memory | None
    """Mailboxes that learners mix through, and everyone's newest policy; None for one learner."""
    exact: bool
    """Whether a snapshot can be continued exactly."""
    config: TrainConfig
    episodes: deque[tuple[int, Episode]] = field(default_factory=deque)
    """Finished training episodes, with the rank of the learner of each, that nobody has taken yet; actors add to them."""
    on_write: Callable[[], None] = lambda: None
    """As a `Mailbox` has it."""
    acting: threading.Thread | None = None
    """Thread of the actor, if it has one; that is left to whatever it is at if it does not end."""
    behind: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Updates and env steps behind each version of the first learner that was published here."""
    page_locked: PageLocked | None = None
    """Mailboxes to which a GPU copies messages straight; None: none of them has messages."""

    @property
    def stop(self) -> StopSignal:
        """Ends whatever a role waits for."""
        return self.first.stop

    @property
    def stuck(self) -> bool:
        """Whether the actor is still at something."""
        return self.acting is not None and self.acting.is_alive()

    @property
    def first(self) -> LearnerBundle:
        """The first learner of this process and what serves it."""
        return self.parts[0]

    @property
    def env_steps(self) -> int:
        """Decisions learnt from, over all learners of the run."""
        if self.memory is not None and not self.first.learner.topology.talks:
            boxes = self.memory.boxes
            return sum(map(boxes.env_steps, range(boxes.num_learners)))
        return max(parts.learner.env_steps for parts in self.parts)

    def has_learnt(self, env_steps: int) -> bool:
        """Whether its learners have learnt from so many; independent ones each from its share."""
        reached = [parts.learner.env_steps >= env_steps for parts in self.parts]
        return any(reached) if self.first.learner.topology.talks else all(reached)

    def _mailbox(self, parts: LearnerBundle) -> Mailbox:
        assert self.memory is not None
        return Mailbox(
            self.memory.boxes,
            parts.learner.rank,
            self.stop,
            patience_seconds=self.config.patience_seconds,
            sign=parts.learner.sign,
            on_write=self.on_write,
        )

    def meet(self) -> None:
        """Wait until the learners of all processes have been made."""
        for parts in self.parts:
            self._mailbox(parts).meet()

    def join(self, *, late: bool = False, collective: Collective | None = None) -> None:
        """Let the learners mix, from the update on that each of them is at, or the others are."""
        if self.memory is None:
            return
        if self.page_locked is None and collective is None and self.first.learner.topology.talks:
            device = self.first.policy.device
            self.page_locked = PageLocked(self.memory.boxes.memory, device)
        for parts in self.parts:
            learner, seed = parts.learner, self.config.seed
            in_turn = self.config.placement == "inline"
            learner.join(
                self._mailbox(parts), seed=seed, late=late, in_turn=in_turn, collective=collective
            )
            topology = learner.topology
            if late and topology.staleness == 0 and topology.every == "updates":
                others = [x for x in range(self.config.num_learners) if x != learner.rank]
                learner.version = self.memory.versions.version_at(learner, others)

    def take_over(self, parts: LearnerBundle, donors: Sequence[int]) -> None:
        """Give a new learner the average policy of its donors and the env steps of the dead one.

        Its version goes on from the newest of the dead one and its donors; its optimizer is new.

        Args:
            parts: the new learner, under the dead one's rank, and what serves it.
            donors: ranks of those that it ever hears and that live; all others, or itself alone, if there are none.
        """
        assert self.memory is not None
        learner, versions, boxes = parts.learner, self.memory.versions, self.memory.boxes
        versions.average(parts.policy.shared_tensors(), donors)
        parts.policy.refresh()
        own = boxes.env_steps(learner.rank)
        everyone = sum(map(boxes.env_steps, range(boxes.num_learners)))
        learner.take_over(
            update=max(map(versions.updates, (*donors, learner.rank))),
            # Later than what the dead one showed, of which the newest is what all look at.
            version=max(*map(versions.newest, donors), versions.newest(learner.rank) + 1),
            own_env_steps=own,
            env_steps=everyone if learner.topology.talks else own * boxes.num_learners,
        )
        parts.actor.env_steps = own
        learner.replay.take_over(inserted=own // self.config.unroll_length, draws=learner.version)

    def publish(self, parts: LearnerBundle) -> None:
        """Show a learner's version to its actors, and to all who look at the run."""
        learner, tensors = parts.learner, parts.policy.shared_tensors()
        version = learner.version
        if parts is self.first:
            self.behind[version] = (learner.update, learner.env_steps)
            self.behind.pop(version - VERSIONS_REMEMBERED, None)
        parts.board.publish(tensors, version)
        if self.memory is not None:
            tensors = parts.outbox.take(tensors)
            self.memory.versions.post(
                learner.rank, tensors, version, updates=learner.update, env_steps=learner.env_steps
            )

    def read_policy(self, into: list[Tensor]) -> Source:
        """Copy what is to be evaluated next into tensors; return whose it is."""
        if self.memory is not None:
            return self.memory.versions.read_next(into)
        version = self.first.board.read(0, into, exact=False)
        return Source(version, at=self.behind.get(version))

    def close(self) -> None:
        """Free what outlives threads, unless one is still in it."""
        if self.stuck:
            return
        with contextlib.ExitStack() as stack:  # what fails to close leaves the others to be closed
            if self.page_locked is not None:
                stack.callback(self.page_locked.close)
            for parts in reversed(self.parts):
                stack.callback(parts.close)


@memory_told("for the learners", ROOM)
def build_learners(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    ranks: range | None = None,
    *,
    stop: StopSignal | None = None,
    say: Callable[[str], None] = lambda _: None,
    torso: torch.nn.Module | None = None,
    restarts: int = 0,
    start: bool = True,
    memory: Sequence[mmap.mmap] = (),
    shared: Blocks = (),
    placer: Callable[[ActorTask, TeamMemory], RemoteActor] | None = None,
) -> HostLearners:
    """Build some learners of a run, what serves them, and what joins them with all others.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        ranks: of the learners; None: all, which share memory of this process.
        stop: ends whatever their roles wait for; None: one that is made.
        say: told when an actor is replaced, and what its environments are at.
        torso: the user's own feature layers.
        restarts: as in `build_bundle`.
        start: as in `build_env_groups`.
        memory: blocks that all learners map, as `Memory` takes them.
        shared: as in `build_mix`.
        placer: as `ActorTeam` has it.
    """
    size = config.num_learners
    if ranks is None and size > 1 and config.shares_replay:
        blocks = shared_blocks(config, build_policy(config, spec, torso))
        shared = [[make_block(nbytes, path) for _ in range(size)] for nbytes, path in blocks]
    made: list[LearnerBundle] = []
    episodes: deque[tuple[int, Episode]] = deque()
    stop, team = stop or StopSignal(), None
    try:
        for rank in ranks or range(size):

            def told(episode: Episode, rank: int = rank) -> None:
                episodes.append((rank, replace(episode, env=episode.env + rank * plan.num_envs)))

            if plan.actors:
                team = partial(
                    ActorTeam, config, spec, plan, rank=rank, restarts=restarts, start=start,
                    on_episode=told, say=say, stop=stop, placer=placer,
                )  # fmt: skip
            made.append(
                build_bundle(config, spec, plan, stop=stop, rank=rank, on_episode=told, torso=torso,
                            restarts=restarts, start=start, shared=shared, team=team)
            )  # fmt: skip
    except BaseException:
        # Simulators of those before, and their actors, may be processes, which would outlive what they are for.
        with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
            for parts in made:
                stack.callback(parts.close)
        raise
    joined = None
    if memory or size > 1:
        sizes = Sizes.of(made[0].learner)
        memory = memory or [mmap.mmap(-1, n) for n in sizes.nbytes(size)]
        joined = Memory(memory, config, sizes, made[0].policy.shared_tensors())
    return HostLearners(made, joined, resumes_exactly(config, spec, plan), config, episodes)
