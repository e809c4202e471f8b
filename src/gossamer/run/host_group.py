"""Hosts of learners that were started together: who is waited for, and what a checkpoint of all of them waits for."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.run.host_protocol import Event, Host, Placement, Snapshot

MAKING_EXPLAINED_AFTER_SECONDS = 2.0
"""Hosts that take longer to make their environments are explained."""


@dataclass
class HostGroup:
    """The hosts of a run from a common start on, at first or with the last checkpoint, to their end.

    Args:
        placement: where they run.
        resumed: whether they go on from a checkpoint.
        making: what to tell if they take long to begin; empty: nothing.
    """

    placement: Placement
    resumed: bool = False
    making: str = ""
    started_at: float = field(default_factory=time.monotonic)
    """When they were started, in seconds of the monotonic clock."""
    all_began: bool = False
    """Whether all that have a place learn."""
    ending: bool = False
    """Whether an end was reached, and ordered."""
    order: int | None = None
    """Number of the order of the checkpoint under way."""
    checkpoint_overdue: bool = False
    """Whether a checkpoint is to be ordered: one was given up, or a host wants one."""
    events: deque[tuple[int, Event]] = field(default_factory=deque[tuple[int, Any]])
    """Events to be heard, by index of the host; what a checkpoint has held back comes first."""
    ranks_told: set[int] = field(default_factory=set[int])
    """Learners that have told a row."""
    last_rows: list[dict[str, Any]] = field(default_factory=list[Any])
    """Last rows of learners, which wait until all have ended: the pace is that of all."""

    @property
    def placed(self) -> Sequence[Host]:
        """The hosts that have a place; all of them if none has."""
        hosts = self.placement.hosts
        return [host for host in hosts if host.state.is_placed] or hosts

    @property
    def ranks(self) -> set[int]:
        """The learners of hosts that have a place; all if none has."""
        return {rank for host in self.placed for rank in host.ranks}

    @property
    def is_done(self) -> bool:
        """Whether all that have a place have told everything."""
        return all(host.state.phase == "done" for host in self.placed)

    @property
    def all_learn(self) -> bool:
        """Whether no host that came later has yet to learn its first version: the others' rows would wait for it."""
        return not self.ranks_told or all(x.state.has_learnt(x.version) for x in self.placed)

    def begin(self) -> bool:
        """Return whether all that have a place learn by now, once."""
        starting = [x.state.phase == "starting" for x in self.placed]
        if self.all_began or any(starting) or not any(x.state.is_placed for x in self.placed):
            return False
        self.all_began = True
        return True

    def explanation(self) -> str:
        """Return what takes so long, once, if they have not begun; empty: nothing is to be said."""
        if self.all_began or self.resumed:  # that one was told
            self.making = ""
        if time.monotonic() - self.started_at <= MAKING_EXPLAINED_AFTER_SECONDS:
            return ""
        told, self.making = self.making, ""
        return told

    def order_checkpoint(self) -> None:
        """Ask all learners to save."""
        self.order = self.placement.order(ends=False)
        self.checkpoint_overdue = False
        placed = self.placed
        for host in self.placement.hosts:
            host.state.ordered = host in placed

    def parts(self) -> list[Snapshot]:
        """Return the parts of a checkpoint, once all that have a place have given theirs; none before."""
        if any(host.state.given is None for host in self.placed):
            return []
        given = [host.state.given for host in self.placement.hosts]
        return [part for part in given if part is not None]

    def waits_for_newcomer(self, *, in_step: bool) -> bool:
        """Return whether the checkpoint under way has come to wait for a host that joins, though nobody else needs to.

        Args:
            in_step: everyone stands still for whoever joins.
        """
        late = any(not host.state.ordered for host in self.placed)
        ends = any(host.state.final is not None for host in self.placement.hosts)
        # Before the first rows there is nothing to wait.
        return self.order is not None and late and bool(self.ranks_told) and not (in_step or ends)

    def release(self) -> None:
        """Be done with an order: what was told after its parts is heard next."""
        self.order = None
        hosts = enumerate(self.placement.hosts)
        deferred = [(index, event) for index, host in hosts for event in host.state.release()]
        self.events.extendleft(reversed(deferred))
