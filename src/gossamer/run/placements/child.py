"""A child process: what it imports ahead of being copied; then it reads its task and serves as a learner's process or an actor's."""

from __future__ import annotations

import importlib
import socket
from contextlib import suppress
from importlib.metadata import entry_points

from msgspec.structs import replace

from gossamer.config import TrainConfig, from_dict, to_dict
from gossamer.run.host_protocol import Failed
from gossamer.run.placements import actor_process, learner_process
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import ActorTask, ChildHears, LearnerTask
from gossamer.run.placements.fork_server import use_fork_server
from gossamer.run.stopping import cause_of


def import_ahead() -> None:
    """Import what every child needs in its first seconds, so that copies begin with it and share its memory.

    Simulators are left to those who need them, and so is Gymnasium where it would load others' plugins: they may begin
    threads, or read variables that are not the same in every process.
    """
    with suppress(Exception):  # whoever needs it will tell
        from_dict(to_dict(TrainConfig("CartPole-v1")))  # which loads all parts
        if not entry_points(group="gymnasium.envs"):
            importlib.import_module("gossamer.envs.gym")
            importlib.import_module("gymnasium.envs.classic_control")


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
        if isinstance(task, LearnerTask):
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
