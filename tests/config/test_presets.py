"""Presets: each resolves, with other algorithms too, where those can learn what it replays."""

from __future__ import annotations

import pytest

from gossamer.config import resolve
from gossamer.config.files import preset_names
from gossamer.errors import ConfigError


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("algorithm", ["a2c", "vtrace", "ppo", "laser", "impact"])
def test_every_preset_resolves_with_every_algorithm(preset: str, algorithm: str) -> None:
    # A preset may fix a lag that a2c refuses; the one who changes its algorithm changes that too.
    if {"replays", "replay_ratio"} & resolve_keys(preset) and algorithm in ("a2c", "ppo"):
        with pytest.raises(ConfigError, match=f"{algorithm} cannot learn from older data"):
            resolve({"algorithm": algorithm, "lag": "auto"}, configs=[preset])
        return
    config, _ = (
        resolve({"algorithm": algorithm, "lag": "auto"}, configs=["debug", preset])
        if ("env_id" in resolve_keys(preset))
        else resolve({"env_id": "CartPole-v1", "algorithm": algorithm}, configs=[preset])
    )
    assert config.algorithm.name == algorithm


def test_a_suite_that_changes_leaves_the_networks_that_were_measured() -> None:
    policy = resolve({}, configs=["breakout"])[0].policy
    assert (policy.torso, policy.last_filters) == ("nature", 64)


def resolve_keys(preset: str) -> set[str]:
    from gossamer.config.files import config_layer

    return set(config_layer(preset).settings)
