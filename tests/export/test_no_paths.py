"""A folder that is made to be published names no place on the machine where the policy was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gossamer
from gossamer import cli

# One process imports what exports to ONNX, which takes seconds.
pytestmark = pytest.mark.xdist_group("export")


def test_the_folder_of_a_replay_on_disk_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = tmp_path / "somebody's disk"
    disk.mkdir()
    settings = {
        "placement": "inline",
        "evaluation.every_seconds": 0,
        "num_envs": 4,
        "unroll_length": 8,
        "total_env_steps": 128,
        "policy.hidden_sizes": [8],
        "algorithm": "vtrace",
        "replays": [
            {"name": "queue", "fraction": 0.5},
            {"name": "uniform", "fraction": 0.5, "capacity_steps": 256, "path": str(disk)},
        ],
    }
    run = gossamer.train("CartPole-v1", run_folder="run", quiet=True, **settings)
    words = ["export", str(run.folder), "--format", "hub", "--output", "card", "--episodes", "0"]
    assert cli.main(words) == 0
    for name in ("config.json", "README.md"):
        text = (tmp_path / "card" / name).read_text()
        assert disk.name not in text, name
        assert str(tmp_path) not in text, name


ENVIRONMENT = """
import gymnasium
import numpy as np


class Follows(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-1, 1, (3,), np.float32) for name in ("path", "cluster")}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}
"""


def test_settings_of_observations_are_published_whatever_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "follows_a_path.py").write_text(ENVIRONMENT)
    settings = {
        "placement": "inline",
        "evaluation.every_seconds": 0,
        "num_envs": 2,
        "unroll_length": 8,
        "total_env_steps": 32,
        "policy.hidden_sizes": [8],
        "policy.encoders": {
            name: {"name": "mlp", "hidden_sizes": [size]}
            for name, size in (("path", 4), ("cluster", 6))
        },
    }
    run = gossamer.train("follows_a_path:Follows", run_folder="run", quiet=True, **settings)
    words = ["export", str(run.folder), "--format", "hub", "--output", "card", "--episodes", "0"]
    assert cli.main(words) == 0
    told = json.loads((tmp_path / "card" / "config.json").read_text())["settings"]
    sizes = {name: x["hidden_sizes"] for name, x in told["policy"]["encoders"].items()}
    assert sizes == {"path": [4], "cluster": [6]}
