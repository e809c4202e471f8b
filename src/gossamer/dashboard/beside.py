"""The dashboard beside a run that `gossamer train --watch` begins: a process that ends with the run's, unless somebody looks."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.dashboard.server import refuse_missing

if TYPE_CHECKING:
    from collections.abc import Callable

START_SECONDS = 20.0
"""Longest wait for the server; a run is not held up by it."""
_WATCHING = b"watching "


def folder_of(run_folder: Path | None, runs: str = "runs") -> str:
    """Return the folder to watch: that of all runs, or a run's own where it is elsewhere.

    Args:
        run_folder: of the run; None: it will be below `runs`.
        runs: folder of all runs.
    """
    if run_folder is None or run_folder.absolute().is_relative_to(Path(runs).absolute()):
        return runs
    return str(run_folder)


def start_beside(folder: str) -> Callable[[], str]:
    """Start a server as a child of this process; return what waits until it listens and says where.

    Args:
        folder: to watch; it need not be there yet.

    Raises:
        ConfigError: packages are missing.
    """
    refuse_missing()
    words = ["watch", folder, "--no-browser", "--beside", str(os.getpid())]
    child = subprocess.Popen(
        [sys.executable, "-m", "gossamer", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is meant for the run
    )

    def wait() -> str:
        said = _read_until_watching(child)
        return (
            said
            or "the dashboard does not start: gossamer watch tells why; the run goes on without"
        )

    return wait


def _read_until_watching(child: subprocess.Popen[bytes]) -> str:
    """Return what the child says, to the line that tells its address; the last one if it ends before."""
    assert child.stdout is not None
    found, until = b"", time.monotonic() + START_SECONDS
    with child.stdout as pipe:
        while (left := until - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            piece = os.read(pipe.fileno(), 4096)
            found += piece
            lines = found.splitlines(keepends=True)
            told = [x for x in lines if x.startswith(_WATCHING) and x.endswith(b"\n")]
            if told:
                return told[0].decode(errors="replace").strip()
            if not piece:
                return lines[-1].decode(errors="replace").strip() if lines else ""
    return ""
