"""Environments of any shape, with random observations, rewards and ends, for what only wants to see steps."""

from __future__ import annotations

import numpy as np

from gossamer.envs.seeding import WithoutTasks
from gossamer.envs.spaces import check_actions
from gossamer.spec import EnvSpec
from gossamer.types import StepResult


class RandomEnvs(WithoutTasks):
    """N environments of a spec; every tenth step or so ends an episode."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int = 0):
        self.spec, self.num_envs = spec, num_envs
        self.rng = np.random.default_rng(seed)
        self.ended = np.zeros(num_envs, bool)

    def start(self, episodes):
        return self.obs()

    def send(self, action):
        check_actions(action, self.num_envs, self.spec)

    def recv(self):
        begun, n = self.ended, self.num_envs
        reward = np.where(begun, 0.0, 2.0 * self.rng.standard_normal(n)).astype(np.float32)
        self.ended = (self.rng.random(n) < 0.1) & ~begun
        return StepResult(self.obs(), reward, self.ended, np.zeros(n, bool), self.ended)

    def obs(self):
        return self.spec.obs_of({leaf.name: self.draw(leaf) for leaf in self.spec.leaves})

    def draw(self, leaf):
        shape = (self.num_envs, *leaf.shape)
        if leaf.kind == "pixels":
            return self.rng.integers(0, 256, shape, dtype=np.uint8)
        if leaf.kind == "mask":
            allowed = self.rng.random(shape) < 0.5
            allowed[:, -1] = True
            return allowed
        if leaf.kind == "discrete":
            return self.rng.integers(0, leaf.sizes, shape)
        return (3.0 + 2.0 * self.rng.standard_normal(shape)).astype(np.float32)

    def close(self):
        pass
