"""`gossamer` processes that begin at once: forked from one that has imported everything, which takes two seconds of a core."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from multiprocessing.connection import wait
from pathlib import Path

from spare_fork_servers import offer_fork_server
from waiting import PATIENCE_SECONDS

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "gossamer.cli",
        "gossamer.run.train",
        "gossamer.run.evaluate",
        "gossamer.dashboard.app",
        "uvicorn",
    ]
)


def gossamer(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        where = cwd or Path.cwd()
        program = Program(list(words), where, dict(os.environ), Path(out.name), Path(err.name))
        try:
            code = program.wait(PATIENCE_SECONDS)
        finally:
            program.kill()
        return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


class Program:
    """`python -m gossamer WORDS`, to be used as a `subprocess.Popen`.

    Args:
        words: after `gossamer`.
        cwd: its folder.
        environment: all variables.
        out: file that its standard output is written to.
        err: the same of its standard error.
        script: a file that is run in place of `gossamer`.
    """

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: dict[str, str],
        out: Path,
        err: Path,
        script: Path | None = None,
    ):
        given = (script, list(words), cwd, environment, out, err)
        self._process = FORKS.Process(target=_become, args=given)
        self._process.start()
        pid = self._process.pid
        assert pid is not None
        self.pid: int = pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        ended = wait([self._process.sentinel], timeout)
        code = self._process.exitcode if ended else None
        until = time.monotonic() + 5.0
        while ended and code is None and time.monotonic() < until:
            time.sleep(0.001)
            code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("gossamer", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become(
    script: Path | None,
    words: list[str],
    cwd: Path,
    environment: dict[str, str],
    out: Path,
    err: Path,
) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in ((0, Path(os.devnull)), (1, out), (2, err)):
        file = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.path[:0] = [str(cwd), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["gossamer", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
    # A forked process ends without what is registered there.
    atexit.register = lambda do, *args, **kwargs: util.Finalize(None, do, args, kwargs, 0)
    if words[:1] in (["train"], ["sweep"]) and "inline" not in words:
        becomes = offer_fork_server()
        if becomes is not None:
            becomes()
            return
    if script is None:
        runpy.run_module("gossamer", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(script), run_name="__main__")
