"""Rings that learners read together: each writes its own shard, all sample from every one.

And what a checkpoint that kept them must fit.

A place is a number among those of all shards: shard times capacity, plus the place in its ring.

Shapes: n places asked for, T unroll length, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.errors import ConfigError
from gossamer.links.mailboxes import fence
from gossamer.replay.entries import Staging, sent_ahead, unpack
from gossamer.replay.ring import DeviceRing
from gossamer.system import devices
from gossamer.system.prefixes import without_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.replay.layout import Layout
    from gossamer.replay.ring import Ring
    from gossamer.types import Trajectory


class ReplayShards:
    """The rings of one replay, of which this learner writes one.

    No locks: a sequence number beside each entry is odd while it is written, and a column whose number is
    odd, or changed while it was copied, has not been read.

    Args:
        rings: of all learners, alike.
        own: which of them is written here.
    """

    def __init__(self, rings: Sequence[Ring | DeviceRing], own: int = 0):
        self.ring = rings[own]
        """The one that is written here."""
        self.first = own * self.ring.capacity
        """Its first place."""
        self.rings = tuple(rings)
        self.num_places = len(rings) * self.ring.capacity
        """Places in the rings of all learners together."""
        # Each learner counts what it has sampled itself: a shard has a single writer.
        self._uses = np.zeros(self.num_places, dtype=np.int64)
        self._uses_of = np.zeros(self.num_places, dtype=np.int64)
        self._staging = Staging(self.layout)

    @property
    def layout(self) -> Layout:
        """Layout of an entry."""
        return self.ring.layout

    @property
    def shared(self) -> bool:
        """Whether others write too."""
        return len(self.rings) > 1

    def readable(self) -> NDArray[np.int64]:
        """Return the places that hold something, and not something half-written."""
        found: list[NDArray[np.int64]] = []
        for i, ring in enumerate(self.rings):
            sequence = ring.sequence.copy()
            whole = (sequence > 0) & (sequence % 2 == 0)
            found.append(np.flatnonzero(whole) + i * ring.capacity)
        return np.concatenate(found)

    def owns(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which places are written here."""
        return places // self.ring.capacity == self.first // self.ring.capacity

    def wrote(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which entries were written here."""
        return self.owns(entries % self.num_places)

    def sequences(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sequence numbers of places now."""
        found = np.empty(len(places), dtype=np.int64)
        for ring, at, local in self._by_ring(places):
            found[at] = ring.sequence[local]
        return found

    def entries(self, places: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers that tell what was in places, at sequence numbers, from what was or will be there."""
        return sequences // 2 * self.num_places + places

    def ages(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how long before the newest of its shard each was written, where the oldest is overwritten."""
        age = np.empty(len(places), dtype=np.int64)
        for ring, at, local in self._by_ring(places):
            written = ring.sequence // 2 * ring.capacity + np.arange(ring.capacity)
            age[at] = written.max() - written[local]
        return age

    def uses(self, places: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often this learner has sampled what was in places at sequence numbers."""
        return np.where(self._uses_of[places] == sequences // 2, self._uses[places], 0)

    def count_use(self, places: NDArray[np.int64], sequences: NDArray[np.int64]) -> None:
        """Record that other columns were sampled."""
        self._uses[places] = self.uses(places, sequences) + 1
        self._uses_of[places] = sequences // 2

    def read(self, places: NDArray[np.int64], into: Trajectory) -> NDArray[np.int64]:
        """Copy entries into the columns of a trajectory; return their sequence numbers.

        -1 where nothing whole has been read: that is to be drawn anew.
        """
        seen = np.empty(len(places), dtype=np.int64)
        device = into.reward.device
        sent = devices.is_gpu(device) and not isinstance(self.ring, DeviceRing)
        staged = self._staging.entries(len(places)) if sent else {}
        for ring, at, local in self._by_ring(places):
            seen[at] = ring.sequence[local]
            fence()
            among = None if len(at) == len(places) else torch.from_numpy(at)
            if isinstance(ring, DeviceRing):
                ring.read(local, into)
            elif sent:
                ring.read_entries(local, staged, among)
            else:
                ring.read(local, into, among)
        seen[(seen % 2 == 1) | (seen == 0)] = -1
        seen = self.confirm(places, seen)
        if sent:  # what is torn as well: it is read anew
            unpack(sent_ahead(staged, device), into, self.layout)
            devices.wait(device)  # for what is written over next
        return seen

    def confirm(self, places: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sequence numbers at which something was read until now; -1 where it has changed meanwhile."""
        fence()
        return np.where(self.sequences(places) == sequences, sequences, -1)

    def stored_features(self, places: NDArray[np.int64]) -> Tensor:
        """Return features [T, n, F] as they were stored; some infinite where they were not."""
        t, f = self.layout.fields["features"][0]
        found = torch.empty(t, len(places), f, dtype=torch.float16)
        for ring, at, local in self._by_ring(places):
            found[:, torch.from_numpy(at)] = ring.stored_features(local)
        return found

    def numbers(self, name: str, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return what is stored in places in a field; of a column that is being overwritten anything."""
        shape, dtype = self.layout.fields[name]
        found = torch.empty(len(places), *shape, dtype=dtype)
        for ring, at, local in self._by_ring(places):
            held = ring.fields[name]
            index = devices.send(torch.from_numpy(local), held.device)
            found[torch.from_numpy(at)] = held.index_select(0, index).cpu()
        return found.numpy()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what this learner has written, and how often it has used what."""
        held = int(np.count_nonzero(self.ring.sequence))
        return {
            "uses": torch.from_numpy(self._uses),
            "uses_of": torch.from_numpy(self._uses_of),
            **{f"ring.{name}": x[:held] for name, x in self.ring.fields.items()},
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict`."""
        self._uses[:] = state["uses"].numpy()
        self._uses_of[:] = state["uses_of"].numpy()
        for name, x in self.ring.fields.items():
            if name != "sequence":
                held = state[f"ring.{name}"]
                x[: len(held)].copy_(held)
        devices.wait(self.ring.fields["reward"].device)
        fence()  # others may look already: what they see is there
        held = state["ring.sequence"]
        self.ring.fields["sequence"][: len(held)].copy_(held)

    def _by_ring(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[Ring | DeviceRing, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each ring that holds some of the places, which they are, and their places in it."""
        if len(self.rings) == 1:
            yield self.ring, np.arange(len(places)), places
            return
        owners = places // self.ring.capacity
        for i in np.unique(owners).tolist():
            at = np.flatnonzero(owners == i)
            yield self.rings[i], at, places[at] - i * self.ring.capacity


@dataclass(frozen=True)
class Form:
    """Form of a mix of replays, which what a checkpoint has kept of one must match."""

    layouts: tuple[Layout, ...]
    """Layout of each replay's entries."""
    num_places: tuple[int, ...]
    """Places of each replay, all learners' parts together."""
    num_columns: int
    """Replayed ones of a batch."""
    num_batches: int
    """Batches that may be ready at a time."""
    burn_in: bool

    def refuse(self, state: dict[str, Any]) -> None:
        """Refuse what was kept of another mix: names and tensors, of which shapes and dtypes count.

        Raises:
            ConfigError: what it was kept under differs from the settings.
        """
        if not any(".ring." in name for name in state):
            return
        _check(fits=bool(self.layouts), what="the replays")
        for i, (layout, size) in enumerate(zip(self.layouts, self.num_places, strict=True)):
            _refuse(layout, size, without_prefix(state, f"{i}."), what=f"replay {i + 1}")
        ahead = 0
        while coming := without_prefix(state, f"coming.{ahead}."):
            ahead += 1
            _check(fits=ahead <= self.num_batches, what="--prefetch-batches")
            if not coming["whole"]:
                continue
            _check(fits=len(coming["entry"]) == self.num_columns, what="the fractions")
            _check(fits=("burn_in" in coming) == self.burn_in, what="--replay-burn-in")


def _refuse(layout: Layout, num_places: int, state: dict[str, Any], what: str) -> None:
    held = without_prefix(state, "ring.")
    alike = held.keys() == layout.fields.keys() and all(
        (tuple(x.shape[1:]), x.dtype) == layout.fields[name] for name, x in held.items()
    )
    _check(fits=alike and len(state["uses"]) == num_places, what=what)


def _check(*, fits: bool, what: str) -> None:
    if not fits:
        raise ConfigError(
            f"its replay data does not match the present settings of {what}; resume with the original ones, or "
            "with empty replays: --checkpoint-replay false"
        )
