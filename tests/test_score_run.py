"""The benchmark that scores a run's checkpoints reads what a run writes."""

from __future__ import annotations

import json
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
    words = [sys.executable, str(SCRIPT), str(tmp_path / "run"), "--target", "5", "--episodes", "2"]

    def told(*more: str) -> str:
        done = subprocess.run(
            [*words, *more], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    of_all = told("--skip-below", "1")
    assert '"training_return"' in of_all
    assert '"training_return"' not in told("--skip-below", "400")
    # what training games came to, over the last of them only
    games = [json.loads(x) for x in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    last = round(sum(x["return"] for x in games[-3:]) / 3, 2)
    rows = [json.loads(x) for x in told("--window", "3", "--all").splitlines() if x[0] == "{"]
    assert rows[-1]["training_return"] == last
