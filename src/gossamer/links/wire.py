"""Messages between two machines over a TCP connection, each with the memory of its tensors behind it.

Nothing that arrives can execute code. An end that has been silent for too long is taken for gone: a machine that loses
its power, or its network, says nothing.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gossamer.system.messages import Head, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gossamer.system.messages import Message

SILENT_SECONDS = 30.0
"""A connection on which nothing has come, or nothing that was sent has arrived, for so long is broken."""
LIFE_SECONDS = 1.0
"""Pause between two signs of life of an end that has nothing else to say."""
LOOK_SECONDS = 0.5
"""Pause between two looks at whether callers are still wanted, and after a call that could not be taken."""
MAX_HEAD_BYTES = 64 << 20
"""Largest JSON of a message, in bytes."""
TOKEN_BYTES = 32
"""Length of a token, with which a caller begins; nothing else that a stranger says is read."""
HELLO_SECONDS = 5.0
"""Time that a caller has for all of its token."""
MAX_HELLOS = 64
"""Callers at a time that have not yet said all of it; the longest waiting is hung up on."""
_LENGTH_BYTES = 4
_SLICE_BYTES = 1 << 20
"""Sent at once: the time that a socket gives itself is for all of it."""
_SMALL_BYTES = 1 << 16
"""Bytes that are sent at once: the head of a message, and tensors that fit beside it."""


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
        if hasattr(
            socket, "TCP_USER_TIMEOUT"
        ):  # which Linux has: small messages fill no buffer for long
            silent = round(1e3 * SILENT_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent)
        self._end = end
        self._sending = threading.Lock()
        self._room = np.empty(0, np.uint8)

    @classmethod
    def call(cls, address: Address) -> Wire:
        """Connect to an end that waits.

        Raises:
            OSError: nobody answers there.
        """
        made = cls(socket.create_connection((address.host, address.port), timeout=SILENT_SECONDS))
        made._end.sendall(address.token.encode())
        return made

    def send(self, message: Any) -> None:
        """Send a message, large tensors from where they lie; raise OSError without a reader."""
        packed = pack(message)
        with self._sending:
            small = bytearray(len(packed.head).to_bytes(_LENGTH_BYTES, "little") + packed.head)
            for chunk in packed.chunks():
                if len(small) + len(chunk) <= _SMALL_BYTES:  # a call for each would take longer
                    small += chunk
                    continue
                self._end.sendall(small)
                small.clear()
                for start in range(0, len(chunk), _SLICE_BYTES):
                    self._end.sendall(chunk[start : start + _SLICE_BYTES])
            self._end.sendall(small)

    def receive(self, hears: Any, keeps: tuple[type[Message], ...] = ()) -> Any:
        """Wait for a message.

        Args:
            hears: its class, or the union of those that it may be of.
            keeps: messages of these have tensors in memory of their own. Those of others are void after the next call, which
                takes their memory over: new memory costs as much as filling it.

        Raises:
            OSError: the connection is broken or closed.
            ValueError: what has come is no such message.
        """
        length = bytearray(_LENGTH_BYTES)
        self._read(length)
        size = int.from_bytes(length, "little")
        if size > MAX_HEAD_BYTES:
            raise ConnectionError(f"a message of {size} bytes is announced")
        said = bytearray(size)
        self._read(said)
        head = Head(said)
        if head.is_a(keeps):
            room = np.empty(head.nbytes, np.uint8)
        else:
            if self._room.nbytes < head.nbytes:
                del self._room  # before the larger one is made
                self._room = np.empty(head.nbytes, np.uint8)
            room = self._room[: head.nbytes]
        self._read(room)
        return head.unpack(hears, room)

    def _read(self, into: Any) -> None:
        """Fill a buffer with the bytes that come next; raise OSError if the connection ends before, or is silent for long."""
        rest = memoryview(into).cast("B")
        while rest.nbytes:
            count = self._end.recv_into(rest)
            if not count:
                raise ConnectionError("the other end has closed the connection")
            rest = rest[count:]

    def close(self) -> None:
        """End the connection; whoever waits on it, at either end, is told."""
        _hang_up(self._end)


class Listener:
    """Waits for calls.

    Args:
        host: address of this machine.
    """

    def __init__(self, host: str):
        self._end = socket.create_server((host, 0), backlog=64)
        self.address = Address(
            host, self._end.getsockname()[1], secrets.token_hex(TOKEN_BYTES // 2)
        )

    def accept(self, wanted: Callable[[], bool]) -> Wire | None:
        """Wait for one caller who knows the token, as long as one is wanted."""
        return next(self.callers(wanted), None)

    def callers(self, wanted: Callable[[], bool]) -> Iterator[Wire]:
        """Yield callers who know the token, as long as they are wanted; one who says nothing keeps nobody waiting."""
        with self._end, selectors.DefaultSelector() as ends:
            self._end.setblocking(False)
            ends.register(self._end, selectors.EVENT_READ)
            hellos: dict[int, _Hello] = {}
            try:
                while wanted():
                    for key, _ in ends.select(LOOK_SECONDS):
                        if key.fd not in hellos:
                            if (caller := self._accepted()) is not None:
                                hellos[caller.end.fileno()] = caller
                                ends.register(caller.end, selectors.EVENT_READ)
                        elif hellos[key.fd].ends():
                            ends.unregister(key.fd)
                            caller = hellos.pop(key.fd)
                            if secrets.compare_digest(caller.said, self.address.token.encode()):
                                yield Wire(caller.end)
                            else:
                                _hang_up(caller.end)
                    now, spare = time.monotonic(), len(hellos) - MAX_HELLOS
                    for i, (fd, caller) in enumerate(list(hellos.items())):
                        if i < spare or caller.until < now:
                            ends.unregister(fd)
                            _hang_up(hellos.pop(fd).end)
            finally:
                for caller in hellos.values():
                    _hang_up(caller.end)

    def _accepted(self) -> _Hello | None:
        try:
            end, _ = self._end.accept()
        except BlockingIOError:  # a caller that has hung up meanwhile
            return None
        except OSError:
            time.sleep(LOOK_SECONDS)  # no file is left to open: others may call later
            return None
        end.setblocking(False)
        return _Hello(end)


class _Hello:
    """A caller that has not yet said all of the token, and what it has said so far.

    Args:
        end: a connected socket that does not block.
    """

    def __init__(self, end: socket.socket):
        self.end, self.until = end, time.monotonic() + HELLO_SECONDS
        self.said = b""

    def ends(self) -> bool:
        """Take what has come of the token; return whether that is all of it, or all there will be."""
        try:
            said = self.end.recv(TOKEN_BYTES - len(self.said))
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        self.said += said
        return not said or len(self.said) == TOKEN_BYTES


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
