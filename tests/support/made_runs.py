"""Run folders as runs leave them, without training any: benchmarks/make_runs.py as a module."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

_SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[2] / "benchmarks" / "make_runs.py")
)
SEEDS: int = _SCRIPT["SEEDS"]
row_of = _SCRIPT["row_of"]


def made_runs(root: Path, runs: int, rows: int, learners: int = 1) -> list[Path]:
    """Return the folders of made-up runs below a root: five seeds of each algorithm, then of each learning rate."""
    return [folder.path for folder in _SCRIPT["make_runs"](root, runs, rows, learners)]
