"""A process that has imported everything and waits to be copied: its copies begin at once, and share its memory.

Importing torch takes a process two seconds of a core, and a run may start many processes, at its beginning and where
one has died. So a supervisor starts one fork server, `python -m gossamer.run.placements.fork_server DESCRIPTOR SUPERVISOR copies`, which
forks for each, and for what its copies start themselves: learners' processes have actors. It has no thread but its first
and never computes, so that a copy may do everything that a process of its own could. When a process that has asked for
copies ends, these are killed: what they compute in C, with the interpreter's lock held, keeps none of them alive. Without a fork server (another system than Linux, too many descriptors, or it was killed) processes are
started the long way, by `python -m gossamer.run.placements.fork_server DESCRIPTOR PARENT ROLE`, which makes sure to end with
its parent and becomes at once what a copy becomes.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.record.files import hold_alone
from gossamer.system.ignored_signals import ignore_stops
from gossamer.system.importing import module_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
MAX_DESCRIPTORS = 200
"""Handed over with one request; Linux takes 253."""
MAX_REQUEST_BYTES = 1 << 17
"""Longest request, which is one packet; a process with more variables is started the long way."""
SERVES = "gossamer.run.placements.child"
"""Module that a fork server imports, and whose `serve` its copies call."""
COPIES = "copies"
"""Role of a fork server."""
ANSWER_SECONDS = 60.0
"""Longest wait for a fork server that is still importing, and for its answer."""
_FIXED = (
    "GOMP",
    "KMP",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC",
    "MKL",
    "OMP",
    "OPENBLAS",
    "PYTORCH",
    "TORCH",
)
"""How variables begin that are read while a process starts: other values need another fork server."""


class Copy:
    """A process that a fork server has forked, to be used as a `subprocess.Popen`."""

    returncode: int | None
    """Exit code, or minus the signal that ended it; None while it runs."""

    def __init__(self, server: ForkServer, pid: int):
        self.pid, self.returncode = pid, None
        self._server = server
        try:
            self._handle: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._handle = None  # it was quick

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid)
            gone = self._server.closed and (self._handle is None or ready([self._handle], 0.0))
            if self.returncode is None and gone:
                self.returncode = -signal.SIGKILL  # the fork server's end was its own
            if self.returncode is not None and self._handle is not None:
                os.close(self._handle)
                self._handle = None
        return self.returncode

    def kill(self) -> None:
        """End it now."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


class ForkServer:
    """A process's end of a fork server.

    Args:
        end: of the fork server that this process is a copy of; None: one is started.
    """

    def __init__(self, end: socket.socket | None = None) -> None:
        self.key = _key()
        self._owner = os.getpid()
        self._popen: subprocess.Popen[bytes] | None = None
        self._end = self._start() if end is None else end
        hold_alone(self._end.fileno())  # it ends with this process, whatever that has forked
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._answers: list[int | None] = []
        self.closed = False
        atexit.register(self.close)

    def _start(self) -> socket.socket:
        ours, theirs = _packet_sockets()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, module_path()))}
        # numpy's threads would not survive being copied.
        environment["OPENBLAS_NUM_THREADS"] = "1"
        with theirs:
            self._popen = start_anew(COPIES, theirs, (), environment)
        return ours

    @property
    def usable(self) -> bool:
        """Whether it is there, ours, and made for the environment variables of now."""
        ours = self._owner == os.getpid()
        there = not self.closed and (self._popen is None or self._popen.poll() is None)
        return ours and there and self.key == _key()

    def copy(
        self, end: socket.socket, blocks: Sequence[int], environment: Mapping[str, str]
    ) -> Copy | None:
        """Return a new process that serves whoever is at the other end of a socket; None if it cannot be had.

        Args:
            end: of the socket, for the new process.
            blocks: descriptors that it is to have.
            environment: its variables.
        """
        folder = ""
        with suppress(OSError):  # it was removed
            folder = str(Path.cwd())
        with Path(os.devnull).open("wb") as nowhere:
            opened = [x if _is_open(x) else nowhere.fileno() for x in (1, 2)]
            descriptors = [end.fileno(), *opened, *blocks]
            request = {
                "environment": dict(environment),
                "path": module_path(),
                "folder": folder,
                "cores": sorted(os.sched_getaffinity(0)),
                "descriptors": len(descriptors),
            }
            packet = json.dumps(request).encode()
            if len(packet) > MAX_REQUEST_BYTES:
                return None
            with self._lock:
                self._answers.clear()
                try:
                    socket.send_fds(self._end, [packet], descriptors)
                except OSError:
                    self.closed = True
                    return None
                give_up = time.monotonic() + ANSWER_SECONDS
                try:
                    while not (self._answers or self.closed) and time.monotonic() < give_up:
                        self._receive(0.1)
                finally:
                    if not self._answers:  # a late one would be taken for that to the next request
                        self._give_up()
                pid = self._answers.pop() if self._answers else None
        return Copy(self, pid) if pid else None

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a copy; None while it runs, and if nobody knows."""
        with self._lock:
            self._receive(0.0)
            return self._codes.pop(pid, None)

    def close(self) -> None:
        """End it, and with it what copies are left."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.close)
        self._give_up()
        self._end.close()
        if self._popen is not None:
            self._popen.wait()

    def _give_up(self) -> None:
        self.closed = True
        if self._popen is not None:
            self._popen.kill()

    def _receive(self, seconds: float) -> None:
        while not self.closed and ready([self._end.fileno()], seconds):
            try:
                data = self._end.recv(4096)
            except OSError:
                data = b""
            if not data:
                self.closed = True
                if self._popen is not None:
                    self._popen.wait()
                return
            told = json.loads(data)
            if "code" in told:
                self._codes[told["pid"]] = told["code"]
            else:
                self._answers.append(told["pid"])
            seconds = 0.0


