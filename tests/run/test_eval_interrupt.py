"""Ctrl-C during `gossamer eval` ends it between two steps, simulators included."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sessions import slow
from waiting import PATIENCE_SECONDS

import gossamer


@pytest.mark.parametrize("env_id", ["CartPole-v1", slow("PongNoFrameskip-v4")])
def test_ctrl_c_ends_an_evaluation(tmp_path: Path, env_id: str) -> None:
    settings = {"num_envs": 4, "unroll_length": 4, "total_env_steps": 16,
                "evaluation": {"every_seconds": 0.0}, "run_folder": str(tmp_path / "run")}  # fmt: skip
    gossamer.train(gossamer.make_config(env_id, settings), quiet=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "eval", str(tmp_path / "run"), "--episodes", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == str(tmp_path / "run"), "says what it plays"
        child.stdout.readline()
        assert child.stderr is not None
        assert re.match(r"\d+ of 100000 episodes, [\d,]+ steps$", child.stderr.readline())
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE_SECONDS)
    finally:
        child.kill()
    assert child.returncode == 130
    assert said.splitlines()[-1] == "gossamer: interrupted"
