"""What a run's supervisor knows of one host of learners: its phase, its part of a checkpoint, and how often it was started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gossamer.run.host_protocol import FINAL, Done

if TYPE_CHECKING:
    from gossamer.run.host_protocol import Event, Snapshot

Phase = Literal["starting", "learning", "saving", "ending", "ended", "done"]
"""Where a host is between its start and its end.

starting: its learners are being made.
learning: they learn, or are about to.
saving: its part of a checkpoint is here, and the checkpoint waits for other hosts.
ending: the same of its last part.
ended: its last part is here and belongs to a checkpoint; it has more to tell.
done: it has told everything.
"""
TRANSITIONS: dict[Phase, tuple[Phase, ...]] = {
    "starting": ("learning", "done"),
    "learning": ("saving", "ending", "done"),
    "saving": ("learning",),
    "ending": ("ended",),
    "ended": ("done",),
    "done": (),
}
"""The phases that each phase leads to. One that dies begins another state, unless all that it had to give is here."""


@dataclass
class HostState:
    """One host, from its first start to the end of the run.

    Args:
        incarnation: how often the host was started before.
        deaths_in_a_row: how often it has died without a completed version in between.
    """

    incarnation: int = 0
    deaths_in_a_row: int = 0
    phase: Phase = "starting"
    version_at_start: int = -1
    """Version of its first learner when it was started; -1: none."""
    has_told_rows: bool = False
    """Whether rows of metrics have come from it since it was started."""
    ordered: bool = False
    """Whether it was there when the checkpoint under way was ordered."""
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
    def given(self) -> Snapshot | None:
        """Its part of the checkpoint under way, which a host that has ended has given for all that follow."""
        return self.part or self.final

    def die(self) -> bool:
        """Record that its process has ended; return whether all that it had to give is here."""
        told_done = any(isinstance(x, Done) for x in self.deferred)
        if self.final is None and not told_done:
            return self.phase == "done"
        if self.part is None:
            self.finish()
        elif not told_done:
            self.deferred.append(Done())
        return True

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
