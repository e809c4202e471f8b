"""A child process once it has imported everything: it reads its task and serves as a learner's process or an actor's."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from gossamer.run.placements import actor_process, learner_process
from gossamer.run.placements.channel import Channel, tell_failure, unpack
from gossamer.run.placements.fork_server import use_fork_server
from gossamer.run.stopping import Overdue

if TYPE_CHECKING:
    from torch import Tensor


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
    channel = Channel(socket.socket(fileno=descriptor))
    messages: list[dict[str, Any]] = []
    while not messages and not channel.closed:
        messages = channel.receive()
    if not messages:
        return 1
    first, *rest = messages  # what was asked meanwhile comes with the task
    task: dict[str, Any] = first["task"] | ({} if blocks is None else {"blocks": blocks})
    try:
        begin: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        if first["packed"]:
            begin = unpack(channel.take_descriptor())
        work = {"learner": learner_process.work, "actor": actor_process.work}[first["role"]]
        work(channel, task, begin, rest)
    except BrokenPipeError:
        return 1
    except BaseException as error:  # noqa: BLE001 - told to the other end, which ends the run
        if isinstance(error, Overdue):
            error = error.failure or error
        tell_failure(channel.send, error)
        return 1
    return 0
