"""One process of learners, as the supervisor sees it: started, listened to, looked after, ended."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gossamer.links.mailboxes import AWAITS, BEATS
from gossamer.roles.actor import Episode
from gossamer.run.host_protocol import (
    ActorProcesses,
    Died,
    Done,
    Failed,
    Notice,
    ProgressReport,
    Ready,
    Snapshot,
)
from gossamer.run.placements.channel import failure_in, pack, unpack
from gossamer.run.placements.starting import start_child
from gossamer.system.signs import START_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.record.checkpoint import Checkpoint
    from gossamer.run.host_protocol import Event
    from gossamer.run.placements.channel import Channel
    from gossamer.run.placements.fork_server import Copy
    from gossamer.run.placements.learners_memory import Memory

JOIN_SECONDS = 20.0
"""Longest wait for a process that was killed."""
CLOSE_SECONDS = 5.0
"""Longest wait for processes that are done and close their environments."""
MARGIN_SECONDS = 5.0
"""A process that gives itself up, or another, knows more about it: the supervisor does so later."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process is told when it begins: plain data."""

    config: dict[str, Any]
    plan: dict[str, Any]
    ranks: tuple[int, int]
    """Its first learner, and the one behind its last."""
    process: int
    """Index among the processes."""
    num_processes: int
    blocks: tuple[int, ...]
    """File descriptors: of the lock on the run folder, which is kept open; of the memory of mailboxes, versions and
    orders; then of every learner's part of each shared replay."""
    mixed_sizes: tuple[int, int]
    policy_sizes: tuple[int, int]
    cores: tuple[int, ...]
    """Where it runs; empty: anywhere."""
    overlaps: bool
    """Acting and learning side by side, which needs a second core."""
    restarts: int
    """How often its learners have died; 0 if they have no donors to take over from."""
    donors: dict[str, list[int]]
    """Ranks whose average a learner begins with, by the rank of one that has died."""
    differs: str | None
    """Why environments do not come back, as in their spec; None: it is not known yet."""
    transport: str
    """How gradients travel: "memory", or the backend of a collective."""
    meeting: str
    """File, or HOST:PORT, at which the members of a collective find each other."""
    machine: str = ""
    """Address of this machine in a cluster, which actors and learners on others call; empty: it is in none."""
    begin_name: str = ""
    """Folder of the checkpoint that came with the task, for messages; empty: it begins anew."""


class ProcessHost:
    """A host that is a child process, from its start on.

    Args:
        task: of the process.
        checkpoint: its part of what the run begins with; None: it begins anew, or with others' average.
        memory: that it shares.
        device: of the plan.
        patience_seconds: longest silence.
        place_actor: has an actor placed on another machine, by its task.
        on_mail: called when its learners have written something that others wait for.
    """

    def __init__(
        self,
        task: Task,
        checkpoint: Checkpoint | None,
        memory: Memory,
        device: str,
        patience_seconds: float,
        place_actor: Callable[[dict[str, Any]], None] | None = None,
        on_mail: Callable[[], None] = lambda: None,
    ):
        self._place_actor, self._on_mail = place_actor, on_mail
        self.ranks = range(*task.ranks)
        self.machine, self.here, self.away = "", True, False
        self.done = False
        """Whether it has told everything."""
        self._memory = memory
        self._header = memory.boxes.headers[self.ranks.start]
        seconds = patience_seconds and patience_seconds + MARGIN_SECONDS
        who = f"learner {self.ranks.start}"
        self._patience = Patience(seconds, who, lambda: int(self._header[BEATS]))
        self._life = self._patience.wait("")
        self._started = time.monotonic()
        self._ready = self._buried = False
        self.popen, self._channel = _start(task, checkpoint, device)

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
        """File descriptor of the socket; -1 when it is closed."""
        return self._channel.end.fileno()

    def poll(self, *, readable: bool) -> list[Event]:
        """Return what the process has told, and whether it has died; never waits.

        Args:
            readable: there is something in the socket, or its end.

        Raises:
            RunFailed: it shows no sign of life, and does not wait for another's.
        """
        found: list[Event] = []
        for message in self._channel.receive() if readable else ():
            if message["kind"] == "place actor" and self._place_actor is not None:
                self._place_actor(message["task"])
            elif message["kind"] == "mail":
                self._on_mail()
            else:
                found.append(self._event(message))
        if self.done or self._buried:
            return found
        self._look()
        if self._channel.closed and self.popen.poll() is not None:
            self._buried = True
            code = self.popen.returncode
            assert code is not None, "told by the last look at it"
            found.append(Died(f"signal {-code}" if code < 0 else f"exit code {code}"))
        return found

    def close(self) -> None:
        """Hear it no more."""
        self._channel.close()

    def _event(self, message: dict[str, Any]) -> Event:
        match message["kind"]:
            case "ready":
                self._ready = True
                return Ready(message["differs"])
            case "told":
                episodes = [(rank, Episode(**x)) for rank, x in message["episodes"]]
                return ProgressReport(message["rows"], episodes, message["last"])
            case "snapshot":
                tensors, state = unpack(self._channel.take_descriptor())
                return Snapshot(message["number"], tensors, state, message["seconds"])
            case "actors":
                return ActorProcesses(message["rows"])
            case "notice":
                return Notice(message["text"])
            case "done":
                self.done = True
                return Done()
            case _:
                return Failed(failure_in(message, "a learner"))

    def _look(self) -> None:
        seconds = time.monotonic() - self._started
        starting = not self._ready and seconds < START_SECONDS
        if starting:
            self._header[BEATS] += 1  # so that others wait for it
        if starting or self._header[AWAITS]:
            self._life = self._patience.wait("")
        else:
            self._life.look()


def _start(
    task: Task, checkpoint: Checkpoint | None, device: str
) -> tuple[subprocess.Popen[bytes] | Copy, Channel]:
    begin = None
    if checkpoint is not None:
        state = {"state": checkpoint.state, "updates": checkpoint.updates}
        begin = pack(checkpoint.tensors, state)
        task = dataclasses.replace(task, begin_name=str(checkpoint.path))
    more: dict[str, str] = {}
    if device == "cuda" and task.ranks[1] - task.ranks[0] == 1:
        # It needs no memory on the others' GPUs then; several learners choose among all.
        more["CUDA_VISIBLE_DEVICES"] = _gpu_of(task.ranks[0])
    try:
        return start_child("learner", dataclasses.asdict(task), task.blocks, begin, more)
    finally:
        if begin is not None:
            os.close(begin)


def end_processes(hosts: Sequence[ProcessHost]) -> None:
    """Wait a little for those that are done to close what they hold, kill what still runs, wait until all are gone."""
    until = time.monotonic() + CLOSE_SECONDS
    for host in hosts:
        if host.done:
            with suppress(subprocess.TimeoutExpired):
                host.popen.wait(max(until - time.monotonic(), 0.0))
    for host in hosts:
        host.close()
        if host.popen.poll() is None:
            host.popen.kill()
    for host in hosts:
        host.popen.wait(JOIN_SECONDS)


def _gpu_of(rank: int) -> str:
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    return gpus[rank % len(gpus)] if gpus else ""
