"""Replay tests share helpers with those of the roles."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core_helpers"))
