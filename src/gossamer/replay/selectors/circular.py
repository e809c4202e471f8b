"""IMPACT's circular buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gossamer.replay.selectors.base import Selector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gossamer.replay.replay import Candidates


@dataclass(frozen=True)
class CircularSettings(Selector):
    """Replays the least used columns (among equals the newest): each one equally often, soon after it was stored.

    Of R replayed columns for each online one, each comes R times: IMPACT's circular buffer with K = R + 1.
    What was stored before learn_start comes first, its newest columns before older ones; until all of it has been
    replayed, newer columns come less often.
    """

    name: ClassVar[str] = "circular"

    def pick(self, candidates: Candidates, wanted: int) -> NDArray[np.int64]:
        """Return the least used, of equally used ones the newest."""
        import numpy as np

        return np.lexsort((candidates.ages(), candidates.uses()))[:wanted]
