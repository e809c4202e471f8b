"""What a process of learners does first: it makes sure to end with its launcher, then imports the rest.

`python -m gossamer.launch.child DESCRIPTOR LAUNCHER`, where the descriptor is a socket and the launcher a
process. Imports take seconds, in which the launcher may be killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(launcher: int) -> None:
    """Ask the system to kill this process with its launcher, where it can; the channel does elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it was quicker
        os._exit(1)


if __name__ == "__main__":
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # the launcher hears them, and tells us
        signal.signal(number, signal.SIG_IGN)
    end_with(int(sys.argv[2]))
    from gossamer.launch.member import main

    sys.exit(main(int(sys.argv[1])))
