"""Signals that a process leaves to whoever has started it, while simulators that it starts itself can be asked to end."""

from __future__ import annotations

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Those that end a run cleanly: SIGHUP comes when a terminal is closed, SIGUSR1 is Slurm's warning before a job's time is over.
A terminal, `timeout` or a cluster sends them to all processes of a job."""


def ignore_stops() -> None:
    """Let signals that ask to stop do nothing in this process, and allow them if they were blocked.

    Programs that are started from here ignore them as well, as the run is still saved, but for SIGTERM: by that
    environments end their simulators.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        # What is ignored stays so in every program that is started from here; a handler ends with this one.
        signal.signal(signal.SIGTERM, _nothing)
        signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _nothing(number: int, frame: object) -> None:
    pass


def _heed_sigterm() -> None:
    """Let it end a forked process."""
    if signal.getsignal(signal.SIGTERM) is _nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_heed_sigterm)
