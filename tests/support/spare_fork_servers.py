"""A fork server that is there at once: forked from a process that has imported everything, in place of one that has to.

What a fork server does is the same; that a Python of its own becomes one is tested in `run/test_fork_server.py`.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gossamer.run.placements import fork_server

NAME = fork_server.__name__


def offer_fork_server() -> Callable[[], None] | None:
    """Keep a fork of this process that becomes the fork server when one is begun; return, in the fork, what it is to do."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        return lambda: _become_server(theirs)
    theirs.close()
    fork_server.subprocess = _Begins(ours, pid)  # pyright: ignore
    return None


class _Begins:
    """`subprocess`, but that the first fork server it begins is the fork."""

    def __init__(self, end: socket.socket, pid: int):
        self._end: socket.socket | None = end
        self._pid = pid

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, words: list[str], **settings: Any) -> Any:  # noqa: N802 - as there
        if self._end is None or words[-1] != fork_server.COPIES:
            return subprocess.Popen(words, **settings)
        end, self._end = self._end, None
        variables = [f"{name}={value}" for name, value in settings["env"].items()]
        told = "\0".join([*words[words.index(NAME) + 2 :], "", *variables]).encode()
        with end:
            socket.send_fds(end, [len(told).to_bytes(8, "little")], settings["pass_fds"])
            end.sendall(told)
        return _Fork(self._pid)


class _Fork:
    """A child to be used as a `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(ChildProcessError):
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.001)
        return code


def _become_server(end: socket.socket) -> None:
    with end:
        size, descriptors, _, _ = socket.recv_fds(end, 8, 1)
        if not size:
            sys.exit(0)  # none was needed
        told = b""
        while len(told) < int.from_bytes(size, "little"):
            if not (data := end.recv(65536)):
                sys.exit(1)  # whoever told it was killed
            told += data
    words, variables = _split(told.decode().split("\0"))
    os.setsid()
    os.environ.clear()
    os.environ.update(x.split("=", 1) for x in variables)
    sys.argv = [NAME, str(descriptors[0]), *words]
    runpy.run_path(str(fork_server.__file__), run_name="__main__")


def _split(told: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = told.index("")
    return told[:at], told[at + 1 :]
