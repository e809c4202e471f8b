"""What the learners of a process tell of themselves, as rows of metrics.jsonl."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.build import Parts
    from gossamer.group import Group


_OWN_TURN = (
    "share/env",
    "share/inference",
    "share/learn",
    "share/mix",
    "share/wait_peers",
    "share/wait_replay",
    "share/checkpoint",
)
"""What a learner does, or waits for, while others of its process cannot do anything."""


class Rows:
    """Makes a row for every learner of a group, with what its time went into since the last ones."""

    def __init__(self, group: Group):
        self._group = group
        self._at: float | None = None
        self._spent: list[dict[str, float]] = []
        self._lag_max = [0.0] * len(group.parts)

    def note(self) -> None:
        """Take notice of a version that is over."""
        lags = [parts.learner.lag_versions for parts in self._group.parts]
        self._lag_max = [max(x, y) for x, y in zip(self._lag_max, lags, strict=True)]

    def make(self) -> list[dict[str, Any]]:
        """Return the learners' rows: means and shares since the last ones."""
        now = time.monotonic()
        took = max(now - self._at, 1e-9) if self._at is not None else None
        before, self._at = self._spent, now
        self._spent = [self._shares(parts) for parts in self._group.parts]
        if len(self._spent) > 1:
            busy = [
                sum(spent[name] for name in _OWN_TURN if name in spent) for spent in self._spent
            ]
            for spent, own in zip(self._spent, busy, strict=True):
                spent["share/wait_turn"] = sum(busy) - own
        rows: list[dict[str, Any]] = []
        for i, parts in enumerate(self._group.parts):
            learner = parts.learner
            row: dict[str, Any] = {
                "env_steps": learner.env_steps,
                "updates": learner.update,
                "version": learner.version,
                "learner": learner.rank,
                "lag_versions_max": self._lag_max[i],
                **learner.take_metrics(),
            }
            if took is not None:
                row |= {name: (x - before[i][name]) / took for name, x in self._spent[i].items()}
            rows.append(row | _gpu(parts.plan.device))
        self._lag_max = [0.0] * len(self._group.parts)
        return rows

    def _shares(self, parts: Parts) -> dict[str, float]:
        mixer, evaluator = parts.learner.mixer, self._group.evaluator
        mixing = mixer.seconds if mixer else 0.0
        waiting = mixer.mailbox.waited_seconds if mixer else 0.0
        spent = {
            "share/env": parts.actor.seconds["env"],
            "share/inference": parts.actor.seconds["inference"],
            "share/learn": parts.learner.seconds["learn"] - mixing - waiting,
            "share/wait_learner": parts.learner.seconds["wait"],
            "share/wait_actor": parts.queue.waited_seconds["slot"] + parts.board.waited_seconds,
            "queue_wait_seconds_fraction": parts.queue.waited_seconds["slot"],
            "share/evaluation": evaluator.seconds if evaluator else 0.0,
            "share/checkpoint": parts.checkpoint_seconds,
        }
        if parts.learner.replay.replays:
            seconds = parts.learner.replay.seconds
            spent["share/wait_learner"] -= seconds["wait"]
            spent |= {"share/replay": seconds["work"], "share/wait_replay": seconds["wait"]}
        return spent | ({"share/mix": mixing, "share/wait_peers": waiting} if mixer else {})


def _gpu(device: str) -> dict[str, float]:
    if device != "cuda":
        return {}
    import torch

    row: dict[str, float] = {"gpu_memory_bytes": float(torch.cuda.memory_reserved())}
    try:
        row["gpu_percent"] = float(torch.cuda.utilization())
    except Exception:  # noqa: BLE001 - needs NVIDIA's management library, which may be missing
        return row
    return row
