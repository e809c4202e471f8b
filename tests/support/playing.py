"""Playing an exported policy as somebody else would, without torch and gossamer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE_SECONDS

PLAY = Path(__file__).parents[2] / "examples" / "play_onnx.py"


def play(file: str, *words: str) -> str:
    """Play with a program that must not import torch or gossamer; environments of this folder can be made."""
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['gossamer'] = None\n"
        f"sys.path.append({str(Path(__file__).parent)!r})\n"
        f"sys.argv = ['play_onnx.py', {file!r}, *{list(words)!r}]\n"
        f"runpy.run_path({str(PLAY)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def returns_told(said: str) -> list[float]:
    """Return what each episode earned, of what `play` printed."""
    return [float(x.rpartition(" ")[2]) for x in said.splitlines() if x.startswith("episode")]
