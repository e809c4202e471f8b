"""What was found out about this machine: kept for each environment and algorithm, and nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gossamer.record.tuned import machine_facts, path_of, tuned_settings, write_tuned


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def keep(env_id: str, algorithm: str, **settings: Any) -> Path:
    entry = {"env_id": env_id, "algorithm": algorithm, "settings": settings}
    return write_tuned(entry, {"steps_per_second": 1.0})


def test_what_was_found_for_one_environment_outlives_a_look_at_another() -> None:
    keep("CartPole-v1", "ppo", env_groups=2)
    keep("Acrobot-v1", "ppo", env_groups=1)
    keep("CartPole-v1", "ppo", env_groups=4)
    assert tuned_settings("CartPole-v1", "ppo") == {"env_groups": 4}
    assert tuned_settings("Acrobot-v1", "ppo") == {"env_groups": 1}


def test_settings_that_change_what_is_learnt_are_not_taken_from_the_file() -> None:
    path = keep("CartPole-v1", "ppo", env_groups=2)
    assert path == path_of(machine_facts())
    held = json.loads(path.read_text())
    held["tuned"][0]["settings"]["num_envs"] = 512
    path.write_text(json.dumps(held))
    assert tuned_settings("CartPole-v1", "ppo") == {}
