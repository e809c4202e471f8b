"""Signals that a process leaves to whoever has started it, while simulators that it starts itself answer them as they would elsewhere."""

from __future__ import annotations

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Those that end a run cleanly: SIGHUP comes when a terminal is closed, SIGUSR1 is Slurm's warning before a job's time is over.
A terminal, `timeout` or a cluster sends them to all processes of a job."""


def ignore_stops() -> None:
    """Let signals that ask to stop do nothing in this process, and allow them if they were blocked."""
    for number in STOP_SIGNALS:
        # What is ignored would stay so in every program that is started from here; handlers end with this one.
        signal.signal(number, _nothing)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _nothing(number: int, frame: object) -> None:
    pass


def _heed_stops() -> None:
    """Let them do in a forked process what they do by themselves."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _nothing:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


os.register_at_fork(after_in_child=_heed_stops)
