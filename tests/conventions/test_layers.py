"""Imports point down; optional packages are imported only where they belong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(command), "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
