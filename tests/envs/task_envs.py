"""A family of a user's own: its task is what it pays."""

import gymnasium
import numpy as np


class Paying(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    pays = 0

    def set_task(self, seed):
        self.pays = seed % 1000

    @property
    def episode_info(self):
        return {"pays": float(self.pays)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.pays), self.steps == 2, False, {}
