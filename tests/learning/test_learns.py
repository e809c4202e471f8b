"""An id alone learns: the defaults of each suite, to a score, in minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

import gossamer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "algorithm", "replay_ratio", "target", "steps"),
    [
        ("CartPole-v1", "ppo", 0, 475.0, 200_000),
        ("CartPole-v1", "a2c", 0, 475.0, 200_000),
        ("CartPole-v1", "vtrace", 0, 475.0, 200_000),
        ("CartPole-v1", "laser", 3, 475.0, 200_000),
        ("CartPole-v1", "impact", 1, 475.0, 200_000),
        ("Acrobot-v1", "ppo", 0, -90.0, 200_000),
    ],
)
def test_classic_control(
    tmp_path: Path, env_id: str, algorithm: str, replay_ratio: float, target: float, steps: int
) -> None:
    settings = {
        "algorithm": algorithm,
        "replay_ratio": replay_ratio,
        "total_env_steps": steps,
        "stop_at_return": target,
        "run_folder": str(tmp_path / "run"),
    }
    gossamer.train(gossamer.make_config(env_id, settings), quiet=True)
    assert gossamer.evaluate(str(tmp_path / "run"), episodes=30).mean >= target


@pytest.mark.slow
def test_pong(tmp_path: Path) -> None:
    settings = {"run_folder": str(tmp_path / "run"), "stop_at_return": 17.0}
    config = gossamer.make_config("PongNoFrameskip-v4", settings, presets=("pong",))
    gossamer.train(config, quiet=True)
    assert gossamer.evaluate(str(tmp_path / "run"), episodes=5).mean >= 17.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_minigrid(tmp_path: Path, seed: int) -> None:
    """The shortest ways to the door's key and the goal pay 0.96 on average."""
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    settings = {"seed": seed, "run_folder": str(tmp_path / "run"), "stop_at_return": 0.95}
    gossamer.train(gossamer.make_config("MiniGrid-DoorKey-5x5-v0", settings), quiet=True)
    assert gossamer.evaluate(str(tmp_path / "run"), episodes=100, sample=True).mean >= 0.9
