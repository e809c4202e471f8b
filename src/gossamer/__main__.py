"""`python -m gossamer` is the same as `gossamer`."""

import sys

from gossamer.cli import main

if __name__ == "__main__":
    sys.exit(main())
