"""Messages between a process and the one that started it: over a socket, with the memory of their tensors handed over."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gossamer.errors import RunFailed
from gossamer.links.mailboxes import make_memory
from gossamer.record.files import hold_alone
from gossamer.system.messages import Head, from_whole, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.system.messages import Message

Heard = TypeVar("Heard")

READ_BYTES = 1 << 20
"""Read at once."""
MAX_DESCRIPTORS = 16
"""Taken over in one read."""
MAX_HEAD_BYTES = 1 << 16
"""Longest message that goes through the socket; others lie in memory, as nobody may read for a while, and so do tensors."""
_FRAME = struct.Struct("<QQ")
"""Bytes of the message that follow, 0 if it lies in memory, and of that memory, 0 if there is none."""


class Channel(Generic[Heard]):
    """One end of a socket; any thread may send, one may receive.

    Args:
        end: of the socket.
        hears: union of the messages that come in.
    """

    def __init__(self, end: socket.socket, hears: Any):
        hold_alone(end.fileno())  # what an environment forks would hide that this process has ended
        self.end = end
        self._hears = hears
        self._sending = threading.Lock()
        self._read = b""
        self._descriptors: deque[int] = deque()
        self.closed = False

    @property
    def is_sending(self) -> bool:
        """Whether a message is on its way: one end sends for as long as the other, which may be suspended, does not read."""
        return self._sending.locked()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: nobody reads any more.
            RunFailed: there is no memory for its tensors.
        """
        packed = pack(message)
        if not packed.nbytes and len(packed.head) <= MAX_HEAD_BYTES:
            with self._sending:
                self.end.sendall(_FRAME.pack(len(packed.head), 0) + packed.head)
            return
        nbytes = packed.whole_nbytes
        with ExitStack() as stack:
            try:
                descriptor, memory = make_memory(nbytes)
                stack.callback(os.close, descriptor)
                packed.write_whole(memory)
            except (OSError, ValueError) as error:  # not that nobody reads
                raise RunFailed(f"no memory for a message of {nbytes:,} bytes: {error}") from error
            with self._sending:
                socket.send_fds(self.end, [_FRAME.pack(0, nbytes)], [descriptor])

    def receive(self) -> list[Heard]:
        """Wait for something to come and return the whole messages; none left and `closed`: it is over.

        Raises:
            RunFailed: what has come cannot be read.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self.end, READ_BYTES, MAX_DESCRIPTORS)
        except OSError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        self.closed = self.closed or not data
        self._read += data
        found: list[Heard] = []
        while len(self._read) >= _FRAME.size:
            length, nbytes = _FRAME.unpack_from(self._read)
            end = _FRAME.size + length
            if len(self._read) < end:
                break
            head, self._read = self._read[_FRAME.size : end], self._read[end:]
            try:
                found.append(self._message(head, nbytes))
            except (OSError, ValueError, IndexError) as error:
                raise RunFailed(f"a message of another process cannot be read: {error}") from error
        return found

    def _message(self, head: bytes, nbytes: int) -> Heard:
        if not nbytes:
            return cast("Heard", Head(head).unpack(self._hears))
        descriptor = self._descriptors.popleft()
        try:
            memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        return cast("Heard", from_whole(memory, self._hears))

    def end_with_other_end(
        self, take: Callable[[Heard | RunFailed], object] = lambda _: None
    ) -> None:
        """End this process when the other end is closed, without writing anything.

        Args:
            take: takes what comes until then, or why it cannot be read, in a thread of its own.
        """

        def wait() -> None:
            while not self.closed:
                try:
                    for message in self.receive():
                        take(message)
                except RunFailed as error:
                    take(error)
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """Close the socket, and descriptors of messages that never came whole."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.end.close()
        self.closed = True