def start_anew(
    role: str, end: socket.socket, blocks: Sequence[int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a Python of its own, which imports for seconds before it serves in its role.

    Args:
        role: COPIES, learner or actor.
        end: of the socket, for the new process.
        blocks: descriptors that it is to have.
        environment: its variables.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(end.fileno()), str(os.getpid()), role],
        pass_fds=(end.fileno(), *blocks),
        env=environment,
        start_new_session=True,  # a terminal's Ctrl-C is for the supervisor
    )


_server: ForkServer | None = None
_making = threading.Lock()


def fork_server() -> ForkServer | None:
    """Return this process's fork server, which is made and begins to import if there is none; None if none can be."""
    global _server
    if sys.platform != "linux":
        return None
    with _making:
        if _server is not None and not _server.usable:
            _server.close()
            _server = None
        if _server is None:
            with suppress(OSError):
                os.close(os.pidfd_open(os.getpid()))  # not before Linux 5.3, nor in some sandboxes
                _server = ForkServer()
        return _server


def use_fork_server(end: socket.socket) -> None:
    """Let this process, a copy of a fork server, ask it for copies instead of starting one of its own."""
    global _server
    _server = ForkServer(end)


def end_with(parent: int) -> None:
    """Ask the system to kill this process with its parent, where it can; a closed channel does elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def _key() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_FIXED)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _packet_sockets() -> tuple[socket.socket, socket.socket]:
    """Return two ends between which every message is one packet."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def ready(descriptors: Iterable[int], seconds: float | None) -> set[int]:
    """Return which descriptors can be read, or are at their end; wait for the first, at most so long.

    Those of closed sockets, which are negative, are left out.
    """
    poll = select.poll()  # select refuses descriptors beyond 1,023
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    found = poll.poll(None if seconds is None else seconds * 1000.0)
    return {descriptor for descriptor, _ in found}


