"""Beside a run on some machine of a cluster: passes signals on, and ends the run when nobody waits for it any more.

Started as a program: python -m gossamer.run.placements.cluster.run_watcher FOLDER PARENT WORDS...
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from gossamer.run.placements.fork_server import end_with

LOOK_SECONDS = 0.2


def main(folder: str, parent: int, words: list[str]) -> int:
    """Run `gossamer train` and return its exit code.

    Args:
        folder: removed when whoever has started this is gone: a copy of what matters is elsewhere.
        parent: process that has started this.
        words: after `gossamer train`.
    """
    if os.getppid() != parent:  # it was gone before this began
        shutil.rmtree(Path(folder), ignore_errors=True)
        return 1
    me = os.getpid()
    # Ray kills this process with its parent, and the run would go on unwatched. Nothing here has a thread yet.
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "train", *words], preexec_fn=lambda: end_with(me)
    )

    def pass_on(number: int, _frame: object) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGINT, pass_on)
    while process.poll() is None and os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    if os.getppid() == parent:
        if (
            process.returncode < 0
        ):  # killed, as by a system short of memory: an exit code would not tell that
            os.kill(me, signal.SIGKILL)
        return process.returncode
    process.kill()  # what it could still save would go with the folder
    process.wait()
    shutil.rmtree(Path(folder), ignore_errors=True)
    if os.getpgrp() == me:  # simulators that environments have started are of this group
        os.killpg(me, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
