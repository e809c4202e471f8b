"""Algorithms that take their time, on every machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from gossamer.algorithms.ppo import PPO

UPDATE_SECONDS = 0.02


@dataclass(frozen=True)
class SlowPPO(PPO):
    """PPO of which an update takes a while."""

    name: ClassVar[str] = "slow_ppo"

    def loss(self, *batch: Any) -> Any:
        time.sleep(UPDATE_SECONDS)
        return super().loss(*batch)
