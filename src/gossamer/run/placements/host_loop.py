"""Learners of one host at work, version after version; the supervisor is told of it in events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gossamer.links.stopping import Stopped
from gossamer.run import snapshot
from gossamer.run.host_protocol import (
    FINAL,
    ActorProcesses,
    Done,
    ProgressReport,
    Snapshot,
    SnapshotSent,
)
from gossamer.run.placements.metric_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from gossamer.run.host_protocol import Event
    from gossamer.run.placements.host_learners import HostLearners
    from gossamer.run.placements.orders import SharedOrders


class HostLoop:
    """The learners of a host, a step of which is one version or one order.

    Args:
        learners: the learners.
        versions: learns a version whenever it is advanced.
        orders: what the supervisor asks.
        here: the supervisor is in this process. It is told episodes at once, and snapshots are copies; otherwise they
            are copied by whoever sends them.
        before_snapshot: called before one is taken.
    """

    def __init__(
        self,
        learners: HostLearners,
        versions: Generator[None],
        orders: SharedOrders,
        *,
        here: bool = False,
        before_snapshot: Callable[[], None] = lambda: None,
    ):
        self._learners, self._versions, self._orders = learners, versions, orders
        self._here, self._before_snapshot = here, before_snapshot
        self._rows = Rows(learners)
        self._actors: list[dict[str, Any]] = []
        self._has_learnt = self._ended = False
        self._gave_at: float | None = None  # a snapshot, which has not been sent yet

    def step(self) -> list[Event]:
        """Carry out an order that is due between two versions, or learn a version; return what there is to tell.

        Raises:
            Stopped: the learners were stopped in the midst of a version; the error of the role that did so, if it had one.
        """
        try:
            return self._step()
        except Stopped:  # also where a snapshot waits for an actor's trajectory
            self._raise_error()
            raise

    def _step(self) -> list[Event]:
        if self._gave_at is not None:  # whoever was given a snapshot has sent it by now
            took, self._gave_at = time.monotonic() - self._gave_at, None
            self._learners.first.checkpoint_seconds += took
            return [SnapshotSent(took)]
        if self._ended:
            self._versions.close()
            self._raise_error()
            return [Done()]
        order = self._orders.reach(self._learners.first.learner.version)
        self._ended = self._has_learnt and self._reached_end()
        if order is not None or self._ended:
            self._ended = self._ended or (order is not None and order.ends)
            return self._save(FINAL if self._ended or order is None else order.number)
        try:
            next(self._versions)
        except StopIteration:
            raise Stopped from None
        self._has_learnt = True
        self._rows.note()
        told: list[Event] = []
        actors = [
            {"role": "actor", "rank": parts.learner.rank, **row}
            for parts in self._learners.parts
            for row in parts.actor.processes
        ]
        if actors != self._actors:
            self._actors = actors
            told.append(ActorProcesses(actors))
        # At the end all have a last row.
        due = self._rows.are_due and not self._reached_end()
        # A supervisor elsewhere is told of rows and episodes together: a message costs more than a list.
        if due or (self._here and self._learners.episodes):
            told.append(self._tell(rows=due))
        return told

    def close(self) -> None:
        """End the roles."""
        self._versions.close()

    def _reached_end(self) -> bool:
        # In lock-step all have the same count, unless one was replaced.
        config = self._learners.config
        unequal = config.topology.staleness == 0 and self._orders.has_replacement
        return not unequal and self._learners.has_learnt(config.total_env_steps)

    def _tell(self, *, rows: bool, last: bool = False) -> ProgressReport:
        waiting = self._learners.episodes
        episodes = [waiting.popleft() for _ in range(len(waiting))]
        return ProgressReport(self._rows.make(last=last) if rows else [], episodes, last)

    def _save(self, number: int) -> list[Event]:
        began, last = time.monotonic(), number == FINAL
        self._before_snapshot()
        state = snapshot.take(self._learners, begun=self._has_learnt, copies=self._here)
        took = time.monotonic() - began
        self._learners.first.checkpoint_seconds += took
        # Episodes of a trajectory that was waited for belong to the snapshot.
        told = [self._tell(rows=last or self._rows.are_due, last=last)] if self._has_learnt else []
        self._gave_at = None if self._here else time.monotonic()
        learners = self._learners
        return [*told, Snapshot(number, state, learners.first.plan, learners.exact, took)]

    def _raise_error(self) -> None:
        if self._learners.stop.error is not None:
            raise self._learners.stop.error
