"""Scripts of the repository, run in this process as `python scripts/NAME WORDS` would run them."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_script(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    typed = [str(SCRIPTS / name), *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", typed),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = runpy.run_path(typed[0], run_name="imported")["main"]()
        except SystemExit as ended:  # argparse's
            code = ended.code
    return subprocess.CompletedProcess(typed, int(code or 0), out.getvalue(), err.getvalue())
