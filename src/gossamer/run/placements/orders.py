"""Orders of the supervisor to all learners: to save, or to save and end; those in lock-step after one and the same version.

Words in shared memory. Learners in lock-step must take their snapshots after the same version. The
supervisor names one that nobody has reached, then looks again whether that is still so: a learner writes
its version before it reads the order, the supervisor writes the order before it reads versions, so one of
the two sees the other. Until the supervisor has settled it, a learner that is there waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from gossamer.errors import RunFailed
from gossamer.links.mailboxes import fence
from gossamer.run.host_protocol import Order

if TYPE_CHECKING:
    import mmap

NUMBER, AT, SETTLED, ENDS, HAS_REPLACEMENT, HEADER = range(6)
"""Words of an order: its number, the version it is for (0: the next), whether that is final, whether it
ends the run; then whether a learner was replaced. After them, a word for each process: the version it has
reached."""
SETTLE_SECONDS = 60.0
"""Longest wait of a learner for the supervisor to settle an order, which takes it microseconds."""


class SharedOrders:
    """The words, in memory that all processes map.

    Args:
        memory: of `nbytes`, zeroed when new.
        process: index of this one among those with learners.
    """

    def __init__(self, memory: mmap.mmap, process: int = 0):
        words = np.frombuffer(memory, np.int64)
        self._order, self._reached = words[:HEADER], words[HEADER:]
        self._process = process
        self._carried_out = 0  # number of the last order that this process has seen to

    @staticmethod
    def nbytes(num_processes: int) -> int:
        """Return how much memory they take, of so many processes with learners."""
        return 8 * (HEADER + num_processes)

    def announce(self, *, ends: bool, together: bool) -> int:
        """Ask everyone to save, after the same version if `together`; return the order's number."""
        order = Order(self.number + 1, ends)
        newest = self.propose(order, self.newest + 1 if together else 0)
        while together and newest >= self._order[AT]:
            newest = self.propose(order, newest + 1)
        self.settle()
        return order.number

    @property
    def number(self) -> int:
        """The number of the last order that was written; 0: there was none."""
        return int(self._order[NUMBER])

    @property
    def newest(self) -> int:
        """The newest version that a process has reached."""
        return int(self._reached.max())

    def propose(self, order: Order, at: int) -> int:
        """Write an order that is not settled yet; return the newest version that a process has reached by then.

        Only if that is before `at` will every process see the order in time; else it must be proposed for a later one.

        Args:
            order: what is to be done.
            at: the version after which it is to be carried out; 0: the next.
        """
        words = self._order
        if order.number != words[NUMBER]:
            words[SETTLED] = 0
            fence()
            words[ENDS] = order.ends
        words[AT] = at
        fence()
        words[NUMBER] = order.number
        fence()
        return self.newest

    def settle(self) -> None:
        """Let those that are there carry the order out."""
        self._order[SETTLED] = 1

    def reach(self, version: int) -> Order | None:
        """Tell that this process has reached a version; return the order to carry out now, if there is one."""
        order = self._order
        self._reached[self._process] = version
        fence()
        waited = 0.0
        while True:
            number, settled = int(order[NUMBER]), bool(order[SETTLED])
            if number == self._carried_out:
                return None
            fence()
            at, ends = int(order[AT]), bool(order[ENDS])  # final, once settled
            fence()
            if (number, settled) != (int(order[NUMBER]), bool(order[SETTLED])):
                continue  # another order is being written over this one
            if version < at:
                return None
            if settled:
                self._carried_out = number
                return Order(number, ends)
            if waited >= SETTLE_SECONDS:
                raise RunFailed(f"waited {waited:.0f} s for the supervisor to settle an order")
            time.sleep(1e-4)
            waited += 1e-4

    def note_replacement(self) -> None:
        """Record that a learner was replaced: it has learnt less than the others, who cannot know the end."""
        self._order[HAS_REPLACEMENT] = 1

    @property
    def has_replacement(self) -> bool:
        """Whether a learner was replaced."""
        return bool(self._order[HAS_REPLACEMENT])

    def forget(self, process: int) -> None:
        """Count a process that is gone no more among those that have reached a version."""
        self._reached[process] = 0
