"""Memory that learners share, of one process or several: mailboxes to mix through, and everyone's newest policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gossamer.links.mailboxes import FAR, Mailboxes
from gossamer.roles.evaluator import Source
from gossamer.roles.mixer import message_sizes, vectors, views
from gossamer.topology.base import blend

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from gossamer.config import TrainConfig
    from gossamer.roles.learner import Learner
    from gossamer.topology.base import RunPolicy


class Heard(NamedTuple):
    """A version that was read, and what is behind it."""

    version: int
    at: tuple[int, int]
    """Updates and env steps."""


class PolicyBoards:
    """The newest policy of every learner, in shared memory, and whose is to be evaluated next.

    In turn: the average of the learners and one of them; alike learners are evaluated as
    one, and independent ones have no average. The supervisor reads policies while the evaluator does: what
    a read needs room for is its own.

    Args:
        boxes: a mailbox for each learner.
        like: the tensors of a policy.
        run_policy: the topology's.
    """

    def __init__(self, boxes: Mailboxes, like: Sequence[Tensor], run_policy: RunPolicy):
        self.boxes, self._run_policy = boxes, run_policy
        self._views = [[views(message, like) for message in slots] for slots in boxes.messages]
        self._like = like
        self._turn = 0

    @torch.no_grad()
    def post(
        self, rank: int, tensors: list[Tensor], version: int, *, updates: int, env_steps: int
    ) -> None:
        """Publish a learner's version and what is behind it; never waits."""
        with self.boxes.posting(rank, version, notes=(updates, env_steps)) as slot:
            torch._foreach_copy_(self._views[rank][slot], tensors)
        self.boxes.mark_back(rank)

    def read_next(self, into: list[Tensor]) -> Source:
        """Copy the policy that is to be evaluated next into tensors; return whose it is."""
        learner: int | None = 0
        averages = self._run_policy == "average"
        if averages and self._turn % 2 == 0:
            learner = None
        elif self._run_policy != "first":
            learner = (self._turn // (2 if averages else 1)) % self.boxes.num_learners
        self._turn += 1
        if learner is not None and learner not in (there := self.present()):
            learner = there[0]
        heard = self.average(into, None if learner is None else [learner])
        return Source(heard.version, learner, heard.at)

    def present(self) -> list[int]:
        """Return the learners that have a version and have not left; if all have, those with a version."""
        known = [rank for rank in range(self.boxes.num_learners) if self.newest(rank) >= 0]
        return [rank for rank in known if not self.boxes.has_left(rank)] or known

    def newest(self, rank: int) -> int:
        """Return the number of a learner's newest version; -1 before the first."""
        found = self.boxes.newest(rank, range(FAR))
        return -1 if found is None else found

    def policy_of(self, rank: int) -> list[Tensor] | None:
        """Return a copy of a learner's newest policy; None before the first."""
        if self.newest(rank) < 0:
            return None
        policy = [torch.empty_like(x, device="cpu") for x in self._like]
        self.average(policy, [rank])
        return policy

    def updates(self, rank: int) -> int:
        """Return the updates behind a learner's newest version; 0 before the first."""
        return self._read(rank).at[0]

    def version_at(self, learner: Learner, others: Sequence[int]) -> int:
        """Return the version that others in lock-step are at when they are at a learner's update."""
        each, heard = learner.updates_per_version, map(self._read, others)
        found = (x.version - (x.at[0] - learner.update) // each for x in heard if x.version >= 0)
        return max(found, default=0)

    def evaluate_learner_next(self, learner: int) -> None:
        """Let the next policy to be evaluated be one of independent learners; others have their order."""
        if self._run_policy == "best":
            self._turn = learner

    def evaluate_run_policy_next(self, best: int | None) -> None:
        """Let the next policy to be evaluated be the run's: of independent learners the best one's."""
        self._turn = best or 0 if self._run_policy == "best" else self._turn + self._turn % 2

    @torch.no_grad()
    def average(self, into: list[Tensor], ranks: Sequence[int] | None = None) -> Heard:
        """Write the average of learners' newest versions into tensors, by default of all present; return the oldest, and the env steps behind all."""
        found: list[Heard] = []
        heard = self._room()
        heard_views = views(heard, self._like)

        def message(rank: int) -> list[Tensor]:
            found.append(self._read(rank, heard))
            return heard_views

        chosen = self.present() if ranks is None else ranks
        on_cpu = into[0].device.type == "cpu"
        mean = into if on_cpu else [torch.empty_like(x) for x in heard_views]
        blend(dict.fromkeys(chosen, 1.0 / len(chosen)), chosen[0], message, mean)
        if mean is not into:
            torch._foreach_copy_(into, mean)
        oldest = min(found)
        # Those of all learners, as far as each has heard of them, the first to publish of the fewest.
        return Heard(oldest.version, (oldest.at[0], max(x.at[1] for x in found)))

    def disagreement(self) -> dict[int, float]:
        """Return |theta_r - mean| / |mean| of every learner that is there, by rank, parameters only."""
        there = self.present()
        thetas = torch.empty((len(there), self.boxes.sizes[0]), dtype=torch.float32)
        moments = self._room()[1]
        for i, rank in enumerate(there):
            self._read(rank, (thetas[i], moments))
        size_of_mean = torch.linalg.vector_norm(thetas.mean(0)).clamp(min=1e-30)
        thetas -= thetas[0].clone()  # so that alike is 0 and not rounding
        thetas -= thetas.mean(0)
        apart = torch.linalg.vector_norm(thetas, dim=1) / size_of_mean
        return dict(zip(there, apart.tolist(), strict=True))

    def _room(self) -> tuple[Tensor, Tensor]:
        return vectors(self.boxes.sizes, torch.device("cpu"))

    def _read(self, rank: int, into: tuple[Tensor, Tensor] | None = None) -> Heard:
        """Return a learner's newest version, and copy it if there is where to; -1 before the first."""
        boxes, every = self.boxes, range(FAR)
        while True:
            if (found := boxes.find(rank, every)) is None:
                assert into is None, f"learner {rank} has published nothing"
                return Heard(-1, (0, 0))
            heard = Heard(found.update, found.notes)
            if (
                into is None
                or boxes.read(rank, range(found.update, found.update + 1), into) is not None
            ):
                return heard


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
    """Memory that all learners map: mailboxes to mix through, and everyone's newest version.

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
