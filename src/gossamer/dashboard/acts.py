"""What the page can do to a run: ask it to stop, to save or to evaluate, and continue one that has ended."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from gossamer.errors import ConfigError
from gossamer.record.requests import REQUESTS, ask

if TYPE_CHECKING:
    from pathlib import Path

ACTS = (*REQUESTS, "resume")
SAID = {
    "stop": "the run saves a checkpoint, then stops",
    "checkpoint": "the run saves a checkpoint after the batches at work",
    "evaluate": "the run evaluates its newest policy",
}
STARTING_SECONDS = 20.0
"""A run that is being resumed takes a while to lock its folder; it is not resumed twice meanwhile."""
OUTPUT = "resumed.txt"
"""File in the run folder with what the run says that was resumed last."""
LOOK_SECONDS = 3.0
"""Mistakes of a resumed run show within this time."""


class Acts:
    """Acts on runs; remembers what it has started.

    Runs start with the priority of the thread that has made this object, however much its other threads give way later.
    """

    def __init__(self) -> None:
        self._resumed: dict[Path, float] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        # A process has the priority of the thread that starts it, and a thread that of its own starter: so it begins now.
        self._starter = ThreadPoolExecutor(1, "starter")
        self._starter.submit(int)

    def close(self) -> None:
        """Start nothing any more."""
        self._starter.shutdown(wait=False, cancel_futures=True)

    def do(self, act: str, run: dict[str, Any], folder: Path) -> str:
        """Do something and say in one line what.

        Args:
            act: one of ACTS.
            run: as the listing tells it just now.
            folder: of the run.

        Raises:
            ConfigError: it cannot be done; one line says why.
        """
        if act not in ACTS:
            raise ConfigError(f"{act} is no act; there are {', '.join(ACTS)}")
        if act not in run["acts"]:
            raise ConfigError(f"{run['id']} is {run['state']}; {_why_not(act, run)}")
        if act == "resume":
            return self._resume(folder)
        try:
            new = ask(folder, act)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
        return SAID[act] if new else f"{SAID[act]}; it was asked before and has not heard yet"

    def _resume(self, folder: Path) -> str:
        with self._lock:
            self._started = [x for x in self._started if x.poll() is None]
            now = time.monotonic()
            if now - self._resumed.get(folder, -STARTING_SECONDS) < STARTING_SECONDS:
                raise ConfigError("it is being resumed; wait until it shows")
            self._resumed[folder] = now
        typed = f"gossamer train --resume {shlex.quote(str(folder))}"
        try:
            # A pipe would end with this server, and the run with the pipe.
            with _new_file(folder / OUTPUT) as said:
                child = self._starter.submit(_start_resumed, folder, said).result()
                self._started.append(child)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_SECONDS)
                if child.poll() in (None, 0):
                    return f"{typed} was started"
                problem = f"{typed} did not begin: {_last_line(said)}"
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror}"
        del self._resumed[folder]
        raise ConfigError(problem)


def _new_file(path: Path) -> IO[bytes]:
    """Return a file in place of the one there was, which may be a link to somewhere else."""
    path.unlink(missing_ok=True)
    return path.open("x+b")


def _start_resumed(folder: Path, said: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gossamer", "train", "--resume", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,  # neither Ctrl-C nor the end of this server ends it
    )


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


def _why_not(act: str, run: dict[str, Any]) -> str:
    if act == "resume" and run["state"] == "running":
        return "it need not be resumed"
    if act == "resume" and run["state"] == "done":
        return f"to train it further type gossamer train --resume RUN --total-env-steps N ({run['exit_reason']})"
    if act == "resume":
        return "it has no checkpoint to resume from"
    if act == "evaluate" and run["state"] == "running":
        return "it was started with --evaluation.every-seconds 0"
    return "only a running run can be asked"
