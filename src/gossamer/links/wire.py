"""Messages between two machines over a TCP connection: JSON, each with as many bytes behind it as it says.

Nothing that arrives can execute code. An end that has been silent for too long is taken for gone: a machine that loses
its power, or its network, says nothing.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SILENT_SECONDS = 30.0
"""A connection on which nothing has come, or could be sent, for so long is broken."""
LIFE_SECONDS = 1.0
"""Pause between two signs of life of an end that has nothing else to say."""
LOOK_SECONDS = 0.5
"""Pause between two looks at whether callers are still wanted, and after a call that could not be taken."""
MAX_HEAD_BYTES = 64 << 20
"""Largest JSON of a message, in bytes."""
MAX_HELLO_BYTES = 256
"""Largest JSON of a caller's first message, in bytes; one with a token has about 60."""
HELLO_SECONDS = 5.0
"""Time that a caller has for all of its first message."""
_LENGTH_BYTES = 4
_SLICE_BYTES = 1 << 20
"""Sent at once: the time that a socket gives itself is for all of it."""


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

    def receive(
        self, max_head_bytes: int = MAX_HEAD_BYTES, until: float | None = None
    ) -> dict[str, Any]:
        """Wait for a message; `read` must then take the bytes behind it, `nbytes` of them.

        Args:
            max_head_bytes: largest JSON that is taken.
            until: as `read` takes it.

        Raises:
            OSError: the connection is broken or closed.
        """
        length = bytearray(_LENGTH_BYTES)
        self.read(length, until)
        size = int.from_bytes(length, "little")
        if size > max_head_bytes:
            raise ConnectionError(f"a message of {size} bytes is announced")
        head = bytearray(size)
        self.read(head, until)
        message = json.loads(head)
        if not isinstance(message, dict):
            raise ConnectionError("a message is no table")
        return cast("dict[str, Any]", message)

    def read(self, into: Any, until: float | None = None) -> None:
        """Fill a buffer with the bytes that come next; raise OSError if the connection ends before.

        Args:
            into: the buffer.
            until: moment of `time.monotonic` at which all must be there; None: the other end only must not be silent for long.
        """
        rest = memoryview(into).cast("B")
        try:
            while rest.nbytes:
                if until is not None:
                    if (left := until - time.monotonic()) <= 0:
                        raise TimeoutError("the other end has not sent all in time")
                    self._end.settimeout(left)
                count = self._end.recv_into(rest)
                if not count:
                    raise ConnectionError("the other end has closed the connection")
                rest = rest[count:]
        finally:
            if until is not None:
                self._end.settimeout(SILENT_SECONDS)

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
            self._end.settimeout(LOOK_SECONDS)
            while wanted():
                try:
                    end, _ = self._end.accept()
                except TimeoutError:
                    continue
                except OSError:
                    # A caller that has hung up meanwhile, or no file is left to open: others may call later.
                    time.sleep(LOOK_SECONDS)
                    continue
                if (wire := self._let_in(end)) is not None:
                    yield wire

    def _let_in(self, end: socket.socket) -> Wire | None:
        """Return the connection of a caller who says the token in time; hang up on any other."""
        with suppress(Exception):  # whatever a stranger says must not keep others from calling
            wire = Wire(end)
            said = wire.receive(MAX_HELLO_BYTES, time.monotonic() + HELLO_SECONDS)
            if secrets.compare_digest(str(said.get("token")).encode(), self.address.token.encode()):
                return wire
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
        return None
