"""Looking is quick: help, lists and settings do not import torch, in a fresh process each."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

HEAVY = (
    "torch",
    "gymnasium",
    "ale_py",
    "mujoco",
    "envpool",
    "ray",
    "tensorboard",
    "wandb",
    "scipy",
    "matplotlib",
)
MAX_MODULES = 260
"""Modules after a command that only looks, those of Python among them: what it takes depends on them, and on the machine."""

PROBE = f"""
import sys
{{body}}
heavy = [name for name in {HEAVY!r} if name in sys.modules]
print("PROBE", ",".join(heavy) or "none", len(sys.modules), file=sys.stderr)
"""
RUN_CLI = """
sys.argv = ["gossamer", *{arguments!r}]
from gossamer.cli import main
assert main() == 0
"""
IMPORT_ALL = """
import gossamer
import gossamer.types, gossamer.config, gossamer.cli, gossamer.topology.gossip, gossamer.roles.optimizers
import gossamer.record.folder, gossamer.record.metrics, gossamer.record.runs
import gossamer.algorithms.a2c, gossamer.algorithms.vtrace, gossamer.algorithms.ppo
import gossamer.replay.settings, gossamer.policies.settings, gossamer.envs.settings
"""


def probe(body: str, folder: Path) -> tuple[str, int, str]:
    """Run code in a fresh process; return heavy modules it imported, how many in all, its output."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.replace("{body}", body)],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    word, heavy, count = done.stderr.strip().splitlines()[-1].split()
    assert word == "PROBE"
    return heavy, int(count), done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["eval", "--help"],
        ["list"],
        ["runs"],
        ["compare", "--help"],
        ["train", "PongNoFrameskip-v4", "--show-config"],
        ["train", "CartPole-v1", "--show-config", "algorithm:ppo", "--algorithm.passes", "2"],
        ["train", "--config", "pong", "--show-config"],
    ],
    ids=" ".join,
)
def test_looking_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    heavy, count, output = probe(RUN_CLI.format(arguments=arguments), tmp_path)
    assert heavy == "none"
    assert count < MAX_MODULES
    assert output.strip()
    assert list(tmp_path.iterdir()) == [], "looking left something behind"


def test_importing_settings_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy, count, _ = probe(IMPORT_ALL, tmp_path)
    assert heavy == "none"
    assert count < MAX_MODULES


def test_importing_changes_nothing(tmp_path: Path) -> None:
    """No thread, no environment variable, no file."""
    body = (
        "import os, threading\nbefore = dict(os.environ)\n"
        + IMPORT_ALL
        + "assert dict(os.environ) == before\nassert threading.active_count() == 1\n"
    )
    probe(body, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    tuple(map(int, version("torch").split("+")[0].split(".")[:2])) < (2, 13),
    reason="older torch imports it for its own ends",
)
def test_training_and_going_on_leave_torchs_compiler_out(tmp_path: Path) -> None:
    """Importing it takes a second, and its many objects slow the collector down for as long as a run lasts."""
    code = """
import sys, gossamer
settings = dict(placement="inline", run_folder="run", quiet=True, num_envs=4, unroll_length=16)
for last in (256, 512):
    gossamer.train("CartPole-v1" if last == 256 else "", resume="run" if last == 512 else None,
                   total_env_steps=last, **(settings if last == 256 else {"quiet": True}))
gossamer.evaluate("run", episodes=1)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    assert probe(code, tmp_path)[2].splitlines()[-1] == "[]"
