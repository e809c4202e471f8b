"""State of one host of learners: its phase, its incarnation, and what the supervisor has heard of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gossamer.run.host_protocol import FINAL, Done, Snapshot

if TYPE_CHECKING:
    from gossamer.run.host_protocol import Event

Phase = Literal[
    "placing", "unplaced", "starting", "learning", "saving", "ending", "ended", "done", "dead"
]
"""Where a host is between its start and its end. Its placement moves it until it is starting, then the supervisor does.

placing: a machine is looked for that has room for it.
unplaced: none was found for so long that the user was told; the others go on without it.
starting: its learners are being made.
learning: they learn, or are about to.
saving: its part of a checkpoint is here, and the checkpoint waits for other hosts.
ending: the same of its last part.
ended: its last part is here and belongs to a checkpoint; it has more to tell.
done: it has told everything.
dead: its process has ended before that; its successor begins with a state of its own.
"""
TRANSITIONS: dict[Phase, tuple[Phase, ...]] = {
    "placing": ("unplaced", "starting"),
    "unplaced": ("placing", "starting"),
    "starting": ("learning", "dead"),
    "learning": ("saving", "ending", "dead"),
    "saving": ("learning", "dead"),
    "ending": ("ended",),
    "ended": ("done",),
    "done": (),
    "dead": (),
}
"""The phases that each phase leads to. Of one whose last part is here nothing is missed: it does not die."""


@dataclass
class HostState:
    """One host, from its start until it is done or dead.

    Args:
        incarnation: how often the host has died before.
        deaths_in_a_row: how often it has died without a completed version in between.
    """

    incarnation: int = 0
    deaths_in_a_row: int = 0
    phase: Phase = "placing"
    version_at_start: int = -1
    """Version that its first learner began with; -1: none."""
    has_told_rows: bool = False
    """Whether rows of metrics have come from it since it was started."""
    ordered: bool = False
    """Whether it had a place when the checkpoint under way was ordered."""
    part: Snapshot | None = None
    """Its part of the checkpoint under way."""
    final: Snapshot | None = None
    """Its last part; its learners have ended."""
    deferred: list[Event] = field(default_factory=list[Any])
    """Events after its part of the checkpoint under way: they are heard once that is joined."""
    actors: list[dict[str, Any]] = field(default_factory=list[Any])
    """Rows of processes.json, of the processes of its actors."""

    def move(self, phase: Phase) -> None:
        """Go on to another phase.

        Raises:
            AssertionError: no transition leads there.
        """
        assert phase in TRANSITIONS[self.phase], f"a host that is {self.phase} became {phase}"
        self.phase = phase

    @property
    def is_placed(self) -> bool:
        """Whether it has a place: others wait for it, and a checkpoint needs its part."""
        return self.phase not in ("placing", "unplaced")

    @property
    def given(self) -> Snapshot | None:
        """Its part of the checkpoint under way, which a host that has ended has given for all that follow."""
        return self.part or self.final

    def has_learnt(self, version: int) -> bool:
        """Return whether its learners have completed a version since they were made; the newest is given."""
        # Policies of hosts on other machines come seldom, rows of metrics do not.
        return self.has_told_rows or version > self.version_at_start

    @property
    def has_told_last(self) -> bool:
        """Whether its last part is here, or waits behind that of the checkpoint under way."""
        waiting = (x for x in self.deferred if isinstance(x, Snapshot))
        return self.final is not None or any(part.number == FINAL for part in waiting)

    def die(self, version: int) -> bool:
        """Record that its process has ended, after a version; return whether it is missed: not all that it had to give is here."""
        told_done = any(isinstance(x, Done) for x in self.deferred)
        if not self.has_told_last:
            self.deaths_in_a_row = 0 if self.has_learnt(version) else self.deaths_in_a_row + 1
            self.move("dead")
            return True
        if self.part is None:
            self.finish()
        elif not told_done:
            self.deferred.append(Done())
        return False

    def successor(self, version: int = -1) -> HostState:
        """Return the state of the host that begins in place of this one, which is dead or begins again with its group.

        Args:
            version: newest of its first learner that others know; -1: none.
        """
        incarnation = self.incarnation + (self.phase == "dead")
        return HostState(incarnation, self.deaths_in_a_row, version_at_start=version)

    def finish(self) -> None:
        """Record that it has told everything."""
        if self.phase != "done":
            self.move("done")

    def give(self, part: Snapshot) -> None:
        """Take its part of the checkpoint under way, or its last one."""
        if part.number == FINAL:
            self.final = part
        self.part = part
        self.move("ending" if part.number == FINAL else "saving")

    def release(self) -> list[Event]:
        """Let go of its part, whose checkpoint is joined or given up; return the events that have waited for it."""
        self.part = None
        if self.phase in ("saving", "ending"):
            self.move("learning" if self.phase == "saving" else "ended")
        events, self.deferred = self.deferred, []
        return events
