"""An actor on another machine than its learner: both ends of the connection between them.

To its team (`actor_team`) such an actor is a child process like any other: `RemoteActor` stands in for it, and passes
on what the team asks and what the actor tells. Parameters travel once a version, trajectories as single frames; stacks are
rebuilt in the learner's memory.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from gossamer.errors import RunFailed
from gossamer.links.mailboxes import FAR, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.links.wire import LIFE_SECONDS, Listener, Wire
from gossamer.replay.layout import Layout
from gossamer.replay.ring import Ring, make_block
from gossamer.roles.mixer import vectors
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import (
    ActorAlive,
    ActorLocated,
    ActorReply,
    ActorRequest,
    ActorState,
    Collect,
    Collected,
    EndActor,
    LoadState,
    PlaceActor,
    RemoteReply,
    StillHere,
)
from gossamer.run.placements.fork_server import ready

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gossamer.run.placements.child_protocol import ActorTask
    from gossamer.spec import EnvSpec
    from gossamer.types import Trajectory

_ENDED = -9
"""Exit code of an actor whose connection has ended."""


class TeamMemory(NamedTuple):
    """Memory of a learner's process that an actor reads and writes."""

    boxes: Mailboxes
    """Parameters: one mailbox."""
    signs: NDArray[np.int64]
    """Signs of life, by actor."""
    slots: Sequence[Trajectory]
    """Columns that the actor writes, by their number."""

    def read(self, asked: Collect, held: int, into: Sequence[Tensor]) -> int | None:
        """Copy the parameters to act with as asked; return their version, None if the one that is held acts on."""
        if 0 <= asked.version == held:  # below 0 the newest are asked for, and none are held
            return None
        newer = range(held + 1, FAR)
        one = range(asked.version, asked.version + 1)
        return self.boxes.read(0, newer if asked.version < 0 else one, into)


class TrajectoryPacket:
    """Trajectories of some columns as they travel: single frames in place of stacks, in one block.

    Args:
        spec: of the environment.
        like: a trajectory of these columns.
    """

    def __init__(self, spec: EnvSpec, like: Trajectory):
        self._layout = Layout(spec, like.unroll_length, len(like.core_state))
        self._columns = range(like.num_columns)
        self._rings: dict[int, Ring] = {}  # the last one, by where its block lies

    @cached_property
    def block(self) -> Tensor:
        """Memory of one's own for a trajectory, as bytes."""
        nbytes = self._layout.nbytes(len(self._columns))
        return torch.frombuffer(make_block(nbytes), dtype=torch.uint8)

    def pack(self, trajectory: Trajectory) -> None:
        """Write a trajectory into the block."""
        self._ring_in(self.block).write(self._columns, trajectory)

    def unpack(self, block: Tensor, into: Trajectory) -> None:
        """Write the trajectory in another's block into columns."""
        if block.dtype != torch.uint8 or block.numel() != self._layout.nbytes(len(self._columns)):
            raise ValueError(f"a trajectory of {block.numel()} {block.dtype} fits no slot")
        self._ring_in(block).read(self._columns, into)

    def _ring_in(self, block: Tensor) -> Ring:
        if block.data_ptr() not in self._rings:
            self._rings = {block.data_ptr(): Ring(self._layout, len(self._columns), block)}
        return self._rings[block.data_ptr()]


