"""What a learner does with its peers: posts its numbers, and mixes in theirs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.errors import OthersLeft
from gossamer.system import devices
from gossamer.topology.base import blend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.links.collective import Collective
    from gossamer.links.protocols import Message, Peers
    from gossamer.topology.base import Topology


BLAME_SECONDS = 1.0
"""Pause before a learner tells that another has left the group: if that one has failed, it tells why meanwhile."""


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
        peers: the link to the other learners.
        tensors: what is mixed, in place; their storage must not change.
        seed: of the run; random links are drawn from it.
        collective: averages everyone's tensors in place of messages, which then only tell of each other.
    """

    def __init__(
        self,
        topology: Topology,
        peers: Peers,
        tensors: Sequence[Tensor],
        *,
        seed: int,
        collective: Collective | None = None,
    ):
        self.topology, self.peers, self.collective = topology, peers, collective
        self.seconds = 0.0  # waiting for messages not included
        self.messages = self.bytes = self.rounds = 0
        self._staleness = 0  # sum over the messages mixed
        self._told = (0, 0, 0, 0)  # messages, bytes, rounds and staleness of the last metrics
        self._tensors = list(tensors)
        self._seed = seed
        self._rank, self._num_learners = peers.rank, peers.num_learners
        self._mixed_of: dict[int, int] = {}  # by peer: update of its message mixed last
        self._of_peers: dict[
            int, tuple[int, int]
        ] = {}  # since the last metrics: messages, staleness
        self._update = 0  # mixed last
        self._posted: list[int] = []  # updates of my last two messages
        self._began = 0  # the update that the present version began with
        self._late = False
        sizes = peers.sizes
        assert sizes == message_sizes(self._tensors), (sizes, message_sizes(self._tensors))
        self._device = device = self._tensors[0].device
        self._on_gpu = devices.is_gpu(device)
        self._bytes_each = 4 * sizes[0] + 8 * sizes[1]
        # What travels to or from a GPU does so through memory that it reaches by itself: the mailboxes, if they are
        # page-locked, or else, in one piece, memory beside them.
        self._reaches = self._on_gpu and devices.is_pinned(peers.messages_of(self._rank)[0][0])
        self._arrived = vectors(sizes, device)
        self._arrived_views = views(self._arrived, self._tensors)
        self._staging: dict[int, tuple[Tensor, Tensor]] = {}  # by peer; its own for what is posted
        self._peers_views: dict[tuple[int, int], list[Tensor]] = {}  # by rank and slot
        # One that only hears others posts too: it reads its own message where it mixes.
        self._is_alone = topology.is_alone(self._rank, peers.num_learners, seed)
        apart = self._on_gpu or collective is not None
        self._own: Sequence[Message] = (
            [vectors(sizes, device)] if apart else peers.messages_of(self._rank)
        )
        self._own_views = [views(held, self._tensors) for held in self._own]
        self._slot = 0

    @torch.no_grad()
    def post(self, update: int) -> None:
        """Publish the tensors as the message of `update`.

        Waits only in a synchronous topology, for readers that still need the message it overwrites.
        """
        if self._is_alone:
            return
        began, waited = time.perf_counter(), self.peers.waited_seconds
        if self.topology.staleness == 0 and len(self._posted) == 2:
            overwritten = self._posted.pop(0)
            for peer in self.topology.readers(
                overwritten, self._rank, self._num_learners, self._seed
            ):
                self.peers.wait_combined(peer, overwritten)
        self._posted = [*self._posted[-1:], update]
        with self.peers.posting(update) as slot:
            self._slot = slot if len(self._own) > 1 else 0
            torch._foreach_copy_(self._own_views[self._slot], self._tensors)
            if self._on_gpu and self.collective is None:
                own = self._own[0]
                if not self._reaches:
                    own = copy_block(own, self._staged(self._rank))
                for target, x in zip(self.peers.messages_of(self._rank)[slot], own, strict=True):
                    target.copy_(x, non_blocking=True)
                if self._reaches:
                    devices.wait(self._device)
        self._count_time(began, waited)

    @torch.no_grad()
    def mix(self, update: int) -> bool:
        """Replace the tensors by their average with the peers' messages; whether anything was mixed."""
        began, waited = time.perf_counter(), self.peers.waited_seconds
        row = self.topology.row(update, self._rank, self._num_learners, self._seed)
        found = {peer: self._find(peer, update) for peer in row if peer != self._rank}
        missing = [peer for peer, x in found.items() if x is None]
        if missing and self.topology.mixes == "gradients":
            time.sleep(BLAME_SECONDS)
            raise OthersLeft(f"learner {missing[0]} has left the group of learner {self._rank}")
        # One that has left is not waited for; the others go on without it.
        skips = self.topology.missing == "skip" and not all(
            self.peers.has_left(peer, update) for peer in missing
        )
        mixes = not skips and len(missing) < len(found)
        if self.collective is not None and not self._is_alone:
            self._average(self.collective)
        elif mixes:
            blend(row, self._rank, lambda peer: self._message(peer, found, update), self._tensors)
        self.peers.set_combined(update)
        self.rounds += 1
        self._update = update
        self._count_time(began, waited)
        return mixes

    def _average(self, collective: Collective) -> None:
        """Replace the tensors by everyone's average, all of whom have come as far."""
        collective.average(self._own[0])
        torch._foreach_copy_(self._tensors, self._own_views[0])
        others = self._num_learners - 1
        self.messages += others
        # What each receives as sums, and then their results, go round a ring.
        self.bytes += 2 * others * self._bytes_each // self._num_learners

    def _count_time(self, began: float, waited: float) -> None:
        self.seconds += time.perf_counter() - began - (self.peers.waited_seconds - waited)

    def _find(self, peer: int, update: int) -> int | None:
        """Return the update of the message of `peer` to be mixed at `update`; None: it is missing."""
        if self.topology.staleness and self.peers.has_left(peer, update):
            return None
        acceptable = self.topology.acceptable(update)
        if acceptable.start < 0:
            found = self.peers.newest(peer, acceptable)
        else:
            found = self.peers.wait_posted(peer, acceptable)
        if found is not None and not self.topology.remix and found <= self._mixed_of.get(peer, -1):
            return None
        return found

    def _message(self, peer: int, found: dict[int, int | None], update: int) -> list[Tensor] | None:
        if peer == self._rank:
            return self._own_views[self._slot]
        if found[peer] is None:
            return None
        if self.topology.staleness == 0 and not self._on_gpu:
            # It waits for me before it writes over this: no need to copy it first.
            read: int | None = update
            slot = self.peers.place_of(peer, update)
            heard = self._peers_views.get((peer, slot))
            if heard is None:
                heard = views(self.peers.messages_of(peer)[slot], self._tensors)
                self._peers_views[peer, slot] = heard
        else:
            # By now there may be a newer one.
            staged = self._staged(peer)
            read = self.peers.read(peer, self.topology.acceptable(update), staged)
            if read is None:
                return None
            heard = self._arrived_views
            if staged is not self._arrived:
                copy_block(staged, self._arrived, wait=False)
        self._mixed_of[peer] = read
        self.messages += 1
        self.bytes += self._bytes_each
        behind = max(update - read, 0)
        self._staleness += behind
        count, total = self._of_peers.get(peer, (0, 0))
        self._of_peers[peer] = count + 1, total + behind
        return heard

    def _staged(self, peer: int) -> tuple[Tensor, Tensor]:
        """Return where a message is on its way to or from a GPU; where it arrives, if it goes there straight.

        One for each peer: a copy to the GPU may be under way until the next message is posted.
        """
        if not self._on_gpu or self._reaches:
            return self._arrived
        if peer not in self._staging:
            sizes = self.peers.sizes
            self._staging[peer] = vectors(sizes, torch.device("cpu"), pinned=True)
        return self._staging[peer]

    def take_metrics(self) -> dict[str, float]:
        """Return what mixing did since the last call."""
        now = (self.messages, self.bytes, self.rounds, self._staleness)
        before, self._told = self._told, now
        messages, received, rounds, lag = (x - y for x, y in zip(now, before, strict=True))
        if not rounds:
            return {}
        metrics = {
            "topology/messages_per_update": messages / rounds,
            "topology/bytes_per_update": received / rounds,
        }
        if messages:
            metrics["topology/staleness_updates"] = lag / messages
        links = {
            f"topology/staleness_updates_of_{peer}": self._staleness_of(peer)
            for peer in sorted(self._mixed_of)
            if self.topology.staleness  # in lock-step nobody is behind
        }
        self._of_peers = {}
        return metrics | links

    def _staleness_of(self, peer: int) -> float:
        """Return by how many updates a peer's messages were behind; of one that sends no more, by how many its last is."""
        count, total = self._of_peers.get(peer, (0, 0))
        return total / count if count else float(max(self._update - self._mixed_of[peer], 0))

    def begin(self, update: int, own_env_steps: int, *, late: bool = False) -> int:
        """Start at `update`, as new and resumed learners do; return it.

        One that joins `late`, others being on their way, starts where they are.
        """
        self.peers.report(own_env_steps)
        self._late = late
        if late and self.topology.staleness == 0:
            # Some may still have to mix what was posted last; it is overwritten as if by its writer.
            self._posted = self.peers.posted()
            heard = self.topology.sources(self._rank, self._num_learners, self._seed)
            return self.peers.join_running_group(heard)
        if late:
            # Nobody mixes what is not newer than the last that was heard from here. Who hears nobody counts his own.
            known = self.peers.newest_known(others=self.topology.talks)
            update = max(update, known + 1)
        self.peers.begin(update)
        return update

    def begin_version(self, update: int, own_env_steps: int) -> None:
        """Tell those in lock-step, at the first update of a version, how many env steps are behind its end."""
        self._began = update
        if self.topology.staleness == 0:
            self.peers.announce(update, own_env_steps)

    def count(self, own_env_steps: int) -> int:
        """Return the env steps of all learners at the end of a version, knowing one's own.

        In lock-step all return the same: what everyone has said at the version's beginning, for which those
        that are ahead wait. Independent ones are to be compared: each learns from its share, however
        fast the others are.
        """
        self.peers.report(own_env_steps)
        if not self.topology.talks:
            return own_env_steps * self._num_learners
        if (
            self.topology.staleness or self._late
        ):  # one that came late began versions at other updates
            return self.peers.total_env_steps()
        return sum(
            own_env_steps if rank == self._rank else self.peers.wait_announced(rank, self._began)
            for rank in range(self._num_learners)
        )


