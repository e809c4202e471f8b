"""What a child process does first: it makes sure to end with whoever started it, then imports the rest.

`python -m gossamer.run.placements.child DESCRIPTOR PARENT ROLE`, where the descriptor is a socket and the parent a
process. Imports take seconds, in which the parent may be killed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from gossamer.run.placements.fork_server import end_with, ignore_signals

    ignore_signals()
    # An actor's parent starts it from a thread, whose end is not that of the parent; the closed socket tells.
    if sys.argv[3] != "actor":
        end_with(int(sys.argv[2]))
    from gossamer.run.placements.child_roles import serve

    sys.exit(serve(int(sys.argv[1])))