def _hear(asker: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return a request for a copy and the descriptors that came with it; None when nobody asks any more."""
    try:
        data, descriptors, _, _ = socket.recv_fds(asker, MAX_REQUEST_BYTES, MAX_DESCRIPTORS + 3)
    except ConnectionResetError:  # killed with something unread
        data, descriptors = b"", []
    return (json.loads(data), descriptors) if data else None


def _tell(asker: socket.socket, message: dict[str, Any]) -> None:
    """Tell whoever asks something; that it has gone is noticed where requests are read."""
    with suppress(OSError):
        asker.send(json.dumps(message).encode())


def _serve(supervisor: socket.socket) -> tuple[int, tuple[int, ...], socket.socket]:
    """Make copies until the supervisor has gone; return, in a copy, what it begins with, as `child.serve` takes it."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, _nothing)  # but for the wakeup
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    us = os.getpid()
    # Ends of those that ask for copies, by process; the supervisor's has our own number.
    askers = {us: supervisor}
    asked_by: dict[int, int] = {}
    while True:
        readable = ready([end.fileno() for end in (woken, *askers.values())], None)
        if woken.fileno() in readable:
            woken.recv(4096)
            _bury(askers, asked_by)
        for who, asker in list(askers.items()):
            if asker.fileno() not in readable:  # or closed by now
                continue
            if (heard := _hear(asker)) is None:
                if asker is supervisor:
                    os._exit(0)
                askers.pop(who).close()
                continue
            told, descriptors = heard
            pid, ends = None, tuple[socket.socket, ...]()
            with suppress(OSError):  # too many files are open, or too many processes run
                ends = _packet_sockets()
                if len(descriptors) == told["descriptors"]:  # else the system has left some out
                    pid = os.fork()
            if pid == 0:
                ignore_stops()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (woken, wakes, ends[0], *askers.values()):
                    one.close()
                end_with(us)
                channel, output, errors, *blocks = descriptors
                _become(told, output, errors)
                return channel, tuple(blocks), ends[1]
            if pid is not None:
                asked_by[pid], askers[pid] = who, ends[0]
                ends = ends[1:]
            for end in ends:
                end.close()
            for descriptor in descriptors:
                os.close(descriptor)
            _tell(asker, {"pid": pid})


def _bury(askers: dict[int, socket.socket], asked_by: dict[int, int]) -> None:
    """Tell of copies that have ended, and end those that they had asked for."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
            if (gone := askers.pop(pid, None)) is not None:
                gone.close()
            for child in [child for child, asker in asked_by.items() if asker == pid]:
                os.kill(child, signal.SIGKILL)  # it is there as long as we have not waited for it
            if (asker := askers.get(asked_by.pop(pid, 0))) is not None:
                _tell(asker, {"pid": pid, "code": code})


def _become(request: dict[str, Any], output: int, errors: int) -> None:
    """Take over what a process of its own would have begun with, the descriptors that it writes to among it."""
    import random

    import numpy as np

    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    with suppress(OSError):
        os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    for number, stream in ((1, output), (2, errors)):
        os.dup2(stream, number)
        os.close(stream)
    # Nobody else begins with the same draws, where an environment uses what a library shares out.
    random.seed()
    np.random.seed()  # noqa: NPY002


def import_ahead() -> None:
    """Import what every child needs in its first seconds, so that copies begin with it and share its memory.

    Simulators are left to those who need them, and so is Gymnasium where it would load others' plugins: they may begin
    threads, or read variables that are not the same in every process.
    """
    from importlib.metadata import entry_points

    from gossamer.config import TrainConfig, from_dict, to_dict

    with suppress(Exception):  # whoever needs it will tell
        from_dict(to_dict(TrainConfig("CartPole-v1")))  # which loads all parts
        if not entry_points(group="gymnasium.envs"):
            importlib.import_module("gossamer.envs.gym")
            importlib.import_module("gymnasium.envs.classic_control")


def _main(descriptor: int, parent: int, role: str) -> int:
    ignore_stops()  # the supervisor hears them, and tells us
    # Imports take seconds, in which the parent may be killed. An actor's parent starts it from a thread, whose end is not
    # that of the parent; the closed socket tells.
    if role != "actor":
        end_with(parent)
    if role != COPIES:
        return importlib.import_module(SERVES).serve(descriptor)
    gc.disable()  # importing is a tenth quicker
    serves = importlib.import_module(SERVES)
    import_ahead()

    # From here on the closed socket tells, whichever thread of the supervisor has started us.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    gc.freeze()  # a collector that touched every object would unshare its memory
    gc.enable()
    return serves.serve(*_serve(socket.socket(fileno=descriptor)))


def _nothing(number: int, frame: object) -> None:
    pass


def _end_with(codes: list[int]) -> None:
    """End this process with its exit code, once there is one, in place of Python, which would clear every module first.

    That takes a quarter of a second of a core, and unshares what a copy has shared.
    """
    if codes:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # missing, full, or closed
                stream.flush()
        os._exit(*codes)


if __name__ == "__main__":
    codes = list[int]()
    atexit.register(_end_with, codes)  # the first, so that it is called last
    codes.append(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
