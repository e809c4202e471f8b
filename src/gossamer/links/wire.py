"""Messages between two machines over a TCP connection: JSON, each with as many bytes behind it as it says.

Nothing that arrives can execute code. An end that has been silent for too long is taken for gone: a machine that loses
its power, or its network, says nothing.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SILENT_SECONDS = 30.0
"""A connection on which nothing has come, or could be sent, for so long is broken."""
LIFE_SECONDS = 1.0
"""Pause between two signs of life of an end that has nothing else to say."""
MAX_HEAD_BYTES = 64 << 20
"""Largest JSON of a message, in bytes."""
_LENGTH_BYTES = 4
_SLICE_BYTES = 1 << 20
"""Sent at once: the time that a socket gives itself is for all of it."""
_LOOK_SECONDS = 0.5
_HELLO_SECONDS = 5.0


class Address(NamedTuple):
    """Where an end waits to be called, and the word that a caller must know."""

    host: str
    port: int
    token: str


class Wire:
    """One end of a connection; any thread may send, one may receive.

    Args:
        end: a connected socket.
    """

    def __init__(self, end: socket.socket):
        end.settimeout(SILENT_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end = end
        self._sending = threading.Lock()

    @classmethod
    def call(cls, address: Address) -> Wire:
        """Connect to an end that waits.

        Raises:
            OSError: nobody answers there.
        """
        made = cls(socket.create_connection((address.host, address.port), timeout=SILENT_SECONDS))
        made.send({"token": address.token})
        return made

    def send(self, message: Mapping[str, Any], payload: Iterable[Any] = ()) -> None:
        """Send a message and the bytes of buffers behind it; raise OSError without a reader."""
        buffers = [memoryview(x).cast("B") for x in payload]
        head = json.dumps({**message, "nbytes": sum(x.nbytes for x in buffers)}).encode()
        with self._sending:
            self._end.sendall(len(head).to_bytes(_LENGTH_BYTES, "little") + head)
            for buffer in buffers:
                for start in range(0, buffer.nbytes, _SLICE_BYTES):
                    self._end.sendall(buffer[start : start + _SLICE_BYTES])

    def receive(self) -> dict[str, Any]:
        """Wait for a message; `read` must then take the bytes behind it, `nbytes` of them.

        Raises:
            OSError: the connection is broken or closed.
        """
        length = bytearray(_LENGTH_BYTES)
        self.read(length)
        size = int.from_bytes(length, "little")
        if size > MAX_HEAD_BYTES:
            raise ConnectionError(f"a message of {size} bytes is announced")
        head = bytearray(size)
        self.read(head)
        message = json.loads(head)
        if not isinstance(message, dict):
            raise ConnectionError("a message is no table")
        return cast("dict[str, Any]", message)

    def read(self, into: Any) -> None:
        """Fill a buffer with the bytes that come next; raise OSError if the connection ends before."""
        rest = memoryview(into).cast("B")
        while rest.nbytes:
            count = self._end.recv_into(rest)
            if not count:
                raise ConnectionError("the other end has closed the connection")
            rest = rest[count:]

    def close(self) -> None:
        """End the connection; whoever waits on it, at either end, is told."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


class Listener:
    """Waits for calls.

    Args:
        host: address of this machine.
    """

    def __init__(self, host: str):
        self._end = socket.create_server((host, 0), backlog=64)
        self.address = Address(host, self._end.getsockname()[1], secrets.token_hex(16))

    def accept(self, wanted: Callable[[], bool]) -> Wire | None:
        """Wait for one caller who knows the token, as long as one is wanted."""
        return next(self.callers(wanted), None)

    def callers(self, wanted: Callable[[], bool]) -> Iterator[Wire]:
        """Yield callers who know the token, as long as they are wanted."""
        with self._end:
            self._end.settimeout(_LOOK_SECONDS)
            while wanted():
                with suppress(TimeoutError):
                    end, _ = self._end.accept()
                    wire = Wire(end)
                    if self._knows(wire, end):
                        yield wire
                    else:
                        wire.close()

    def _knows(self, wire: Wire, end: socket.socket) -> bool:
        """Whether a caller says the token; one that says nothing does not hold up another for long."""
        end.settimeout(_HELLO_SECONDS)
        try:
            said = wire.receive()
        except (OSError, ValueError, TypeError):
            return False
        end.settimeout(SILENT_SECONDS)
        return secrets.compare_digest(str(said.get("token")), self.address.token)
