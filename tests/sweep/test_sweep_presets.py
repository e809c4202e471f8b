"""Settings written as a preset are those settings, for `gossamer train --config FILE` too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.config import make_config, preset_names, resolve
from gossamer.sweep.presets import preset_of

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "num_envs": st.sampled_from([4, 8, 12]),
        "optimizer.learning_rate": st.floats(1e-6, 1e-1),
        "optimizer.name": st.sampled_from(["adam", "rmsprop"]),
        "algorithm.name": st.sampled_from(["ppo", "a2c", "vtrace", "laser"]),
        "algorithm.discount": st.floats(0.5, 1.0),
        "replays": st.just(
            [{"name": "queue", "fraction": 0.5}, {"name": "elite", "fraction": 0.5}]
        ),
        "stop_at_return": st.none() | st.floats(-10, 500),
        "policy.hidden_sizes": st.lists(st.integers(1, 64), min_size=1, max_size=3),
        "env.stuck_steps": st.none() | st.integers(0, 100),
    },
)


@given(SETTINGS, st.sampled_from([None, "debug"]))
def test_what_is_written_is_what_was_meant(given_: dict[str, Any], preset: str | None) -> None:
    if "replays" in given_ and given_.get("algorithm.name") not in ("vtrace", "laser"):
        del given_["replays"]
    settings = {"env_id": "CartPole-v1", "algorithm.num_minibatches": 2, **given_}
    import tempfile

    text, config = preset_of(settings, [preset] if preset else [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.toml"
        path.write_text(text)
        assert resolve(configs=[str(path)])[0] == config


@pytest.mark.parametrize("name", [x for x in preset_names() if x != "debug"])
def test_every_preset_is_written_as_itself(name: str, tmp_path: Path) -> None:
    text, config = preset_of({}, [name])
    (tmp_path / "copy.toml").write_text(text)
    assert resolve(configs=[str(tmp_path / "copy.toml")])[0] == config


def test_a_preset_holds_no_seed_and_no_folder_and_no_default(tmp_path: Path) -> None:
    text, config = preset_of({"env_id": "CartPole-v1", "seed": 3, "run_folder": "x"})
    assert config.seed == 3
    assert text == 'env_id = "CartPole-v1"\n'


def test_a_preset_of_settings_from_python_trains_the_same() -> None:
    settings = {"env_id": "CartPole-v1", "algorithm": {"name": "vtrace"}, "replay_ratio": 1.0}
    assert preset_of(settings)[1] == make_config(settings=settings)
