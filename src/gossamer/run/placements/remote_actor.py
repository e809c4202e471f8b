"""An actor on another machine than its learner: both ends of the connection between them.

To its team (`actor_team`) such an actor is a child process like any other: `RemoteActor` stands in for it, and passes
on what the team asks and what the actor tells. Parameters travel once a version, trajectories as single frames; stacks are
rebuilt in the learner's memory.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gossamer.links.mailboxes import FAR, Mailboxes, make_memory
from gossamer.links.wire import LIFE_SECONDS, Address, Listener, Wire
from gossamer.replay.layout import Layout
from gossamer.replay.ring import Ring, make_block
from gossamer.roles.mixer import vectors
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.fork_server import ready

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from gossamer.types import EnvSpec, Trajectory

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


class Parcel:
    """Trajectories of some columns as they travel: single frames in place of stacks, in one block.

    Args:
        spec: of the environment.
        unroll_length: T.
        num_columns: B.
        core_units: numbers of recurrent state.
    """

    def __init__(self, spec: EnvSpec, *, unroll_length: int, num_columns: int, core_units: int):
        layout = Layout(spec, unroll_length, core_units)
        self.block = make_block(layout.nbytes(num_columns))
        self._ring = Ring(layout, num_columns, self.block)
        self._columns = range(num_columns)

    def pack(self, trajectory: Trajectory) -> None:
        """Write a trajectory into the block."""
        self._ring.write(self._columns, trajectory)

    def unpack(self, into: Trajectory) -> None:
        """Write the trajectory in the block into the columns of another."""
        self._ring.read(self._columns, into)


class RemoteActor:
    """The learner's end: a child process to the team, and its channel's other end.

    Args:
        index: of the actor.
        memory: of the team.
        parcel: laid out as the actor's.
        listener: at which the actor calls.
    """

    def __init__(self, index: int, memory: TeamMemory, parcel: Parcel, listener: Listener):
        self.pid, self.machine = 0, ""
        self.returncode: int | None = None
        self._index, self._memory, self._parcel = index, memory, parcel
        self._wire: Wire | None = None
        self._closed = threading.Event()
        ours, theirs = socket.socketpair()
        self.channel, self._inner = Channel(ours), Channel(theirs)
        ours.setblocking(False)
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def poll(self) -> int | None:
        """Return the exit code; None while it is there, or is awaited."""
        return self.returncode

    def kill(self) -> None:
        """End it: its end of the connection ends with ours."""
        self._closed.set()
        if self._wire is not None:
            self._wire.close()

    def wait(self, seconds: float) -> int:
        """Wait until the connection has ended; raise TimeoutExpired."""
        until = time.monotonic() + seconds
        while self.returncode is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("an actor on another machine", seconds)
            time.sleep(0.01)
        return self.returncode

    def _serve(self, listener: Listener) -> None:
        try:
            self._wire = listener.accept(lambda: not self._closed.is_set())
            if self._wire is not None:
                threading.Thread(target=self._pass_on, args=(self._wire,), daemon=True).start()
                while True:
                    self._take(self._wire, self._wire.receive())
        except (OSError, ValueError):
            pass  # it is gone, which the team will see
        finally:
            self.kill()
            self.returncode = _ENDED
            self._inner.close()

    def _take(self, wire: Wire, message: dict[str, Any]) -> None:
        """Pass on what the actor tells."""
        nbytes = message.pop("nbytes")
        match message["kind"]:
            case "life":
                self._memory.signs[self._index] = message["beats"]
                return
            case "here":
                self.pid, self.machine = message["pid"], message["machine"]
                return
            case "collected":
                wire.read(self._parcel.block)
                self._parcel.unpack(self._memory.slots[message["slot"]])
            case "state":
                descriptor, memory = make_memory(nbytes)
                wire.read(memory)
                self._inner.send(message, descriptor)
                os.close(descriptor)
                return
            case _:
                pass
        self._inner.send(message)

    def _pass_on(self, wire: Wire) -> None:
        """Pass on what the team asks, with the parameters that are to act."""
        boxes, sent = self._memory.boxes, -1
        held = vectors(boxes.sizes, torch.device("cpu"))
        inner, told = self._inner, time.monotonic()
        try:
            while not inner.closed:
                readable = ready([inner.end.fileno()], LIFE_SECONDS)
                for message in inner.receive() if readable else ():
                    payload: list[Any] = []
                    if message["do"] == "collect":
                        wanted = message["version"]
                        newest = range(sent + 1, FAR) if wanted < 0 else range(wanted, wanted + 1)
                        found = None if wanted == sent else boxes.read(0, newest, held)
                        if found is not None:
                            sent, payload = found, [x.numpy() for x in held if x.numel()]
                            message["params"] = found
                    elif message.get("packed"):
                        payload = [_taken(inner)]
                    wire.send(message, payload)
                    told = time.monotonic()
                if time.monotonic() - told >= LIFE_SECONDS:
                    wire.send({"do": "live"})
                    told = time.monotonic()
        except (OSError, ValueError):
            pass
        finally:
            self.kill()


class WireToTeam:
    """The actor's end: what it needs of its team, over a connection.

    Args:
        address: at which the team waits.
        machine: this one's address.
        slot: memory for a trajectory of its columns.
        parcel: laid out as the learner's.
        sizes: float32 and float64 numbers of the parameters and moments.
    """

    def __init__(
        self,
        address: Address,
        machine: str,
        slot: Trajectory,
        parcel: Parcel,
        sizes: tuple[int, int],
    ):
        self._wire = Wire.call(address)
        self._wire.send({"kind": "here", "pid": os.getpid(), "machine": machine})
        self._slot, self._parcel = slot, parcel
        self._heard = vectors(sizes, torch.device("cpu"))
        self._beats = (-1, 0.0)

    def request(self) -> tuple[dict[str, Any], int | None]:
        """Wait for what the team asks next, with the descriptor of what came with it; parameters are kept.

        When the team is gone this process ends, without writing anything.
        """
        try:
            while True:
                message = self._wire.receive()
                nbytes = message.pop("nbytes")
                if message.get("packed"):
                    descriptor, memory = make_memory(nbytes)
                    self._wire.read(memory)
                    return message, descriptor
                if "params" in message:
                    for x in self._heard:
                        self._wire.read(x.numpy())
                if message["do"] != "live":
                    return message, None
        except (OSError, ValueError):
            os._exit(1)

    def params(
        self, message: Mapping[str, Any], version: int
    ) -> tuple[int, Sequence[Tensor]] | None:
        """Return the version to act with and its numbers; None: the one that acts."""
        found = message.get("params", version)
        return None if found == version else (found, self._heard)

    def slot(self, number: int) -> Trajectory:
        """Return the memory to collect into."""
        del number  # what is collected leaves at once
        return self._slot

    def tell(self, message: Mapping[str, Any], block: int | None = None) -> None:
        """Tell the team something, with a trajectory or with packed tensors."""
        payload: list[Any] = []
        if message.get("kind") == "collected":
            self._parcel.pack(self._slot)
            payload = [self._parcel.block]
        elif block is not None:
            payload = [mmap.mmap(block, os.fstat(block).st_size)]
        with suppress(OSError):  # the team is gone, which ends the wait for its next request
            self._wire.send(message, payload)

    def show_life(self, beats: int) -> None:
        """Tell the team that this actor lives."""
        before, at = self._beats
        now = time.monotonic()
        if beats != before or now - at >= LIFE_SECONDS:
            self._beats = (beats, now)
            self.tell({"kind": "life", "beats": beats})


def _taken(channel: Channel) -> mmap.mmap:
    descriptor = channel.take_descriptor()
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return memory


class Elsewhere:
    """Has the actors of a team placed on other machines.

    Args:
        machine: this one's address, at which they call.
        place: has an actor with this task started somewhere; returns at once.
    """

    def __init__(self, machine: str, place: Callable[[dict[str, Any]], None]):
        self._machine, self._place = machine, place

    def start(
        self, index: int, task: dict[str, Any], memory: TeamMemory, parcel: Parcel
    ) -> RemoteActor:
        """Return an actor that will come from somewhere."""
        listener = Listener(self._machine)
        made = RemoteActor(index, memory, parcel, listener)
        self._place({**task, "blocks": (), "address": list(listener.address)})
        return made
