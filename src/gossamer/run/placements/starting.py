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
from gossamer.run.placements.fork_server import MAX_DESCRIPTORS, Copy, fork_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def start_child(
    role: str,
    task: dict[str, Any],
    blocks: Sequence[int],
    begin: int | None = None,
    more: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes] | Copy, Channel]:
    """Start a process and tell it its task; return it, and our end of its channel, which does not block.

    Args:
        role: "learner" or "actor".
        task: plain data, with `blocks` among them.
        blocks: descriptors that it is to have.
        begin: descriptor of packed tensors that goes with the task; None: none does.
        more: variables of its environment beside ours.
    """
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(x or str(Path.cwd()) for x in sys.path)  # "" is the present folder
    environment = {**os.environ, "PYTHONPATH": path, **(more or {})}
    made = fork_server() if len(blocks) <= MAX_DESCRIPTORS else None
    with theirs:
        popen = None
        if made is not None:
            popen = made.copy(theirs, blocks, environment, starts_others=role == "learner")
        popen = popen or subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "gossamer.run.placements.child",
                str(theirs.fileno()),
                str(os.getpid()),
                role,
            ],
            pass_fds=(theirs.fileno(), *blocks),
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for the supervisor
        )
    channel = Channel(ours)
    with suppress(OSError):  # it is dead already, which those who look after it will see
        channel.send({"role": role, "task": task, "packed": begin is not None}, begin)
    ours.setblocking(False)
    return popen, channel
