"""Learners side by side: each one's parts, the memory they mix through, and what they have in common."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from gossamer.build import LINK_TIMEOUT_SECONDS, Parts, build_evaluator, build_parts
from gossamer.links import StopSignal
from gossamer.mailboxes import Mailbox, Mailboxes
from gossamer.mixer import message_sizes, vectors, views
from gossamer.topology import blend
from gossamer.types import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.actor import Episode
    from gossamer.build import Plan
    from gossamer.config import TrainConfig
    from gossamer.evaluator import Evaluation, Evaluator
    from gossamer.types import EnvSpec


class Versions:
    """The newest policy of every learner, in shared memory, and whose evaluation is to score next.

    In turn: the average of the learners and one of them; alike learners are scored as
    one, and those that never talk have no average.

    Args:
        boxes: a mailbox for each learner.
        like: the tensors of a policy.
        mixes: what the topology mixes: "parameters", "gradients", or "" for learners on their own.
    """

    def __init__(self, boxes: Mailboxes, like: Sequence[Tensor], mixes: str):
        self.scored: int | None = None  # whose version was read last; None: the average
        self._boxes, self._mixes = boxes, mixes
        self._views = [[views(message, like) for message in slots] for slots in boxes.messages]
        self._heard = vectors(boxes.sizes, torch.device("cpu"))
        self._heard_views = views(self._heard, like)
        self._turn = 0

    @torch.no_grad()
    def post(self, rank: int, tensors: list[Tensor], version: int) -> None:
        """Publish a learner's version; never waits."""
        with self._boxes.posting(rank, version) as slot:
            torch._foreach_copy_(self._views[rank][slot], tensors)

    def read_next(self, into: list[Tensor]) -> int:
        """Copy what is to be scored next into tensors; return its version."""
        size = self._boxes.num_learners
        if self._mixes == "gradients":
            self.scored = 0
        elif self._mixes == "parameters" and self._turn % 2 == 0:
            self.scored = None
        else:
            self.scored = (self._turn // (2 if self._mixes else 1)) % size
        self._turn += 1
        return self.average(into) if self.scored is None else self.copy(self.scored, into)

    def score_policy_next(self) -> None:
        """Let the next to be scored be what is shipped as the run's policy, where there is one."""
        self._turn += self._turn % 2

    def copy(self, rank: int, into: list[Tensor]) -> int:
        """Copy the newest version of a learner into tensors; return its number."""
        version = self._boxes.read(rank, range(1 << 62), self._heard)
        assert version is not None, f"learner {rank} has published nothing"
        with torch.no_grad():
            for target, x in zip(into, self._heard_views, strict=True):
                target.copy_(x)
        return version

    @torch.no_grad()
    def average(self, into: list[Tensor], ranks: Sequence[int] | None = None) -> int:
        """Write the average of learners' newest versions into tensors; return the oldest's number."""
        found: list[int] = []

        def message(rank: int) -> list[Tensor]:
            version = self._boxes.read(rank, range(1 << 62), self._heard)
            assert version is not None, f"learner {rank} has published nothing"
            found.append(version)
            return self._heard_views

        chosen = range(self._boxes.num_learners) if ranks is None else ranks
        blend(dict.fromkeys(chosen, 1.0 / len(chosen)), chosen[0], message, into)
        return min(found)

    def disagreement(self) -> float:
        """Return the mean over learners of |theta_r - mean| / |mean|, parameters only."""
        size = self._boxes.num_learners
        thetas = torch.empty(size, self._boxes.sizes[0])
        for rank in range(size):
            self._boxes.read(rank, range(1 << 62), (thetas[rank], self._heard[1]))
        size_of_mean = torch.linalg.vector_norm(thetas.mean(0)).clamp(min=1e-30)
        thetas -= thetas[0].clone()  # so that alike is 0 and not rounding
        thetas -= thetas.mean(0)
        return float(torch.linalg.vector_norm(thetas, dim=1).mean() / size_of_mean)


@dataclass
class Group:
    """The learners of a run, by rank, and what joins them."""

    parts: list[Parts]
    stop: StopSignal
    evaluator: Evaluator | None
    boxes: Mailboxes | None
    """What learners mix through; None for one."""
    versions: Versions | None
    """Everyone's newest policy; None for one learner, whose board has it."""
    seed: int

    @property
    def first(self) -> Parts:
        """Learner 0 and what serves it."""
        return self.parts[0]

    @property
    def env_steps(self) -> int:
        """Steps learnt from, over all learners."""
        return max(parts.learner.env_steps for parts in self.parts)

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

    @property
    def steps_per_version(self) -> int:
        """Env steps of everyone's batches."""
        return self.first.steps_per_version * len(self.parts)

    def join(self) -> None:
        """Let the learners mix from the update on that each of them is at."""
        if self.boxes is None:
            return
        for rank, parts in enumerate(self.parts):
            mailbox = Mailbox(self.boxes, rank, self.stop, timeout_seconds=LINK_TIMEOUT_SECONDS)
            parts.learner.join(mailbox, seed=self.seed)

    def publish(self, parts: Parts) -> None:
        """Show a learner's version to its actors, and to all who look at the group."""
        tensors, version = parts.policy.shared_tensors(), parts.learner.version
        parts.board.publish(tensors, version)
        if self.versions is not None:
            self.versions.post(parts.learner.rank, tensors, version)

    def close(self) -> None:
        """Free what outlives threads."""
        for parts in self.parts:
            parts.close()
        if self.evaluator is not None:
            self.evaluator.close()


def build_group(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    *,
    on_episode: Callable[[Episode, int], None],
    on_evaluation: Callable[[Evaluation, int, list[Tensor], int | None], None],
    torso: torch.nn.Module | None = None,
    start: bool = True,
) -> Group:
    """Build all learners of a run in this process.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        on_episode: told every finished training episode and whose it is.
        on_evaluation: told the result, the version, its tensors, and whose they are (None: everyone's).
        torso: the user's own feature layers.
        start: as in `build_env_groups`.
    """
    stop, size = StopSignal(), config.num_learners
    made: list[Parts] = []
    for rank in range(size):

        def told(episode: Episode, rank: int = rank) -> None:
            on_episode(episode, rank)

        parts = build_parts(
            config, spec, plan, stop=stop, rank=rank, on_episode=told, torso=torso, start=start
        )
        made.append(parts)
        if rank == 0:
            _refuse_too_many(parts, size)
    first = made[0]
    boxes: Mailboxes | None = None
    versions: Versions | None = None
    if size > 1:
        boxes = _mailboxes(size, message_sizes(first.learner.mixed()))
        like = first.policy.shared_tensors()
        mixes = config.topology.mixes if config.topology.name != "single" else ""
        versions = Versions(_mailboxes(size, message_sizes(like)), like, mixes)
    read = partial(first.board.read, 0, exact=False) if versions is None else versions.read_next

    def scored(result: Evaluation, version: int, tensors: list[Tensor]) -> None:
        on_evaluation(result, version, tensors, 0 if versions is None else versions.scored)

    evaluator = build_evaluator(config, plan, first.policy, read, stop, scored)
    return Group(made, stop, evaluator, boxes, versions, config.seed)


def _mailboxes(num_learners: int, sizes: tuple[int, int]) -> Mailboxes:
    return Mailboxes(mmap.mmap(-1, Mailboxes.nbytes(num_learners, sizes)), num_learners, sizes)


def _refuse_too_many(parts: Parts, num_learners: int) -> None:
    """Refuse more learners than memory holds, once the first is there to be measured."""
    policy = sum(x.numel() * x.element_size() for x in parts.policy.shared_tensors())
    slots = sum(x.numel() * x.element_size() for slot in parts.queue.slots for x in _tensors(slot))
    # Policy, gradient, two averages, acting copy, two boards and four messages.
    each = 11 * policy + slots
    free = psutil.virtual_memory().available
    if num_learners > 1 and each * (num_learners - 1) > free:
        raise ConfigError(
            f"num_learners is {num_learners}, which take about {num_learners * each / 2**30:.0f} GiB of "
            f"memory; {free / 2**30:.0f} GiB are free: --num-learners {max(free // each, 1)}"
        )


def _tensors(holder: Any) -> list[Tensor]:
    return [getattr(holder, field.name) for field in fields(holder)]
