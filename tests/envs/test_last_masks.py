"""The mask beside an episode's last observation: nobody acts by it, so that it may say nothing."""

from __future__ import annotations

from typing import Any

import counting_envs
import numpy as np
import pytest

from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig


class Masked(counting_envs.Silent):
    """Cuts its episodes after three steps, and says there what it was made with."""

    def __init__(self, last: Any) -> None:
        self.last = last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action: Any) -> Any:
        obs, reward, _, _, _ = super().step(action)
        mask = self.last if self.steps == 3 else np.array([1, 0], np.int8)
        info = {} if mask is None else {"action_mask": np.array(mask, np.int8)}
        return obs, reward, False, self.steps == 3, info


@pytest.mark.parametrize(
    ("last", "wanted"),
    [([0, 0], [True, True]), (None, [True, True]), ([2, 0], [True, True]), ([0, 1], [False, True])],
)
def test_a_last_mask_that_allows_nothing_ends_no_run(
    last: Any, wanted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting_envs, "made", lambda: Masked(last), raising=False)
    settings = EnvConfig(mask="info")
    envs = make_vec_env("counting_envs:made", num_envs=2, seed=1, settings=settings)
    envs.start(np.zeros(2, np.int64))
    for _ in range(2):
        for step in range(4):
            envs.send(np.zeros(2, np.int64))
            row = envs.recv()
            is_last = step == 2
            assert row.truncated.tolist() == [is_last] * 2
            mask = row.obs["action_mask"]
            assert mask.tolist() == [wanted if is_last else [True, False]] * 2
    envs.close()
