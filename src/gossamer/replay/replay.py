"""A replay: a ring of columns, what picks from it, and what is overwritten when it is full.

Shapes: T unroll length, B columns of a trajectory, n columns wanted, m candidates, F features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gossamer.errors import RunFailed
from gossamer.replay.distances import draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.replay.selectors.base import Selector
    from gossamer.replay.shards import ReplayShards
    from gossamer.types import Batch, Trajectory

Features = Callable[["Trajectory"], "Tensor"]
"""Runs a recent policy over a trajectory's rows; returns its last hidden layer [T, B, F]."""


class Picked(NamedTuple):
    """Facts about the columns that a replay's part of a batch was picked from."""

    name: str
    """Prefix of the replay's metrics: replay/KIND, or own/KIND for a kind of the user's."""
    num_columns: int
    """Columns that could be read."""
    moved: NDArray[np.float64] | None
    """How far the features of candidates had moved; None: nothing was compared."""
    chosen: NDArray[np.float64] | None
    """The same of those that were taken."""


class Candidates:
    """The columns that a selector picks from, by their numbers, and what it may ask of them.

    Args:
        shards: where they are.
        places: theirs.
        rng: draws of the replay's own stream.
        updates: that were made with replayed columns so far.
        measure: returns how far the features of columns in places are from what they are compared with, infinite where that is
            not known, and the sequence numbers at which that was found.
    """

    def __init__(
        self,
        shards: ReplayShards,
        places: NDArray[np.int64],
        rng: np.random.Generator,
        *,
        updates: int,
        measure: Callable[[NDArray[np.int64]], tuple[NDArray[np.float64], NDArray[np.int64]]],
    ):
        self.rng, self.updates = rng, updates
        self.comparison: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        """Distances of what was compared, and of what was chosen; None: nothing was."""
        self._shards, self._places, self._measure = shards, places, measure
        self._seen = np.full(
            len(places), -1, dtype=np.int64
        )  # sequence numbers, where they were measured

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._places)

    def draw(self, wanted: int, multiplier: float = 1.0) -> NDArray[np.int64]:
        """Draw so many different ones, times a multiplier, uniformly; all, if there are no more."""
        return draw(self.rng, len(self), wanted, multiplier)

    def uses(self, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return how often this learner has replayed each, or each of some."""
        places, seen = self._some(self._places, among), self._some(self._seen, among)
        now = self._shards.sequences(places)
        return self._shards.uses(places, np.where(seen < 0, now, seen))

    def ages(self, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return how many columns were stored after each, by the same learner."""
        return self._shards.ages(self._some(self._places, among))

    def numbers(self, name: str, among: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return what is stored of each in a field of trajectories, such as reward [m, T], or version [m]."""
        return self._shards.numbers(name, self._some(self._places, among))

    def distances(self, among: NDArray[np.int64]) -> NDArray[np.float64]:
        """Run the policy over some; return how far their features are from what they are compared with."""
        moved, self._seen[among] = self._measure(self._places[among])
        return moved

    def compared(self, moved: NDArray[np.float64], chosen: NDArray[np.float64]) -> None:
        """Let metrics know the distances of what was compared, and of what was chosen."""
        if len(chosen):
            self.comparison = moved, chosen

    def filled_up(self, chosen: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        """Return what was chosen and, if that is too few, others, drawn uniformly."""
        if not (missing := wanted - len(chosen)):
            return chosen
        left = np.setdiff1d(np.arange(len(self)), chosen)
        return np.concatenate([chosen, self.rng.choice(left, missing, replace=False)])

    @staticmethod
    def _some(x: NDArray[Any], among: NDArray[np.int64] | None) -> NDArray[Any]:
        return x if among is None else x[among]


class Replay:
    """Keeps columns of trajectories and gives them out again.

    Args:
        shards: where they are kept, by this learner and others.
        settings: how they are picked and overwritten.
        candidates: a trajectory that candidates are read into; None: entries are read where they are wanted.
        seed: of the stream that draws entries.
        updates_per_batch: the learner makes so many of each batch.
    """

    def __init__(
        self,
        shards: ReplayShards,
        settings: Selector,
        *,
        candidates: Trajectory | None,
        seed: int,
        updates_per_batch: int = 1,
    ):
        self.shards, self.settings = shards, settings
        self.inserted = 0
        """Columns stored so far, in all sessions."""
        self.draws = 0
        """Batches sampled so far, in all sessions."""
        self._stored = 0  # of what was inserted: into the memory there is now
        self._full = 0  # columns that it is to hold before it is replayed in full
        self._candidates = candidates
        self._rng = np.random.default_rng(seed)
        self.newest = -1
        """Place of one of the columns stored last; -1 before the first."""
        self.updates_per_batch = updates_per_batch
        # Places of the columns sampled last, and what was read there.
        self._sampled: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        ours = type(settings).__module__.startswith("gossamer.")
        self._metrics = f"{'replay' if ours else 'own'}/{settings.name}"
        self.picked = Picked(self._metrics, 0, None, None)
        """Facts about the columns that those sampled last were picked from."""
        self._learn_start = -(-settings.learn_start // shards.layout.unroll_length)

    def fill_first(self) -> None:
        """Be replayed in full once there is no room left."""
        self._full = self._columns_lost({})

    def take_over(self, *, inserted: int, draws: int) -> None:
        """Go on with what a learner that has died has left.

        Args:
            inserted: columns that it had stored, at least.
            draws: number of the batch to be sampled next.
        """
        ring = self.shards.ring
        order = (ring.sequence // 2 - 1) * ring.capacity + np.arange(ring.capacity)
        self._stored = max(int(order.max()) + 1, 0)
        self.inserted, self.draws = max(inserted, self._stored), draws
        self._full = self._columns_lost({"inserted": self.inserted})
        whole = (ring.sequence > 0) & (ring.sequence % 2 == 0)
        if whole.any():
            versions = np.where(whole, ring.fields["version"].numpy(), -1)
            self.newest = self.shards.first + int(versions.argmax())

    @property
    def held(self) -> int:
        """Columns that this learner has stored and not overwritten."""
        return min(self._stored, self.shards.ring.capacity)

    @property
    def filling(self) -> float:
        """How much it holds of what it is to hold before it is replayed in full, in [0, 1]."""
        return min(self.held / self._full, 1.0) if self._full else 1.0

    def ready(self, num_columns: int) -> NDArray[np.int64] | None:
        """Return the places that `num_columns` different columns can be sampled from; None: not yet."""
        if self.settings.compares_with == "newest" and self.newest < 0:
            return None  # others' columns have nothing yet to be like
        if self.inserted < self._learn_start:
            return None
        every = self.shards.readable()
        return every if len(every) >= max(num_columns, 1) else None

    def add(self, trajectory: Trajectory, features: Features) -> None:
        """Store every column of a trajectory."""
        now = features(trajectory) if self._keeps_features else None
        places = self.places_for(trajectory.num_columns, features)
        self.shards.ring.write(places, trajectory, now)
        # The newest state is of one environment after the other: they may have different tasks.
        turn = self.inserted // trajectory.num_columns % trajectory.num_columns
        self.newest = self.shards.first + places[turn]
        self.inserted += trajectory.num_columns
        self._stored += trajectory.num_columns

    @property
    def updates(self) -> int:
        """Updates that were made with replayed columns so far."""
        return self.draws * self.updates_per_batch

    @property
    def _keeps_features(self) -> bool:
        """Whether what is stored now may ever be compared with."""
        if not self.shards.layout.num_features:
            return False
        # Others may go on measuring after this learner has annealed.
        overwrites = self.settings.overwrites_among > 0
        return self.shards.shared or overwrites or self.settings.still_measures(self.updates)

    @property
    def measures(self) -> bool:
        """Whether a policy is still run over what is stored or picked; once it is not, it never is again."""
        return self._keeps_features or self.settings.still_measures(self.updates)

    def places_for(self, num_columns: int, features: Features) -> list[int]:
        """Return the places, of those written from here, that the next so many columns go to."""
        size = self.shards.ring.capacity
        empty = list(range(self.held, min(self.held + num_columns, size)))
        missing = num_columns - len(empty)
        if not missing:
            return empty
        if self.settings.overwrites_among:
            return [*empty, *self._most_moved(missing, features)]
        first = self._stored + len(empty)
        return [*empty, *((first + i) % size for i in range(missing))]

    def _most_moved(self, wanted: int, features: Features) -> list[int]:
        """Draw some places for each column to be stored; return the one of each whose features moved most."""
        looked_at = draw(self._rng, self.held, wanted, self.settings.overwrites_among)
        places = self.shards.first + looked_at
        moved, _ = self._measure(places, features, self.shards.stored_features)
        parts = np.array_split(np.arange(len(looked_at)), wanted)
        return [int(looked_at[part[np.argmax(moved[part])]]) for part in parts]

    def sample(self, into: Batch, every: NDArray[np.int64], features: Features) -> bool:
        """Write picked columns over those of a batch, as many; once all of the batch is whole, `count_use`.

        Args:
            into: the batch's columns.
            every: places to pick from, as `ready` said.
            features: of the policy.

        Returns:
            False where others are overwriting too much of what there is.
        """
        self.picked = Picked(self._metrics, len(every), None, None)
        places = self._pick(every, into.num_columns, features)
        seen = self._read(places, every, into)
        if seen is None:
            return False
        into.replayed.fill_(True)
        into.entry.copy_(torch.from_numpy(self.shards.entries(places, seen)))
        self._sampled = places, seen
        return True

    def count_use(self) -> Picked:
        """Count the use of the columns that were sampled last; return what they were picked from."""
        assert self._sampled is not None, "nothing was sampled since"
        self.shards.count_use(*self._sampled)
        self._sampled = None
        self.draws += 1
        return self.picked

    def _pick(self, every: NDArray[np.int64], wanted: int, features: Features) -> NDArray[np.int64]:
        """Return different places among those that are readable, as many as wanted."""

        def measure(places: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
            return self._measure(places, features, self._like(features))

        candidates = Candidates(
            self.shards, every, self._rng, updates=self.updates, measure=measure
        )
        chosen = np.asarray(self.settings.pick(candidates, wanted))
        whole = chosen.dtype.kind in "iu" and bool(((chosen >= 0) & (chosen < len(every))).all())
        if not whole or len(chosen) != wanted or len(np.unique(chosen)) != wanted:
            raise RunFailed(
                f"the replay {self.settings.name} picked {len(np.unique(chosen))} different columns; pick must return "
                f"{wanted} different whole numbers in [0, {len(every)})"
            )
        if candidates.comparison is not None:
            self.picked = Picked(self._metrics, len(every), *candidates.comparison)
        return every[chosen]

    def _read(
        self, places: NDArray[np.int64], every: NDArray[np.int64], into: Batch
    ) -> NDArray[np.int64] | None:
        """Copy what is in places; for those that are being overwritten meanwhile others are drawn, in place.

        Returns their sequence numbers; None: there are too few others.
        """
        seen, left = self.shards.read(places, into), every
        while len(torn := np.flatnonzero(seen < 0)):
            assert not self.shards.owns(places[torn]).any(), "nobody else writes them"
            left = np.setdiff1d(left, places)
            if len(left) < len(torn):
                return None
            places[torn] = self._rng.choice(left, len(torn), replace=False)
            for i in torn.tolist():
                seen[i : i + 1] = self.shards.read(places[i : i + 1], into.columns(i, i + 1))
        return seen

    def _like(self, features: Features) -> Callable[[NDArray[np.int64]], Tensor]:
        """Return what tells the features that given candidates are to be like."""
        if self.settings.compares_with == "stored":
            return self.shards.stored_features
        assert self._candidates is not None
        assert self.newest >= 0
        column = self._candidates.columns(0, 1)
        self.shards.read(np.array([self.newest]), column)
        newest = features(column)[-1:].half()  # [1, 1, F]
        return lambda _: newest

    def _measure(
        self,
        places: NDArray[np.int64],
        features: Features,
        like: Callable[[NDArray[np.int64]], Tensor],
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return how far the features of entries now are from others, and the entries' sequence numbers.

        Infinite where that is not known: for one overwritten meanwhile, or stored without features.
        """
        buffer = self._candidates
        if buffer is None:
            raise RunFailed(
                f"the replay {self.settings.name} asks for distances, but does not say so: measures: ClassVar[bool] = True"
            )
        moved = np.empty(len(places))
        sequences = np.empty(len(places), dtype=np.int64)
        for start in range(0, len(places), buffer.num_columns):
            part = places[start : start + buffer.num_columns]
            columns = buffer.columns(0, len(part))
            seen = self.shards.read(part, columns)
            now = features(columns)
            apart = self.settings.distance_of(now, like(part))
            seen = self.shards.confirm(part, seen)  # the features read last are of the same
            sequences[start : start + len(part)] = seen
            known = (seen >= 0) & np.isfinite(apart)
            moved[start : start + len(part)] = np.where(known, apart, np.inf)
        return moved, sequences

    def stream(self) -> dict[str, Any]:
        """Return what decides which columns are drawn next, and from how many candidates."""
        return {"draws": self.draws, "rng": self._rng.bit_generator.state}

    def state_dict(self, *, held: bool = True) -> dict[str, Any]:
        """Return everything needed to go on sampling exactly; of what is held only if asked for."""
        full = max(self.held, self._full)
        state: dict[str, Any] = {"inserted": self.inserted, "full": full, **self.stream()}
        if held:
            state |= {"stored": self._stored, "newest": self.newest, **self.shards.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any], *, held: bool = True) -> None:
        """Continue from `state_dict`; without what was held, or if that is not wanted, with nothing."""
        self.inserted, self.draws = state["inserted"], state["draws"]
        self._rng.bit_generator.state = state["rng"]
        if held and "stored" in state:
            self.shards.load_state_dict(state)
            self._stored, self.newest = state["stored"], state["newest"]
            if self._stored < 0 or not -1 <= self.newest < self.shards.num_places:
                raise ValueError(f"its newest of {self._stored} entries is {self.newest}")
            self._full = state.get("full", 0)
        else:
            self._full = self._columns_lost(state)

    def _columns_lost(self, state: dict[str, Any]) -> int:
        layout, capacity = self.shards.layout, self.shards.ring.capacity
        return columns_lost(state, self.settings, capacity, layout.unroll_length)


def columns_lost(
    state: Mapping[str, Any], settings: Selector, capacity: int, unroll_length: int
) -> int:
    """Return how many columns a learner's replay is to hold that begins empty in the midst of a run.

    As many as it held, or as learn_start asks for if that is more, as far as there is room.

    Args:
        state: of the replay; empty: there was none.
        settings: those it has now.
        capacity: columns that there is room for now.
        unroll_length: rows of a column.
    """
    # Older runs have not saved how many it held; if they were never resumed it is what was stored.
    held = state.get("full", state.get("inserted", capacity))
    return min(max(held, -(-settings.learn_start // unroll_length)), capacity)


class Share(NamedTuple):
    """A replay and how many columns of each batch are its."""

    replay: Replay
    num_columns: int


class Tally:
    """Counts what is replayed, of shares in their order."""

    def __init__(self, shares: Sequence[Share]):
        self._shares = shares
        self._online = self._replayed = self._own = 0
        self._ages = 0.0
        self._picked: list[Picked] = []
        self.nonfinite = 0
        """Columns that were not stored."""

    def count(self, batch: Batch, online: Trajectory, picked: list[Picked] | None) -> None:
        """Record the use of a batch, of replayed columns if there are any."""
        self._online += online.num_columns
        if picked is None:
            return
        self._picked = picked
        last = online.num_columns
        for replay, n in self._shares:
            columns, last = batch.columns(last, last + n), last + n
            # Versions of different learners cannot be compared.
            own = torch.from_numpy(replay.shards.wrote(columns.entry.numpy()))
            self._own += int(own.sum())
            self._ages += float((online.version.double().mean() - columns.version[own]).sum())
        self._replayed += last - online.num_columns

    def take(self) -> dict[str, float]:
        """Return metrics of what was counted since the last call, distances as they were last."""
        if not self._online:
            return {}
        metrics = {"replay/ratio": self._replayed / self._online}
        metrics["replay/nonfinite_columns"] = float(self.nonfinite)
        if self._own:
            each = self._shares[0].replay.updates_per_batch
            metrics["replay/age_updates"] = self._ages / self._own * each
        so_far: Counter[str] = Counter()
        for one in self._picked:
            so_far[one.name] += 1
            # Of several of a kind the second is elite_2.
            number = f"_{so_far[one.name]}" if so_far[one.name] > 1 else ""
            name = f"{one.name}{number}"
            metrics[f"{name}_columns"] = float(one.num_columns)
            if one.moved is None or one.chosen is None:
                continue
            low, middle, high = np.quantile(one.moved, (0.1, 0.5, 0.9)).tolist()
            metrics |= {
                f"{name}_distance_p10": low,
                f"{name}_distance_p50": middle,
                f"{name}_distance_p90": high,
                f"{name}_distance_chosen": float(one.chosen.mean()),
            }
        self._online = self._replayed = self._own = 0
        self._ages = 0.0
        self._picked = []
        return metrics
