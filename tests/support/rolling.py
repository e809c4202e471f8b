"""Drive a VecEnv as an actor does, keeping what a resume needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossamer.envs.spaces import draw_actions
from gossamer.spec import map_obs


@dataclass
class Rolling:
    """A VecEnv, its episode numbers and action logs, and every row seen."""

    envs: Any
    obs: Any = None
    rows: list[Any] = field(default_factory=list)

    def start(self) -> Rolling:
        n = self.envs.num_envs
        self.episodes = np.zeros(n, np.int64)
        self.logs: list[list[Any]] = [[] for _ in range(n)]
        self.ended = np.zeros(n, np.bool_)
        self.obs = self.envs.start(self.episodes)
        return self

    def resume(self, other: Rolling) -> Rolling:
        """Continue in these envs where another left off."""
        self.episodes, self.ended = other.episodes.copy(), other.ended.copy()
        self.logs = [list(log) for log in other.logs]
        self.obs = self.envs.restore(self.episodes, [np.array(log) for log in self.logs])
        return self

    def step(self, action: Any) -> Any:
        self.envs.send(action)
        result = self.envs.recv()
        result = result._replace(obs=map_obs(np.array, result.obs))
        for i in range(self.envs.num_envs):
            if self.ended[i]:
                self.episodes[i] += 1
                self.logs[i] = []
            else:
                self.logs[i].append(action[i].copy())
        self.ended = result.ended.copy()
        self.obs = result.obs
        self.rows.append(result)
        return result


def random_actions(envs: Any, steps: int, seed: int = 0) -> list[Any]:
    """Actions [steps][N, *action_shape] drawn from a fixed seed."""
    rng = np.random.default_rng(seed)
    spec, n = envs.spec.action, envs.num_envs
    if spec.kind == "joint":
        return [draw_actions(spec, n, rng) for _ in range(steps)]
    if spec.kind == "gaussian":
        return list(rng.normal(size=(steps, n, *spec.shape)).astype(np.float32))
    if spec.kind == "bernoulli":
        return list(rng.integers(0, 2, (steps, n, *spec.shape)))
    high = spec.sizes if spec.kind == "multi_categorical" else spec.sizes[0]
    return list(rng.integers(0, high, (steps, n, *spec.shape)))


def assert_same_rows(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for t, (a, b) in enumerate(zip(left, right, strict=True)):
        for name, x, y in zip(a._fields, a, b, strict=True):
            assert x.dtype == y.dtype, (t, name)
            np.testing.assert_array_equal(x, y, err_msg=f"row {t}, {name}")


def assert_resumes(make: Any, before: int, after: int, seed: int = 0) -> tuple[Rolling, set[int]]:
    """Check that after `before` rows fresh envs, restored, give the same `after` rows as those that go on.

    Returns the uninterrupted one's last rows, and the lengths of the logs that were replayed.
    """
    whole = Rolling(make()).start()
    actions = random_actions(whole.envs, before + after, seed)
    for action in actions[:before]:
        whole.step(action)
    lengths = {len(log) for log in whole.logs}
    second = Rolling(make()).resume(whole)
    np.testing.assert_array_equal(second.obs, whole.obs)
    whole.rows.clear()
    for action in actions[before:]:
        whole.step(action)
        second.step(action)
    assert_same_rows(whole.rows, second.rows)
    for each in (whole, second):
        each.envs.close()
    return whole, lengths
