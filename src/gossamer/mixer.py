"""What a learner does with its peers: posts its numbers, and mixes in theirs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.topology import blend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.mailboxes import Mailbox
    from gossamer.topology import Topology


def message_sizes(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Return how many float32 and float64 numbers a message of such tensors holds."""
    singles = sum(x.numel() for x in tensors if x.dtype == torch.float32)
    doubles = sum(x.numel() for x in tensors if x.dtype == torch.float64)
    if singles + doubles != sum(x.numel() for x in tensors):
        raise TypeError("learners mix float32 and float64 tensors only")
    return singles, doubles


class Mixer:
    """One learner's end of a topology.

    Args:
        topology: whom to hear, with which weight, how late.
        mailbox: the link to the other learners.
        tensors: what is mixed, in place; their storage must not change.
        seed: of the run; random links are drawn from it.
    """

    def __init__(
        self, topology: Topology, mailbox: Mailbox, tensors: Sequence[Tensor], *, seed: int
    ):
        self.topology, self.mailbox = topology, mailbox
        self.seconds = 0.0
        self.messages = self.bytes = 0
        self._staleness = [0, 0]  # sum over the messages mixed, and how many
        self._tensors = list(tensors)
        self._seed = seed
        self._rank, self._num_learners = mailbox.rank, mailbox.num_learners
        self._mixed_of: dict[int, int] = {}  # by peer: update of its message mixed last
        self._posted: list[int] = []  # updates of my last two messages
        sizes = mailbox.boxes.sizes
        assert sizes == message_sizes(self._tensors), (sizes, message_sizes(self._tensors))
        device = self._tensors[0].device
        self._on_gpu = device.type == "cuda"
        self._sum = _vectors(sizes, device)
        self._sum_views = _views(self._sum, self._tensors)
        self._heard = _vectors(sizes, torch.device("cpu"))
        # On a GPU tensors are gathered there first, then travel in one piece.
        self._own = (
            [_vectors(sizes, device)] if self._on_gpu else mailbox.boxes.messages[self._rank]
        )
        self._own_views = [_views(vectors, self._tensors) for vectors in self._own]
        self._slot = 0

    @torch.no_grad()
    def post(self, update: int) -> None:
        """Publish the tensors as the message of `update`.

        Waits only in a synchronous topology, for readers that still need the message it overwrites.
        """
        began = time.perf_counter()
        if self.topology.staleness == 0 and len(self._posted) == 2:
            overwritten = self._posted.pop(0)
            for peer in self.topology.readers(
                overwritten, self._rank, self._num_learners, self._seed
            ):
                self.mailbox.wait_combined(peer, overwritten)
        self._posted = [*self._posted[-1:], update]
        with self.mailbox.posting(update) as slot:
            self._slot = 0 if self._on_gpu else slot
            torch._foreach_copy_(self._own_views[self._slot], self._tensors)
            if self._on_gpu:
                for target, x in zip(self.mailbox.boxes.messages[self._rank][slot], self._own[0],
                                     strict=True):  # fmt: skip
                    target.copy_(x)
        self.seconds += time.perf_counter() - began

    @torch.no_grad()
    def mix(self, update: int) -> bool:
        """Replace the tensors by their average with the peers' messages; whether anything was mixed."""
        began = time.perf_counter()
        row = self.topology.row(update, self._rank, self._num_learners, self._seed)
        found = {peer: self._find(peer, update) for peer in row if peer != self._rank}
        skips = self.topology.missing == "skip" and None in found.values()
        mixes = not skips and any(x is not None for x in found.values())
        if mixes:
            blend(row, self._rank, lambda peer: self._message(peer, found, update), self._sum)
            torch._foreach_copy_(self._tensors, self._sum_views)
        self.mailbox.set_combined(update)
        self.seconds += time.perf_counter() - began
        return mixes

    def _find(self, peer: int, update: int) -> int | None:
        """Return the update of the message of `peer` to be mixed at `update`; None: it is missing."""
        if self.topology.staleness and self.mailbox.has_left(peer):
            return None
        acceptable = self.topology.acceptable(update)
        if acceptable.start < 0:
            found = self.mailbox.boxes.newest(peer, acceptable)
        else:
            found = self.mailbox.wait_posted(peer, acceptable)
        if found is not None and not self.topology.remix and found <= self._mixed_of.get(peer, -1):
            return None
        return found

    def _message(
        self, peer: int, found: dict[int, int | None], update: int
    ) -> Sequence[Tensor] | None:
        if peer == self._rank:
            return self._own[self._slot]
        if found[peer] is None:
            return None
        # By now there may be a newer one; a synchronous peer cannot have overwritten it.
        acceptable = self.topology.acceptable(update)
        read = self.mailbox.boxes.read(peer, acceptable, self._heard)
        if read is None:
            return None
        self._mixed_of[peer] = read
        self.messages += 1
        self.bytes += sum(x.numel() * x.element_size() for x in self._heard)
        self._staleness[0] += max(update - read, 0)
        self._staleness[1] += 1
        return self._heard if not self._on_gpu else [x.to(self._sum[0].device) for x in self._heard]

    def take_metrics(self) -> dict[str, float]:
        """Return what mixing did since the last call, and forget it."""
        lag, count = self._staleness
        self._staleness = [0, 0]
        return {"topology/staleness_updates": lag / count} if count else {}

    def begin(self, update: int) -> None:
        """Start at `update`, as a resumed or restarted learner does."""
        self.mailbox.set_combined(update - 1)

    def count(self, own_env_steps: int, version: int) -> int:
        """Return the env steps of all learners, knowing one's own.

        In lock-step everyone has as many, and the count does not depend on who is asked first.
        """
        self.mailbox.report(own_env_steps, version)
        if self.topology.staleness == 0:
            return own_env_steps * self._num_learners
        return self.mailbox.total_env_steps()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers to continue from."""
        return {"mixed_of": sorted(self._mixed_of.items())}


def _vectors(sizes: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    return (torch.zeros(sizes[0], device=device),
            torch.zeros(sizes[1], dtype=torch.float64, device=device))  # fmt: skip


def _views(vectors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a message into views with the shapes, and the order in memory, of the tensors it is made of."""
    offsets = {torch.float32: 0, torch.float64: 0}
    views: list[Tensor] = []
    for x in like:
        vector = vectors[0] if x.dtype == torch.float32 else vectors[1]
        begin = offsets[x.dtype]
        offsets[x.dtype] += x.numel()
        # the strides of a dense copy: channels last stays channels last
        stride = torch.empty_like(x, device="meta").stride()
        views.append(vector.as_strided(x.shape, stride, vector.storage_offset() + begin))
    return views
