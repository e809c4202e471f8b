"""What the protocol of an Atari game says reaches the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from rolling import Rolling, random_actions

pytest.importorskip("ale_py")

from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig


@pytest.mark.parametrize(("name", "value"), [("fire_reset", False), ("sticky", 0.9)])
def test_a_setting_changes_the_game(name, value):
    seen = []
    for changed in ({}, {name: value}):
        settings = EnvConfig(size=36, **changed)
        envs = make_vec_env("BreakoutNoFrameskip-v4", num_envs=2, seed=3, settings=settings)
        rolling = Rolling(envs).start()
        for action in random_actions(envs, 40):
            rolling.step(action)
        seen.append(np.stack([row.obs for row in rolling.rows]))
        envs.close()
    assert (seen[0] != seen[1]).any()
