"""A replay: a ring of columns, what picks from it, and what is overwritten when it is full.

Shapes: T unroll length, B columns of a trajectory, n columns wanted, m candidates, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.replay.selectors import choose, distances, draw, multiplier_at
from gossamer.replay.settings import AttentiveSettings, CircularSettings, EliteSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.replay.segments import Segments
    from gossamer.replay.settings import UniformSettings
    from gossamer.types import Batch, Trajectory

MAX_DRAWS = 10
"""Draws in place of one column that others overwrite meanwhile."""
Features = Callable[["Trajectory"], "Tensor"]
"""Runs a recent policy over a trajectory's rows; returns its last hidden layer [T, B, F]."""


class Replay:
    """Keeps columns of trajectories and gives them out again.

    Args:
        segments: where they are kept, by this learner and others.
        settings: how they are picked and overwritten.
        candidates: a trajectory that candidates are read into; None: entries are read where they are wanted.
        seed: of the stream that draws entries.
    """

    def __init__(
        self,
        segments: Segments,
        settings: UniformSettings,
        *,
        candidates: Trajectory | None,
        seed: int,
    ):
        self.segments, self.settings = segments, settings
        self.inserted = 0
        """Columns stored so far."""
        self.draws = 0
        """Batches sampled so far."""
        self._candidates = candidates
        self._rng = np.random.default_rng(seed)
        self._newest = -1  # place of the column stored last
        self._moved: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._learn_start = -(-settings.learn_start // segments.layout.unroll_length)

    @property
    def held(self) -> int:
        """Columns that this learner has stored and not overwritten."""
        return min(self.inserted, self.segments.ring.capacity)

    def ready(self, num_columns: int) -> bool:
        """Whether `num_columns` different columns can be sampled."""
        enough = len(self.segments.readable()) >= max(num_columns, 1)
        return enough and self.inserted >= self._learn_start

    def add(self, trajectory: Trajectory, features: Features) -> None:
        """Store every column of a trajectory."""
        now = features(trajectory) if self._keeps_features else None
        places = self._places(trajectory.num_columns, features)
        self.segments.ring.write(places, trajectory, now)
        self.inserted += trajectory.num_columns
        self._newest = self.segments.first + places[-1]

    @property
    def _multiplier(self) -> float:
        settings = self.settings
        if not isinstance(settings, EliteSettings):
            return 1.0
        return multiplier_at(
            self.draws, first=settings.candidate_multiplier, anneal_updates=settings.anneal_updates
        )

    @property
    def _keeps_features(self) -> bool:
        """Whether what is stored now may ever be compared with."""
        if not self.segments.layout.num_features:
            return False
        return getattr(self.settings, "insert", "fifo") == "elite" or self._multiplier > 1.0

    def _places(self, num_columns: int, features: Features) -> list[int]:
        size = self.segments.ring.capacity
        empty = list(range(self.held, min(self.held + num_columns, size)))
        missing = num_columns - len(empty)
        if not missing:
            return empty
        if isinstance(self.settings, EliteSettings) and self.settings.insert == "elite":
            return [*empty, *self._most_moved(missing, features)]
        first = self.inserted + len(empty)
        return [*empty, *((first + i) % size for i in range(missing))]

    def _most_moved(self, wanted: int, features: Features) -> list[int]:
        """Draw some places for each column to be stored; return the one of each whose features moved most."""
        assert isinstance(self.settings, EliteSettings)
        looked_at = draw(self._rng, self.held, wanted, self.settings.elite_batch)
        places = self.segments.first + looked_at
        moved = self._measure(places, features, self.segments.stored_features)
        parts = np.array_split(np.arange(len(looked_at)), wanted)
        return [int(looked_at[part[np.argmax(moved[part])]]) for part in parts]

    def sample(self, into: Batch, features: Features) -> None:
        """Write picked columns over those of a batch, as many, and count their use."""
        wanted, settings = into.num_columns, self.settings
        multiplier = self._multiplier
        every = self.segments.readable()
        if isinstance(settings, CircularSettings):
            order = np.lexsort((self.segments.entries(every), self.segments.uses(every)))
            places = every[order][:wanted]
        else:
            places = every[draw(self._rng, len(every), wanted, multiplier)]
        if multiplier > 1.0 and len(places) > wanted:
            assert isinstance(settings, EliteSettings)
            moved = self._measure(places, features, self._like(features))
            chosen = choose(moved, self.segments.uses(places), wanted, settings.strategy)
            places, self._moved = places[chosen], (moved, moved[chosen])
        assert len(places) == wanted, (len(places), wanted)
        self._read(places, every, into)
        into.replayed.fill_(True)
        into.entry.copy_(torch.from_numpy(self.segments.entries(places)))
        self.segments.count_use(places)
        self.draws += 1

    def _read(self, places: NDArray[np.int64], every: NDArray[np.int64], into: Batch) -> None:
        """Copy what is in places; those that are being overwritten meanwhile are drawn anew, in place."""
        whole = self.segments.read(places, into)
        for i in np.flatnonzero(~whole).tolist():
            for _ in range(MAX_DRAWS):
                places[i] = self._rng.choice(every)
                if self.segments.read(places[i : i + 1], into.columns(i, i + 1)).all():
                    break
            else:  # of one's own nobody else writes
                places[i] = self._newest
                self.segments.read(places[i : i + 1], into.columns(i, i + 1))

    def _like(self, features: Features) -> Callable[[NDArray[np.int64]], Tensor]:
        """Return what tells the features that given candidates are to be like."""
        if not isinstance(self.settings, AttentiveSettings):
            return self.segments.stored_features
        assert self._candidates is not None
        column = self._candidates.columns(0, 1)
        self.segments.read(np.array([self._newest]), column)
        newest = features(column)[-1:].half()  # [1, 1, F]
        return lambda _: newest

    def _measure(
        self,
        places: NDArray[np.int64],
        features: Features,
        like: Callable[[NDArray[np.int64]], Tensor],
    ) -> NDArray[np.float64]:
        """Return how far the features of entries now are from others."""
        settings, buffer = self.settings, self._candidates
        assert isinstance(settings, EliteSettings)
        assert buffer is not None
        found: list[NDArray[np.float64]] = []
        for start in range(0, len(places), buffer.num_columns):
            part = places[start : start + buffer.num_columns]
            columns = buffer.columns(0, len(part))
            whole = self.segments.read(part, columns)
            now = features(columns)
            moved = distances(now, like(part), settings.distance, settings.norm_order)
            found.append(np.where(whole, moved.numpy(), np.inf))
        return np.concatenate(found)

    def take_metrics(self) -> dict[str, float]:
        """Return how full it is, and how far the last candidates had moved."""
        name = f"replay/{self.settings.name}"
        metrics = {f"{name}_columns": float(len(self.segments.readable()))}
        moved, self._moved = self._moved, None
        if moved is not None and np.isfinite(moved[1]).all():
            known = moved[0][np.isfinite(moved[0])]
            low, middle, high = np.quantile(known, (0.1, 0.5, 0.9)).tolist()
            metrics |= {
                f"{name}_distance_p10": low,
                f"{name}_distance_p50": middle,
                f"{name}_distance_p90": high,
                f"{name}_distance_chosen": float(moved[1].mean()),
            }
        return metrics

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether a state is of such columns, and of as much room for them."""
        return self.segments.fits(state)

    def state_dict(self) -> dict[str, Any]:
        """Return what is held, and everything needed to go on sampling exactly."""
        return {
            "inserted": self.inserted,
            "draws": self.draws,
            "newest": self._newest,
            "rng": self._rng.bit_generator.state,
            **self.segments.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.inserted, self.draws = state["inserted"], state["draws"]
        self._rng.bit_generator.state = state["rng"]
        self.segments.load_state_dict(state)
        self._newest = state["newest"]
