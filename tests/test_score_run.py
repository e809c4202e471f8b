"""The benchmark that scores a run's checkpoints reads what a run writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gossamer.config import make_config
from gossamer.launch.run import train

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "score_run.py"


def test_checkpoints_are_scored_from_where_training_got_somewhere(tmp_path: Path) -> None:
    given = {
        "placement": "inline", "evaluation.every_seconds": 0, "total_env_steps": 2048, "num_envs": 4,
        "run_folder": str(tmp_path / "run"), "keep_checkpoints": 0,
    }  # fmt: skip
    train(make_config("CartPole-v1", given), quiet=True)
    for skip, scored in (("1", True), ("400", False)):
        words = [
            sys.executable,
            str(SCRIPT),
            str(tmp_path / "run"),
            "--target",
            "5",
            "--episodes",
            "2",
        ]
        done = subprocess.run(
            [*words, "--skip-below", skip], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert ('"training_return"' in done.stdout) == scored
