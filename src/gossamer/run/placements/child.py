"""A child process: it reads its task, and serves as a learner's process or an actor's."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from msgspec.structs import replace

from gossamer.record.files import hold_alone
from gossamer.run.host_protocol import Failed
from gossamer.run.placements import actor_process, learner_process
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import ActorTask, ChildHears, LearnerTask
from gossamer.run.placements.fork_server import use_fork_server
from gossamer.run.stopping import cause_of


def serve(
    descriptor: int,
    blocks: tuple[int, ...] | None = None,
    server: socket.socket | None = None,
) -> int:
    """Serve whoever is at the other end of a socket; return the exit code.

    Args:
        descriptor: of the socket.
        blocks: descriptors of the task, where their numbers are others here.
        server: end of the fork server that this process asks for others; None: it starts one of its own.
    """
    if server is not None:
        use_fork_server(server)
    channel: Channel[ChildHears] = Channel(socket.socket(fileno=descriptor), ChildHears)
    role = "a child process"
    try:
        heard: list[ChildHears] = []
        while not heard and not channel.closed:
            heard = channel.receive()
        if not heard:
            return 1
        task, *rest = heard  # what was asked meanwhile comes with the task
        assert isinstance(task, LearnerTask | ActorTask), task
        if blocks is not None:
            task = replace(task, blocks=blocks)
        for block in task.blocks:
            os.set_inheritable(block, False)
        if isinstance(task, LearnerTask):
            hold_alone(task.blocks[0])  # the run folder's: no new session begins while it is open
            role = "a learner"
            learner_process.work(channel, task)
        else:
            role = "an actor"
            actor_process.work(channel, task, rest)
    except BrokenPipeError:
        return 1
    except BaseException as error:  # noqa: BLE001 - told to the other end, which ends the run
        with suppress(OSError):  # nobody is there any more
            channel.send(Failed.of(cause_of(error), role))
        return 1
    return 0
