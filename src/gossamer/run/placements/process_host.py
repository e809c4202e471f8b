"""One process of learners, as the supervisor sees it: listened to, looked after, ended."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gossamer.links.mailboxes import AWAITS, BEATS
from gossamer.run.host_protocol import Died, Done, Ready
from gossamer.run.placements.child_protocol import (
    EndLearners,
    LearnerTold,
    MessagesWritten,
    PlaceActor,
)
from gossamer.run.placements.process_layout import gpu_of
from gossamer.run.placements.spawn import CLOSE_SECONDS, end_children, how_ended, spawn
from gossamer.system.signs_of_life import START_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.run.host_protocol import Event
    from gossamer.run.host_state import HostState
    from gossamer.run.placements.channel import Channel
    from gossamer.run.placements.child_protocol import ActorTask, LearnerTask
    from gossamer.run.placements.shared_memory import Memory

MARGIN_SECONDS = 5.0
"""A process that gives itself up, or another, knows more about it: the supervisor does so later."""


LEAVE_SECONDS = 3.0
"""Longest wait for processes that leave what they are at, if none has told its last."""


class ProcessHost:
    """A host that is a child process, from its start on.

    Its `state` is set by a placement that looks after it; of an agent's the agent's placement has it.

    Args:
        task: of the process.
        memory: that it shares.
        patience_seconds: longest silence.
        place_actor: has an actor placed on another machine, by its task.
        on_mail: called when its learners have written something that others wait for.
    """

    def __init__(
        self,
        task: LearnerTask,
        memory: Memory,
        patience_seconds: float,
        place_actor: Callable[[ActorTask], None] | None = None,
        on_mail: Callable[[], None] = lambda: None,
    ):
        self._place_actor, self._on_mail = place_actor, on_mail
        self.ranks = range(*task.ranks)
        self.machine, self.here = "", True
        self.over = False
        """Whether it has told its last: that it is done, or that its process has ended."""
        self._memory = memory
        self._header = memory.boxes.headers[self.ranks.start]
        seconds = patience_seconds and patience_seconds + MARGIN_SECONDS
        who = f"learner {self.ranks.start}"
        self._patience = Patience(seconds, who, lambda: int(self._header[BEATS]))
        self._life = self._patience.wait("")
        self._started = time.monotonic()
        self._ready = False
        variables: dict[str, str] = {}
        if task.plan.device == "cuda" and len(self.ranks) == 1:
            # It needs no memory on the others' GPUs then; several learners choose among all.
            variables["CUDA_VISIBLE_DEVICES"] = gpu_of(self.ranks.start)
        self.state: HostState
        self.channel: Channel[LearnerTold]
        self.popen, self.channel = spawn(task, LearnerTold, variables)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self.popen.pid

    @property
    def version(self) -> int:
        """Newest version of its first learner; -1 before the first."""
        return self._memory.versions.newest(self.ranks.start)

    @property
    def fileno(self) -> int:
        """File descriptor of the socket; -1 when either end is closed."""
        return -1 if self.channel.closed else self.channel.end.fileno()

    def poll(self, *, readable: bool) -> list[Event]:
        """Return what the process has told, and whether it has died; never waits.

        Args:
            readable: there is something in the socket, or its end.

        Raises:
            RunFailed: it shows no sign of life, and does not wait for another's.
        """
        found: list[Event] = []
        for told in self.channel.receive() if readable else ():
            match told:
                case PlaceActor(task):
                    assert self._place_actor is not None
                    self._place_actor(task)
                case MessagesWritten():
                    self._on_mail()
                case _ if self.over:
                    pass  # what comes behind its last is no part of the run: an environment may fail when it is closed
                case _:
                    self._ready = self._ready or isinstance(told, Ready)
                    self.over = self.over or isinstance(told, Done)
                    found.append(told)
        if self.over:
            return found
        self._look()
        if self.channel.closed and self.popen.poll() is not None:
            self.over = True
            found.append(Died(how_ended(self.popen)))
        return found

    def _look(self) -> None:
        seconds = time.monotonic() - self._started
        starting = not self._ready and seconds < START_SECONDS
        if starting:
            self._header[BEATS] += 1  # so that others wait for it
        if starting or self._header[AWAITS]:
            self._life = self._patience.wait("")
        else:
            self._life.look()


def end_processes(hosts: Sequence[ProcessHost]) -> None:
    """End the processes of hosts; before they are killed they may close what they hold, and those leave what they are at."""
    for host in hosts:
        if not host.over:
            with suppress(OSError):
                host.channel.end.setblocking(False)
                host.channel.send(EndLearners())
    closing = [host.popen for host in hosts]
    seconds = CLOSE_SECONDS if any(host.over for host in hosts) else LEAVE_SECONDS
    end_children([(host.popen, host.channel) for host in hosts], closing, seconds)
