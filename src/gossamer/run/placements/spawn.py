"""How a child process of learners or of an actor is started, as a copy of the fork server or anew, and how it is ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.fork_server import MAX_DESCRIPTORS, fork_server, start_anew
from gossamer.system.importing import module_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.run.placements.child_protocol import ActorTask
    from gossamer.run.placements.fork_server import Copy
    from gossamer.run.placements.remote_actor import RemoteActor

    Popen = subprocess.Popen[bytes] | Copy | RemoteActor
    """A child process, or what stands in for one on another machine."""


CLOSE_SECONDS = 5.0
"""Longest wait for processes that close their environments by themselves."""
JOIN_SECONDS = 20.0
"""Longest wait for a process that was killed."""


def end_children(
    children: Sequence[tuple[Popen, Channel[Any]]],
    closing: Sequence[Popen],
    seconds: float = CLOSE_SECONDS,
) -> None:
    """Wait some time for processes that close what they hold, kill what still runs, wait until all are gone."""
    until = time.monotonic() + seconds
    try:
        for popen in closing:
            with suppress(subprocess.TimeoutExpired):
                _wait(popen, until - time.monotonic())
    finally:  # also where a deadline ends the wait
        for popen, channel in children:
            channel.close()
            if popen.poll() is None:
                popen.kill()
    for popen, _ in children:
        _wait(popen, JOIN_SECONDS)


def _wait(popen: Popen, seconds: float) -> None:
    """Wait for the end of a process; raise TimeoutExpired."""
    until = time.monotonic() + seconds
    while popen.poll() is None:
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired("a child process", seconds)
        time.sleep(0.005)


def how_ended(popen: Popen) -> str:
    """Return in words how a process ended whose end was noticed."""
    code = popen.returncode
    assert code is not None, "told by the last look at it"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def spawn(
    task: LearnerTask | ActorTask, hears: Any, variables: Mapping[str, str] | None = None
) -> tuple[Popen, Channel[Any]]:
    """Start a process and tell it its task; return it, and our end of its channel.

    Args:
        task: with the descriptors that it is to have.
        hears: union of the messages that come from it.
        variables: of its environment, beside ours.
    """
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(x or str(Path.cwd()) for x in module_path())  # "" is the present folder
    environment = {**os.environ, "PYTHONPATH": path, **(variables or {})}
    blocks, role = task.blocks, "learner" if isinstance(task, LearnerTask) else "actor"
    made = fork_server() if len(blocks) <= MAX_DESCRIPTORS else None
    with theirs:
        copy = made.copy(theirs, blocks, environment) if made is not None else None
        popen: Popen = copy or start_anew(role, theirs, blocks, environment)
    channel: Channel[Any] = Channel(ours, hears)
    with suppress(OSError):  # it is dead already, which those who look after it will see
        channel.send(task)
    return popen, channel
