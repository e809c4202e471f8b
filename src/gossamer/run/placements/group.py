"""Learners side by side: each one's parts, the memory they mix through, and what they have in common."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gossamer.build.plan import resumes_exactly
from gossamer.build.replays import shared_blocks
from gossamer.build.roles import Parts, build_evaluator, build_parts, build_policy
from gossamer.links.shared_memory import Mailbox, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.replay.ring import make_block
from gossamer.roles.evaluator import Source
from gossamer.roles.mixer import message_sizes, vectors, views
from gossamer.system.signs import PATIENCE_SECONDS
from gossamer.topology.base import blend

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gossamer.build.plan import Plan
    from gossamer.build.replays import Blocks
    from gossamer.config import TrainConfig
    from gossamer.links.collective import Collective
    from gossamer.roles.actor import Episode
    from gossamer.roles.evaluator import Evaluator
    from gossamer.roles.learner import Learner
    from gossamer.topology.base import RunPolicy
    from gossamer.types import EnvSpec


class _Heard(NamedTuple):
    """A version that was read, and what is behind it."""

    version: int
    at: tuple[int, int]
    """Updates and env steps."""


class PolicyBoards:
    """The newest policy of every learner, in shared memory, and whose evaluation is to score next.

    In turn: the average of the learners and one of them; alike learners are scored as
    one, and independent ones have no average. The launcher reads policies while the evaluator does: what
    a read needs room for is its own.

    Args:
        boxes: a mailbox for each learner.
        like: the tensors of a policy.
        run_policy: the topology's.
    """

    def __init__(self, boxes: Mailboxes, like: Sequence[Tensor], run_policy: RunPolicy):
        self._boxes, self._run_policy = boxes, run_policy
        self._views = [[views(message, like) for message in slots] for slots in boxes.messages]
        self._like = like
        self._turn = 0

    @torch.no_grad()
    def post(
        self, rank: int, tensors: list[Tensor], version: int, *, updates: int, env_steps: int
    ) -> None:
        """Publish a learner's version and what is behind it; never waits."""
        with self._boxes.posting(rank, version, notes=(updates, env_steps)) as slot:
            torch._foreach_copy_(self._views[rank][slot], tensors)

    def read_next(self, into: list[Tensor]) -> Source:
        """Copy what is to be scored next into tensors; return whose it is."""
        learner: int | None = 0
        averages = self._run_policy == "average"
        if averages and self._turn % 2 == 0:
            learner = None
        elif self._run_policy != "first":
            learner = (self._turn // (2 if averages else 1)) % self._boxes.num_learners
        self._turn += 1
        heard = self._average(into) if learner is None else self._copy(learner, into)
        return Source(heard.version, learner, heard.at)

    def newest(self, rank: int) -> int:
        """Return the number of a learner's newest version; -1 before the first."""
        found = self._boxes.newest(rank, range(1 << 62))
        return -1 if found is None else found

    def version_at(self, learner: Learner, others: Sequence[int]) -> int:
        """Return the version that others in lock-step are at when they are at a learner's update."""
        each = learner.updates_per_version
        return max(
            heard.version - (heard.at[0] - learner.update) // each
            for heard in map(self._newest, others)
        )

    def score_next(self, learner: int) -> None:
        """Let the next to be scored be one of independent learners; others have their order."""
        if self._run_policy == "best":
            self._turn = learner

    def score_policy_next(self, best: int | None) -> None:
        """Let the next to be scored be the run's policy: of independent learners the best one's."""
        self._turn = best or 0 if self._run_policy == "best" else self._turn + self._turn % 2

    def _copy(self, rank: int, into: list[Tensor]) -> _Heard:
        heard = self._room()
        found = self._read(rank, heard)
        with torch.no_grad():
            for target, x in zip(into, views(heard, self._like), strict=True):
                target.copy_(x)
        return found

    def average(self, into: list[Tensor], ranks: Sequence[int] | None = None) -> int:
        """Write the average of learners' newest versions into tensors; return the oldest's number."""
        return self._average(into, ranks).version

    @torch.no_grad()
    def _average(self, into: list[Tensor], ranks: Sequence[int] | None = None) -> _Heard:
        found: list[_Heard] = []
        heard = self._room()
        heard_views = views(heard, self._like)

        def message(rank: int) -> list[Tensor]:
            found.append(self._read(rank, heard))
            return heard_views

        chosen = range(self._boxes.num_learners) if ranks is None else ranks
        on_cpu = into[0].device.type == "cpu"
        mean = into if on_cpu else [torch.empty_like(x) for x in heard_views]
        blend(dict.fromkeys(chosen, 1.0 / len(chosen)), chosen[0], message, mean)
        if mean is not into:
            torch._foreach_copy_(into, mean)
        return min(found)

    def disagreement(self) -> float:
        """Return the mean over learners of |theta_r - mean| / |mean|, parameters only."""
        size = self._boxes.num_learners
        thetas = torch.empty(size, self._boxes.sizes[0])
        moments = self._room()[1]
        for rank in range(size):
            self._read(rank, (thetas[rank], moments))
        size_of_mean = torch.linalg.vector_norm(thetas.mean(0)).clamp(min=1e-30)
        thetas -= thetas[0].clone()  # so that alike is 0 and not rounding
        thetas -= thetas.mean(0)
        return float(torch.linalg.vector_norm(thetas, dim=1).mean() / size_of_mean)

    def _room(self) -> tuple[Tensor, Tensor]:
        return vectors(self._boxes.sizes, torch.device("cpu"))

    def _read(self, rank: int, into: tuple[Tensor, Tensor]) -> _Heard:
        while True:
            version = self._boxes.read(rank, range(1 << 62), into)
            assert version is not None, f"learner {rank} has published nothing"
            if (at := self._boxes.notes(rank, version)) is not None:
                return _Heard(version, at)

    def _newest(self, rank: int) -> _Heard:
        while True:
            version = self.newest(rank)
            if version < 0:
                return _Heard(version, (0, 0))
            if (at := self._boxes.notes(rank, version)) is not None:
                return _Heard(version, at)


@dataclass(frozen=True)
class Sizes:
    """How many float32 and float64 numbers messages hold."""

    mixed: tuple[int, int]
    policy: tuple[int, int]

    @classmethod
    def of(cls, learner: Learner) -> Sizes:
        """Return those of a learner's messages and versions."""
        policy = message_sizes(learner.policy.shared_tensors())
        return cls(message_sizes(learner.mixed()), policy)

    def nbytes(self, num_learners: int) -> tuple[int, int]:
        """Return how much memory the two blocks of L learners take."""
        mixed, policy = (Mailboxes.nbytes(num_learners, x) for x in (self.mixed, self.policy))
        return mixed, policy


class Memory:
    """What all learners map: mailboxes to mix through, and everyone's newest version.

    Args:
        blocks: two, of `Sizes.nbytes`.
        config: of the run.
        sizes: of the messages.
        like: tensors like those of a policy.
    """

    def __init__(
        self, blocks: Sequence[mmap.mmap], config: TrainConfig, sizes: Sizes, like: Sequence[Tensor]
    ):
        size, topology = config.num_learners, config.topology
        self.boxes = Mailboxes(blocks[0], size, sizes.mixed)
        boards = Mailboxes(blocks[1], size, sizes.policy)
        self.versions = PolicyBoards(boards, like, topology.run_policy)


@dataclass
class Group:
    """Learners of a run in one process, by rank, and what joins them with all others."""

    parts: list[Parts]
    """Of the learners in this process."""
    stop: StopSignal
    evaluator: Evaluator | None
    memory: Memory | None
    """What learners mix through, and everyone's newest policy; None for one learner."""
    exact: bool
    """Whether a snapshot can be continued exactly."""
    seed: int
    patience_seconds: float = PATIENCE_SECONDS
    threads: list[threading.Thread] = field(default_factory=list)
    """Of roles; one that does not end is left to whatever it is at."""

    @property
    def stuck(self) -> bool:
        """Whether a role is still at something."""
        return any(thread.is_alive() for thread in self.threads)

    @property
    def first(self) -> Parts:
        """Learner 0 and what serves it."""
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

    @property
    def restarts(self) -> int:
        """None in one process."""
        return 0

    @property
    def version(self) -> int:
        """Of the first learner."""
        return self.first.learner.version

    @property
    def updates(self) -> int:
        """Of the first learner."""
        return self.first.learner.update

    @property
    def names(self) -> list[str]:
        """Names of the tensors of a policy."""
        return self.first.policy.shared_names()

    def _mailbox(self, parts: Parts) -> Mailbox:
        assert self.memory is not None
        learner, patience = parts.learner, self.patience_seconds
        return Mailbox(
            self.memory.boxes, learner.rank, self.stop, patience_seconds=patience, sign=learner.sign
        )

    def meet(self) -> None:
        """Wait until the learners of all processes have been made."""
        for parts in self.parts:
            self._mailbox(parts).meet()

    def join(self, *, late: bool = False, collective: Collective | None = None) -> None:
        """Let the learners mix, from the update on that each of them is at, or the others are."""
        if self.memory is None:
            return
        for parts in self.parts:
            rank = parts.learner.rank
            learner = parts.learner
            learner.join(self._mailbox(parts), seed=self.seed, late=late, collective=collective)
            if late and learner.topology.staleness == 0:
                others = [x for x in range(self.memory.boxes.num_learners) if x != rank]
                learner.version = self.memory.versions.version_at(learner, others)

    def inherit(self, parts: Parts, donors: Sequence[int]) -> None:
        """Let a learner that has died begin with others' average, and go on counting where it was."""
        assert self.memory is not None
        learner, versions = parts.learner, self.memory.versions
        versions.average(parts.policy.shared_tensors(), donors)
        parts.policy.refresh()
        own = self.memory.boxes.env_steps(learner.rank)
        size = self.memory.boxes.num_learners
        everyone = sum(map(self.memory.boxes.env_steps, range(size)))
        learner.take_over(
            # Later than what the dead one showed, of which the newest is what all look at.
            version=max(*map(versions.newest, donors), versions.newest(learner.rank) + 1),
            own_env_steps=own,
            env_steps=everyone if learner.topology.talks else own * size,
        )
        parts.actor.env_steps = own
        learner.replay.take_over(inserted=own // parts.unroll_length, draws=learner.version)

    def publish(self, parts: Parts) -> None:
        """Show a learner's version to its actors, and to all who look at the run."""
        tensors, version = parts.policy.shared_tensors(), parts.learner.version
        parts.board.publish(tensors, version)
        if self.memory is not None:
            learner, tensors = parts.learner, parts.outbox.take(tensors)
            self.memory.versions.post(
                learner.rank, tensors, version, updates=learner.update, env_steps=learner.env_steps
            )

    def close(self) -> None:
        """Free what outlives threads, unless one is still in it."""
        if self.stuck:
            return
        with contextlib.ExitStack() as stack:  # what fails to close leaves the others to be closed
            if self.evaluator is not None:
                stack.callback(self.evaluator.close)
            for parts in reversed(self.parts):
                stack.callback(parts.close)


def build_group(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    *,
    on_episode: Callable[[Episode, int], None],
    torso: torch.nn.Module | None = None,
    start: bool = True,
) -> Group:
    """Build all learners of a run in this process, and the evaluator.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        on_episode: told every finished training episode and whose it is.
        torso: the user's own feature layers.
        start: as in `build_env_groups`.
    """
    stop, size = StopSignal(), config.num_learners
    shared: list[list[mmap.mmap]] = []
    if size > 1 and any(getattr(s, "shared", False) for s in config.replays):
        blocks = shared_blocks(config, spec, build_policy(config, spec, torso))
        shared = [[make_block(nbytes, path) for _ in range(size)] for nbytes, path in blocks]
    made = build_learners(
        config, spec, plan, range(size), stop,
        on_episode=on_episode, torso=torso, start=start, shared=shared,
    )  # fmt: skip
    first = made[0]
    memory = None
    if size > 1:
        sizes = Sizes.of(first.learner)
        blocks = [mmap.mmap(-1, n) for n in sizes.nbytes(size)]
        memory = Memory(blocks, config, sizes, first.policy.shared_tensors())

    def read(into: list[Tensor]) -> Source:
        if memory is not None:
            return memory.versions.read_next(into)
        return Source(first.board.read(0, into, exact=False))

    evaluator = build_evaluator(config, plan, first.policy, read, stop)
    exact = resumes_exactly(config, spec, plan)
    return Group(made, stop, evaluator, memory, exact, config.seed, config.patience_seconds)


def build_learners(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    ranks: range,
    stop: StopSignal,
    *,
    on_episode: Callable[[Episode, int], None],
    torso: torch.nn.Module | None = None,
    restarts: int = 0,
    start: bool = True,
    shared: Blocks = (),
) -> list[Parts]:
    """Build some learners and what serves them; arguments as in `build_group` and `build_parts`."""
    made: list[Parts] = []
    for rank in ranks:

        def told(episode: Episode, rank: int = rank) -> None:
            on_episode(replace(episode, env=episode.env + rank * plan.num_envs), rank)

        made.append(
            build_parts(config, spec, plan, stop=stop, rank=rank, on_episode=told, torso=torso,
                        restarts=restarts, start=start, shared=shared)
        )  # fmt: skip
    return made
