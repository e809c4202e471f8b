"""Rings that learners read together: each writes its own segment, all sample from every one.

A place is a number among those of all segments: segment times capacity, plus the place in its ring.

Shapes: n places asked for, T unroll length, F features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gossamer.mailboxes import fence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.replay.ring import Layout, Ring
    from gossamer.types import Trajectory


class Segments:
    """The rings of one replay, of which this learner writes one.

    No locks: a sequence number beside each entry is odd while it is written, and a column whose number is
    odd, or changed while it was copied, has not been read.

    Args:
        rings: of all learners, alike.
        own: which of them is written here.
    """

    def __init__(self, rings: Sequence[Ring], own: int = 0):
        self.ring = rings[own]
        """The one that is written here."""
        self.first = own * self.ring.capacity
        """Its first place."""
        self._rings = tuple(rings)
        size = len(rings) * self.ring.capacity
        # Each learner counts what it has sampled itself: a segment has a single writer.
        self._uses = np.zeros(size, dtype=np.int64)
        self._uses_of = np.zeros(size, dtype=np.int64)

    @property
    def layout(self) -> Layout:
        """What an entry is."""
        return self.ring.layout

    @property
    def shared(self) -> bool:
        """Whether others write too."""
        return len(self._rings) > 1

    def readable(self) -> NDArray[np.int64]:
        """Return the places that hold something."""
        # Places are filled in order.
        held = [int(np.count_nonzero(ring.sequence)) for ring in self._rings]
        return np.concatenate([np.arange(n) + i * self.ring.capacity for i, n in enumerate(held)])

    def entries(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers that tell what is in places now from what was or will be there."""
        return self._sequence(places) // 2 * (len(self._rings) * self.ring.capacity) + places

    def uses(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often this learner has sampled what is in places now."""
        return np.where(self._uses_of[places] == self._sequence(places) // 2, self._uses[places], 0)

    def count_use(self, places: NDArray[np.int64]) -> None:
        """Take notice that different columns were sampled."""
        self._uses[places] = self.uses(places) + 1
        self._uses_of[places] = self._sequence(places) // 2

    def read(self, places: NDArray[np.int64], into: Trajectory) -> NDArray[np.bool_]:
        """Copy entries into the columns of a trajectory; return which are whole: the others are to be drawn anew."""
        whole = np.ones(len(places), dtype=np.bool_)
        for ring, at, local in self._by_ring(places):
            before = ring.sequence[local].copy()
            fence()
            if len(at) == len(places):
                ring.read(local, into)
            else:
                for i, place in zip(at.tolist(), local.tolist(), strict=True):
                    ring.read([place], into.columns(i, i + 1))
            fence()
            whole[at] = (before % 2 == 0) & (ring.sequence[local] == before)
        return whole

    def stored_features(self, places: NDArray[np.int64]) -> Tensor:
        """Return features [T, n, F] as they were stored."""
        t, f = self.layout.fields["features"][0]
        found = torch.empty(t, len(places), f, dtype=torch.float16)
        for ring, at, local in self._by_ring(places):
            found[:, torch.from_numpy(at)] = ring.stored_features(local)
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Return what this learner has written, and how often it has used what."""
        held = int(np.count_nonzero(self.ring.sequence))
        return {
            "uses": torch.from_numpy(self._uses),
            "uses_of": torch.from_numpy(self._uses_of),
            **{f"ring.{name}": x[:held] for name, x in self.ring.fields.items()},
        }

    def fits(self, state: dict[str, Tensor]) -> bool:
        """Whether a state is of such entries, and of as many places."""
        own = self.ring.fields
        held = {name[5:]: x for name, x in state.items() if name.startswith("ring.")}
        alike = held.keys() == own.keys() and all(
            x.shape[1:] == own[name].shape[1:] and x.dtype == own[name].dtype
            for name, x in held.items()
        )
        return alike and len(state["uses"]) == len(self._uses)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict`."""
        self._uses[:] = state["uses"].numpy()
        self._uses_of[:] = state["uses_of"].numpy()
        for name, x in self.ring.fields.items():
            held = state[f"ring.{name}"]
            x[: len(held)].copy_(held)

    def _sequence(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.empty(len(places), dtype=np.int64)
        for ring, at, local in self._by_ring(places):
            found[at] = ring.sequence[local]
        return found

    def _by_ring(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[Ring, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each ring that holds some of the places, which they are, and their places in it."""
        if len(self._rings) == 1:
            yield self.ring, np.arange(len(places)), places
            return
        owners = places // self.ring.capacity
        for i in np.unique(owners).tolist():
            at = np.flatnonzero(owners == i)
            yield self._rings[i], at, places[at] - i * self.ring.capacity
