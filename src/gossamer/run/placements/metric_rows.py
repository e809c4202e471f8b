"""Rows of metrics.jsonl, in which the learners of a process tell of themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gossamer.run.usage import gpu_usage

if TYPE_CHECKING:
    from gossamer.build.roles import LearnerBundle
    from gossamer.run.placements.host_learners import HostLearners


_OWN_TURN = (
    "share/env",
    "share/inference",
    "share/learn",
    "share/mix",
    "share/wait_peers",
    "share/wait_replay",
    "share/checkpoint",
)
"""Metrics of what a learner does, or waits for, while others of its process cannot do anything."""


ROW_SECONDS = 1.0
"""Shortest time between two rows of learner 0."""
LEAST_SECONDS = 0.2
"""Shares of a shorter time, as between the last two rows of a run, tell nothing."""
OTHERS_ROW_SECONDS = 10.0
"""Pause between two rows of a learner other than 0, which would fill disks with a hundred learners."""


class Rows:
    """Makes rows of a host's learners, each of everything since the learner's row before."""

    def __init__(self, learners: HostLearners):
        self._learners = learners
        self._made_at = float("-inf")
        self._at = [float("-inf")] * len(learners.parts)
        self._spent: list[dict[str, float]] = [{} for _ in learners.parts]
        self._lag_max = [0.0] * len(learners.parts)
        self._told: list[tuple[int, dict[str, float]]] = [(-1, {}) for _ in learners.parts]

    def note(self) -> None:
        """Record that a version is over."""
        lags = [parts.learner.lag_versions_max for parts in self._learners.parts]
        self._lag_max = [max(x, y) for x, y in zip(self._lag_max, lags, strict=True)]

    @property
    def are_due(self) -> bool:
        """Whether the time has come for a row of learner 0."""
        return time.monotonic() - self._made_at >= ROW_SECONDS

    def make(self, *, last: bool = False) -> list[dict[str, Any]]:
        """Return rows, means and shares, of those whose time has come: learner 0's always comes.

        Args:
            last: the run is over, and all have one.
        """
        now, everyone = time.monotonic(), self._learners.parts
        self._made_at = now
        due = [
            i
            for i, parts in enumerate(everyone)
            if last or parts.learner.rank == 0 or now - self._at[i] >= OTHERS_ROW_SECONDS
        ]
        if not due:
            return []
        all_spent = [self._shares(parts) for parts in everyone]
        if len(everyone) > 1:
            busy = [sum(spent[name] for name in _OWN_TURN if name in spent) for spent in all_spent]
            for spent, own in zip(all_spent, busy, strict=True):
                spent["share/wait_turn"] = sum(busy) - own
        rows: list[dict[str, Any]] = []
        for i in due:
            learner, spent, before = everyone[i].learner, all_spent[i], self._spent[i]
            took = now - self._at[i]
            version, told = self._told[i]
            metrics = learner.take_metrics()
            if version == learner.version:  # as where a row has made its reader stop the run
                metrics = told | metrics
            self._told[i] = learner.version, metrics
            row: dict[str, Any] = {
                "env_steps": learner.env_steps,
                "updates": learner.update,
                "version": learner.version,
                "learner": learner.rank,
                "lag_versions_max": self._lag_max[i],
                **metrics,
            }
            if learner.num_learners > 1:
                row["learner/env_steps"] = learner.own_env_steps
            if processes := everyone[i].actor.processes:
                row["learner/actor_restarts"] = sum(x["restarts"] for x in processes)
            if before and took > LEAST_SECONDS:
                # A wait counts where it ends, and may have begun before.
                row |= {name: min((x - before[name]) / took, 1.0) for name, x in spent.items()}
                if everyone[i].plan.lag is None and everyone[i].plan.actors:
                    # What waits here hands on what processes have collected, and they collect on meanwhile.
                    idle = max(1.0 - row["share/env"] - row["share/inference"], 0.0)
                    for name in ("share/wait_actor", "queue_wait_seconds_fraction"):
                        row[name] = min(row[name], idle)
            rows.append(row | gpu_usage(everyone[i].policy.device))
            self._at[i], self._spent[i], self._lag_max[i] = now, spent, 0.0
        return rows

    def _shares(self, parts: LearnerBundle) -> dict[str, float]:
        mixer = parts.learner.mixer
        mixing = mixer.seconds if mixer else 0.0
        waiting = mixer.peers.waited_seconds if mixer else 0.0
        spent = {
            "share/env": parts.actor.seconds["env"],
            "share/inference": parts.actor.seconds["inference"],
            "share/learn": parts.learner.seconds["learn"] - mixing - waiting,
            "share/wait_learner": parts.learner.seconds["wait"],
            "share/wait_actor": parts.queue.waited_seconds["slot"] + parts.board.waited_seconds,
            "queue_wait_seconds_fraction": parts.queue.waited_seconds["slot"],
            "share/checkpoint": parts.checkpoint_seconds,
        }
        if parts.learner.replay.replays:
            seconds = parts.learner.replay.seconds
            spent["share/wait_learner"] -= seconds["wait"]
            spent |= {"share/replay": seconds["work"], "share/wait_replay": seconds["wait"]}
        return spent | ({"share/mix": mixing, "share/wait_peers": waiting} if mixer else {})
