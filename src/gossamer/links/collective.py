"""Averages over all learners that do not go through shared memory: from GPU to GPU, or through sockets."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

EXCHANGE_SECONDS = 300.0
"""Longest time for numbers to travel: everyone has been seen to be there before they are sent."""
GRACE_SECONDS = 5.0
"""Within which a dead process is noticed."""


class Collective:
    """One learner's end of a torch.distributed group; each process has one at most.

    Args:
        backend: "nccl", for learners with a GPU each, or "gloo".
        meeting: a file that is not there yet, at which the learners find each other.
        rank: of this learner.
        num_learners: how many there are.
    """

    def __init__(self, backend: str, meeting: str, rank: int, num_learners: int):
        self._num_learners = num_learners
        dist.init_process_group(
            backend,
            store=dist.FileStore(meeting, num_learners),
            rank=rank,
            world_size=num_learners,
            timeout=timedelta(seconds=EXCHANGE_SECONDS),
        )

    def average(self, vectors: Sequence[Tensor]) -> None:
        """Replace vectors, alike in everyone's length and order, by everyone's average."""
        try:
            for vector in vectors:
                dist.all_reduce(vector)
        except RuntimeError as error:
            # One that dies cuts the others off at once. They are ended as soon as the supervisor knows whose
            # fault it is; only if nobody has died it is theirs.
            time.sleep(GRACE_SECONDS)
            raise RunFailed(
                f"the connection between learners broke: {' '.join(str(error).split())}"
            ) from error
        torch._foreach_div_(list(vectors), float(self._num_learners))

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def can_use(backend: str) -> bool:
    """Whether this build of torch has a backend."""
    return dist.is_available() and dist.is_backend_available(backend)
