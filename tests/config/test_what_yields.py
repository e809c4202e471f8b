"""Settings that hold only for what they were found or written for, and pairs that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.config import make_config, resolve
from gossamer.config.cores import MACHINE
from gossamer.errors import ConfigError
from gossamer.record.tuned import write_tuned

PONG, BREAKOUT = "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"


def test_the_return_to_stop_at_is_one_of_the_environment_that_it_is_written_beside(
    tmp_path: Path,
) -> None:
    """In another one it may be out of reach, or reached at once."""
    file = tmp_path / "pong.toml"
    file.write_text(f'env_id = "{PONG}"\nstop_at_return = 19\nseed = 5\n')
    configs = [str(file)]
    assert resolve(configs=configs)[0].stop_at_return == 19.0
    assert resolve({"env_id": PONG}, configs=configs)[0].stop_at_return == 19.0
    other, _ = resolve({"env_id": BREAKOUT}, configs=configs)
    assert (other.stop_at_return, other.seed) == (None, 5)
    asked, _ = resolve({"env_id": BREAKOUT, "stop_at_return": "300"}, configs=configs)
    assert asked.stop_at_return == 300.0
    # A file that names no environment is for whichever is trained.
    file.write_text("stop_at_return = 19\n")
    assert resolve({"env_id": BREAKOUT}, configs=configs)[0].stop_at_return == 19.0


@pytest.mark.parametrize(
    "other",
    [{"frame_skip": 2}, {"frame_stack": 1}, {"size": 42}, {"grayscale": False}, {"workers": 2}],
)
def test_what_was_tuned_is_not_for_frames_of_another_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv(MACHINE, raising=False)
    found = {"env_id": PONG, "algorithm": "ppo", "settings": {"env_groups": 2}}
    write_tuned({**found, "steps_per_second": {}}, {})
    assert make_config(PONG).env_groups == 2
    assert make_config(PONG, {"env": {"noop_max": 0}}).env_groups == 2, "as fast as before"
    assert make_config(PONG, {"env": other}).env_groups == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"deterministic": True, "lag": "free", "algorithm": {"name": "vtrace"}},
            "deterministic is on, but runs with lag free can never be repeated: use --lag 1",
        ),
        (
            {"num_learners": 2, "topology": {"name": "allreduce"}, "same_start": False},
            "same_start is off, but the allreduce topology keeps all learners equal",
        ),
    ],
)
def test_a_promise_that_another_setting_breaks_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config("CartPole-v1", changes)
