"""Uniform replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gossamer.replay.selectors.base import Selector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gossamer.replay.replay import Candidates


@dataclass(frozen=True)
class UniformSettings(Selector):
    """Uniform sampling from the newest columns."""

    name: ClassVar[str] = "uniform"

    def pick(self, candidates: Candidates, wanted: int) -> NDArray[np.int64]:
        """Return any."""
        return candidates.draw(wanted)