class Outbox:
    """Takes a policy's tensors to the CPU, from a GPU in one piece."""

    def __init__(self, like: Sequence[Tensor]):
        self._on_gpu = devices.is_gpu(like[0].device)
        if self._on_gpu:
            sizes = message_sizes(like)
            self._held = vectors(sizes, like[0].device)
            self._arrived = vectors(sizes, torch.device("cpu"), pinned=True)
            self._held_views = views(self._held, like)
            self._arrived_views = views(self._arrived, like)

    @torch.no_grad()
    def take(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the same on the CPU, good until the next call; what is there is not copied."""
        if not self._on_gpu:
            return tensors
        torch._foreach_copy_(self._held_views, tensors)
        copy_block(self._held, self._arrived)
        return self._arrived_views


def vectors(
    sizes: tuple[int, int], device: torch.device, *, pinned: bool = False
) -> tuple[Tensor, Tensor]:
    """Return a message of zeros in one block: its float32 and its float64 numbers."""
    block = torch.zeros(8 * sizes[1] + 4 * sizes[0], dtype=torch.uint8, device=device)
    if pinned:
        block = devices.pinned(block)
    doubles, singles = block.split([8 * sizes[1], 4 * sizes[0]])
    return singles.view(torch.float32), doubles.view(torch.float64)


def copy_block(
    source: Sequence[Tensor], target: Sequence[Tensor], *, wait: bool = True
) -> Sequence[Tensor]:
    """Copy a message of `vectors` to another one, of a GPU or from there, in one piece; return that."""
    one, other = (x[0].new_empty(0, dtype=torch.uint8).set_(x[0].untyped_storage())  # pyright: ignore[reportArgumentType]
                  for x in (source, target))  # fmt: skip
    other.copy_(one, non_blocking=not wait)
    return target


def views(message: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a message into views with the shapes, and the order in memory, of the tensors it is made of."""
    offsets = {torch.float32: 0, torch.float64: 0}
    cut: list[Tensor] = []
    for x in like:
        vector = message[0] if x.dtype == torch.float32 else message[1]
        begin = offsets[x.dtype]
        offsets[x.dtype] += x.numel()
        # the strides of a dense copy: channels last stays channels last
        stride = torch.empty_like(x, device="meta").stride()
        cut.append(vector.as_strided(x.shape, stride, vector.storage_offset() + begin))
    return cut
