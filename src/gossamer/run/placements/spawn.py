"""How a child process of learners or of an actor is started: as a copy of the fork server, or anew."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import LearnerTask
from gossamer.run.placements.fork_server import MAX_DESCRIPTORS, Copy, fork_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.run.placements.child_protocol import ActorTask


Popen = subprocess.Popen[bytes] | Copy
"""A child process."""


def spawn(
    task: LearnerTask | ActorTask, hears: Any, variables: Mapping[str, str] | None = None
) -> tuple[Popen, Channel[Any]]:
    """Start a process and tell it its task; return it, and our end of its channel, which does not block.

    Args:
        task: with the descriptors that it is to have.
        hears: union of the messages that come from it.
        variables: of its environment, beside ours.
    """
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(x or str(Path.cwd()) for x in sys.path)  # "" is the present folder
    environment = {**os.environ, "PYTHONPATH": path, **(variables or {})}
    blocks, learns = task.blocks, isinstance(task, LearnerTask)
    made = fork_server() if len(blocks) <= MAX_DESCRIPTORS else None
    with theirs:
        popen = None
        if made is not None:
            popen = made.copy(theirs, blocks, environment, starts_others=learns)
        popen = popen or subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "gossamer.run.placements.fork_server",
                str(theirs.fileno()),
                str(os.getpid()),
                "learner" if learns else "actor",
            ],
            pass_fds=(theirs.fileno(), *blocks),
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for the supervisor
        )
    channel: Channel[Any] = Channel(ours, hears)
    with suppress(OSError):  # it is dead already, which those who look after it will see
        channel.send(task)
    ours.setblocking(False)
    return popen, channel