class RemoteActor:
    """The learner's end: a child process to the team, and its channel's other end.

    Args:
        task: of the actor.
        memory: of the team.
        here: this machine's address, at which the actor calls.
        ask: has an actor started somewhere; returns at once.
    """

    def __init__(
        self, task: ActorTask, memory: TeamMemory, *, here: str, ask: Callable[[PlaceActor], None]
    ):
        self.pid, self.machine = 0, ""
        self.returncode: int | None = None
        self._index, self._memory = task.actor, memory
        self._packet = TrajectoryPacket(task.spec, memory.slots[0])
        self._wire: Wire | None = None
        self._closed = threading.Event()
        ours, theirs = socket.socketpair()
        self.channel: Channel[ActorReply] = Channel(ours, ActorReply)
        self._inner: Channel[ActorRequest] = Channel(theirs, ActorRequest)
        listener = Listener(here)
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
        ask(PlaceActor(replace(task, blocks=(), address=listener.address)))

    def poll(self) -> int | None:
        """Return the exit code; None while it is there, or is awaited."""
        return self.returncode

    def kill(self) -> None:
        """End it: its end of the connection ends with ours."""
        self._closed.set()
        if self._wire is not None:
            self._wire.close()

    def _serve(self, listener: Listener) -> None:
        try:
            self._wire = listener.accept(lambda: not self._closed.is_set())
            if self._wire is not None:
                threading.Thread(target=self._pass_on, args=(self._wire,), daemon=True).start()
                while True:
                    self._take(self._wire.receive(RemoteReply, keeps=(ActorState,)))
        except (OSError, ValueError, RunFailed):
            pass  # it is gone, or tells what cannot be read, which the team will see
        finally:
            self.kill()
            self.returncode = _ENDED
            self._inner.close()

    def _take(self, reply: RemoteReply) -> None:
        """Pass on what the actor tells."""
        match reply:
            case ActorAlive(beats):
                self._memory.signs[self._index] = beats
            case ActorLocated(pid, machine):
                self.pid, self.machine = pid, machine
            case Collected(slot, packet=Tensor() as packet):
                self._packet.unpack(packet, self._memory.slots[slot])
                self._inner.send(replace(reply, packet=None))
            case _:
                self._inner.send(reply)

    def _pass_on(self, wire: Wire) -> None:
        """Pass on what the team asks, with the parameters that are to act."""
        inner, memory, sent = self._inner, self._memory, -1
        held = vectors(memory.boxes.sizes, torch.device("cpu"))
        try:
            while not inner.closed:
                if not ready([inner.end.fileno()], LIFE_SECONDS):
                    wire.send(StillHere())
                    continue
                for asked in inner.receive():
                    if isinstance(asked, Collect):
                        found = memory.read(asked, sent, held)
                        if found is not None:
                            sent = found
                            asked = replace(asked, version=found, params=list(held))
                    wire.send(asked)
        except (OSError, ValueError, RunFailed):
            pass
        finally:
            self.kill()


class TcpTeamLink:
    """The actor's end: what it needs of its team, over a connection.

    Args:
        task: of the actor.
        slot: memory for a trajectory of its columns.
    """

    def __init__(self, task: ActorTask, slot: Trajectory):
        assert task.address is not None
        self._wire = Wire.call(task.address)
        self._wire.send(ActorLocated(os.getpid(), task.machine))
        self._slot, self._packet = slot, TrajectoryPacket(task.spec, slot)
        self._beats = (-1, 0.0)
        self.stop = StopSignal()
        """Stopped once the team has asked for the end."""
        self._inbox: queue.SimpleQueue[ActorRequest] = queue.SimpleQueue()
        # However long it makes environments or collects: a team whose messages nobody takes gives it up.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Take what the team asks, to its end; when the team is gone this process ends, without writing anything."""
        while True:
            try:
                asked = self._wire.receive(ActorRequest, keeps=(Collect, LoadState))
            except (OSError, ValueError):
                os._exit(1)
            if not isinstance(asked, StillHere):
                self._inbox.put(asked)
            if isinstance(asked, EndActor):
                self.stop.stop()
                return  # the connection may end while environments are closed

    def request(self) -> ActorRequest:
        """Wait for what the team asks next."""
        return self._inbox.get()

    def params(self, asked: Collect, version: int) -> tuple[int, Sequence[Tensor]] | None:
        """Return the version to act with and its numbers; None: the one that acts."""
        del version
        return None if asked.params is None else (asked.version, asked.params)

    def slot(self, number: int) -> Trajectory:
        """Return the memory to collect into."""
        del number  # what is collected leaves at once
        return self._slot

    def tell(self, reply: RemoteReply) -> None:
        """Tell the team something; what was collected goes with it."""
        if isinstance(reply, Collected):
            self._packet.pack(self._slot)
            reply = replace(reply, packet=self._packet.block)
        with suppress(OSError):  # the team is gone, which ends the wait for its next request
            self._wire.send(reply)

    def show_life(self, beats: int) -> None:
        """Tell the team that this actor lives."""
        before, at = self._beats
        now = time.monotonic()
        if beats != before or now - at >= LIFE_SECONDS:
            self._beats = (beats, now)
            self.tell(ActorAlive(beats))
