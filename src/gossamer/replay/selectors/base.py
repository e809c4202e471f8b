"""A selector decides which stored columns are replayed. What all have in common: how much they keep, and what they are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from gossamer.system.ranges import Count, Share, Whole
from gossamer.types import Named

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.replay.replay import Candidates


@dataclass(frozen=True)
class Selector(Named):
    """A replay of some kind: how much it keeps, and which of its columns are replayed."""

    name: ClassVar[str] = ""
    default_kind: ClassVar[str] = "uniform"
    """The kind that is meant if none is named."""
    measures: ClassVar[bool] = False
    """Whether the policy is run over candidates, whose features are compared."""
    compares_with: ClassVar[Literal["stored", "newest"]] = "stored"
    """What the features of a candidate are compared with: its own when it was stored, or those of the newest state."""

    fraction: Share = 0.5
    """Share of a batch's columns, in (0, 1)."""
    capacity: Count | None = None
    """Columns to keep, at least the number in a batch. Default: as many as hold capacity_steps rows."""
    capacity_steps: Count = 100_000
    """Rows (env steps and resets) to keep, >= 1, if capacity is not given."""
    learn_start: Whole = 0
    """Rows that a learner stores before its replaying begins, >= 0, counted over all sessions; until then batches have
    online columns only. 0: replaying begins when there are enough columns for a batch."""
    shared: bool = False
    """Let every learner sample from the data of all learners. The capacity applies to each learner's part. Features and
    recurrent states are those of the learner that stored them: among learners that do not mix, prefer a uniform replay,
    and --replay-burn-in with a core."""
    path: str = ""
    """Folder for a file that holds the replay, if the replay is larger than memory; the file is removed when the
    run ends. Empty: keep the replay in memory."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Memory that holds the replay. cpu: the host's. cuda: that of the learner's GPU. auto: the GPU's, if this replay
    and those before it in the list take at most a quarter of it; otherwise, and if the replay is shared or in a file,
    the host's."""

    @classmethod
    def refuse_part(cls) -> str:
        """Return what a class of the user's lacks to be a replay; empty: nothing."""
        if cls.pick is Selector.pick:
            return "has no method pick(self, candidates, wanted), which returns the numbers of the columns to replay"
        return ""

    def pick(self, candidates: Candidates, wanted: int) -> NDArray[np.int64]:
        """Return which candidates are replayed: as many different numbers in [0, len(candidates)) as wanted."""
        raise NotImplementedError

    @property
    def stores_features(self) -> bool:
        """Whether columns are stored with the features of their rows."""
        return self.measures and self.compares_with == "stored"

    @property
    def overwrites_among(self) -> int:
        """Columns of which the one is overwritten whose features have changed most; 0: the oldest is."""
        return 0

    @property
    def strategy_in_words(self) -> str:
        """Strategy in words, for the start of a run; empty: there is nothing to tell."""
        return ""

    def still_measures(self, updates: int) -> bool:
        """Whether the policy is still run over candidates after so many updates with replayed columns."""
        return self.measures

    def distance_of(self, now: Tensor, like: Tensor) -> NDArray[np.float64]:
        """Return how far features [T, m, F] are from others: [m] >= 0, 0 if they are the same."""
        from gossamer.replay.distances import distances

        return distances(now, like, "lp").numpy()
