"""Elite replay: of more candidates than needed those are kept whose features have changed least, or the least used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from gossamer.replay.selectors.base import Selector
from gossamer.system.ranges import CountToMillion, Whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.replay.replay import Candidates


@dataclass(frozen=True)
class EliteSettings(Selector):
    """Draws more columns than needed and keeps the least used ones, or those whose features have changed least.

    Every batch runs the policy over its candidates once more.
    """

    name: ClassVar[str] = "elite"
    measures: ClassVar[bool] = True

    strategy: Literal["nearest", "stratified", "least_used", "stratified_least_used"] = "least_used"
    """Which of the drawn columns (candidates) are kept. nearest: those with the smallest distances. least_used: those
    sampled least often, among equally used ones the nearest. stratified, stratified_least_used: candidates are sorted
    by distance and cut into one segment per column needed, and each segment's nearest or least used candidate is
    kept."""
    candidate_multiplier: Annotated[float, Meta(ge=1, le=10_000)] = 2.0
    """Candidates drawn per column needed, >= 1; falls linearly to 1, which is uniform sampling."""
    anneal_updates: Whole = 10_000
    """Number of updates with replayed columns, >= 0, over which candidate_multiplier falls to 1."""
    distance: Literal["lp", "cosine", "kl"] = "lp"
    """Distance between two sets of features. lp: norm of the difference. cosine: 1 - cosine similarity. kl: KL
    divergence of their softmaxes."""
    norm_order: Annotated[float, Meta(ge=0.1, le=1000)] = 2.0
    """Order p of the norm lp, in [0.1, 1000]; high orders measure the largest difference."""
    insert: Literal["fifo", "elite"] = "fifo"
    """Column to overwrite when the replay is full. fifo: the oldest. elite: of elite_batch random columns,
    the one whose features have changed most."""
    elite_batch: CountToMillion = 20
    """With insert elite: random columns from which the column to overwrite is chosen, >= 1."""

    def pick(self, candidates: Candidates, wanted: int) -> NDArray[np.int64]:
        """Return those that the strategy keeps of some that are drawn."""
        import numpy as np

        from gossamer.replay.distances import choose

        drawn = candidates.draw(wanted, self.multiplier(candidates.updates))
        if len(drawn) == wanted:
            return drawn
        moved = candidates.distances(drawn)
        known = np.isfinite(moved)
        drawn, moved = drawn[known], moved[known]
        kept = choose(moved, candidates.uses(drawn), wanted, self.strategy)
        candidates.compared(moved, moved[kept])
        return candidates.filled_up(drawn[kept], wanted)

    @property
    def stores_features(self) -> bool:
        """Whether what was stored will be compared with."""
        draws = self.candidate_multiplier > 1.0 and self.anneal_updates > 0
        return (draws and self.compares_with == "stored") or self.insert == "elite"

    @property
    def overwrites_among(self) -> int:
        """Columns of which the one is overwritten whose features have changed most; 0: the oldest is."""
        return self.elite_batch if self.insert == "elite" else 0

    @property
    def strategy_in_words(self) -> str:
        """Strategy in words, for the start of a run."""
        return self.strategy

    def still_measures(self, updates: int) -> bool:
        """Whether more candidates are drawn than are needed."""
        return self.multiplier(updates) > 1.0

    def distance_of(self, now: Tensor, like: Tensor) -> NDArray[np.float64]:
        """Return how far features are from others by the distance of the settings."""
        from gossamer.replay.distances import distances

        return distances(now, like, self.distance, self.norm_order).numpy()

    def multiplier(self, updates: int) -> float:
        """Return how many candidates are drawn for each column that is needed, after so many updates."""
        if updates >= self.anneal_updates:
            return 1.0
        first = self.candidate_multiplier
        return first + (1.0 - first) * updates / self.anneal_updates
