"""Messages between a process and the one that started it: JSON lines over a socket, and memory handed over."""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
import traceback
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RunFailed
from gossamer.links.mailboxes import make_memory
from gossamer.system.blocks import Place, aligned, copy_into, lay_out_like, views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

MESSAGE_BYTES = 1 << 20
"""Read at once."""
MAX_DESCRIPTORS = 16
"""Taken over in one read."""
_LENGTH_BYTES = 8
"""At the beginning of a packed block: how long its description is."""


class Channel:
    """One end of a socket; any thread may send, one may receive."""

    def __init__(self, end: socket.socket):
        self.end = end
        self._sending = threading.Lock()
        self._text = b""
        self._descriptors: deque[int] = deque()
        self.closed = False

    def send(self, message: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Send a message, with a file descriptor if its "memory" says so; raise OSError without a reader."""
        line = json.dumps(dict(message)).encode() + b"\n"
        with self._sending:
            sent = 0
            if descriptor is not None:
                sent = socket.send_fds(self.end, [line[:4096]], [descriptor])
            self.end.sendall(line[sent:])

    def receive(self) -> list[dict[str, Any]]:
        """Wait for something to come and return the whole messages; none left and `closed`: it is over."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.end, MESSAGE_BYTES, MAX_DESCRIPTORS)
        except BlockingIOError:
            return []
        except OSError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        self.closed = self.closed or not data
        *lines, self._text = (self._text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def take_descriptor(self) -> int:
        """Return the file descriptor that came with a message; in the order of the messages."""
        return self._descriptors.popleft()

    def close(self) -> None:
        """Close the socket and what came with messages that nobody took."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.end.close()
        self.closed = True


def tell_failure(send: Callable[[dict[str, Any]], object], error: BaseException) -> None:
    """Tell the other end that this process cannot go on, and why."""
    kind = type(error).__name__ if isinstance(error, ConfigError | RunFailed) else ""
    lines = traceback.format_exception(error)
    with suppress(OSError):  # nobody is there any more
        send({"kind": "failed", "type": kind, "text": str(error), "traceback": "".join(lines)})


def failure_in(message: Mapping[str, Any], whose: str) -> BaseException:
    """Return the error that ends the run because of what a process has told.

    Args:
        message: of `tell_failure`.
        whose: the role that failed, as a message begins with: "a learner".
    """
    kinds: dict[str, type[Exception]] = {"ConfigError": ConfigError, "RunFailed": RunFailed}
    if message["type"]:
        return kinds[message["type"]](message["text"])
    headline = message["traceback"].strip().splitlines()[-1]
    return RunFailed(f"{whose} failed: {headline}\n{message['traceback']}")


def pack(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> int:
    """Copy tensors and plain state into new memory; return its file descriptor."""
    places, nbytes = lay_out_like(tensors)
    head = json.dumps({"places": places, "state": dict(state)}).encode()
    begin = aligned(_LENGTH_BYTES + len(head))
    descriptor, memory = make_memory(begin + max(nbytes, 1))
    memory[:_LENGTH_BYTES] = len(head).to_bytes(_LENGTH_BYTES, "little")
    memory[_LENGTH_BYTES : _LENGTH_BYTES + len(head)] = head
    copy_into(memory, [x._replace(offset=x.offset + begin) for x in places], tensors)
    return descriptor


def unpack(descriptor: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of `pack`, in its memory, and the state; the descriptor is closed."""
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    length = int.from_bytes(memory[:_LENGTH_BYTES], "little")
    head = json.loads(memory[_LENGTH_BYTES : _LENGTH_BYTES + length])
    begin = aligned(_LENGTH_BYTES + length)
    places = [Place(*x) for x in head["places"]]
    return views(memory, [x._replace(offset=x.offset + begin) for x in places]), head["state"]
