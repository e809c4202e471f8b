"""What a process of learners does first: it makes sure to end with its launcher, then imports the rest.

`python -m gossamer.run.placements.child DESCRIPTOR LAUNCHER`, where the descriptor is a socket and the launcher a
process. Imports take seconds, in which the launcher may be killed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from gossamer.run.placements.template import end_with, ignore_signals

    ignore_signals()
    end_with(int(sys.argv[2]))
    from gossamer.run.placements.learner_process import main

    sys.exit(main(int(sys.argv[1])))
