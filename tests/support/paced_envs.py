"""Environments in parts that arrive in a random order, as those of worker processes do."""

from __future__ import annotations

import os

import numpy as np
from random_envs import RandomEnvs

from gossamer.envs.seeding import WithoutTasks
from gossamer.envs.spaces import check_actions
from gossamer.spec import leaves_of
from gossamer.types import StepResult


class PacedEnvs(WithoutTasks):
    """N environments in P parts, each with a random stream of its own; `paced=False` offers them all at once only."""

    def __init__(self, spec, num_envs, num_parts, *, seed=0, order=0, paced=True):
        size = num_envs // num_parts
        self.spec, self.num_envs, self.paced = spec, num_envs, paced
        self.parts = [slice(i * size, (i + 1) * size) for i in range(num_parts)]
        self._envs = [RandomEnvs(spec, size, seed=seed * num_parts + i) for i in range(num_parts)]
        self._order = np.random.default_rng(order)
        self._flying, self._log = {}, []
        self._heard, self._tell = os.pipe()
        self.descriptors = [self._heard]
        n = num_envs
        obs = {x.name: np.zeros((n, *x.shape), x.dtype) for x in spec.leaves}
        ended = np.zeros(n, bool)
        self.results = StepResult(
            spec.obs_of(obs), np.zeros(n, np.float32), ended, np.zeros(n, bool), ended.copy()
        )
        self.pages = np.zeros(0, np.uint8)

    def start(self, episodes):
        for part, envs in zip(self.parts, self._envs, strict=True):
            self._write(self.results.obs, part, envs.start(episodes[part]))
        return self.results.obs

    def send(self, action):
        self.send_parts(range(len(self.parts)), action)

    def recv(self):
        while self._flying:
            self.arrived()
        obs, *rest = self.results
        return StepResult(obs, *(x.copy() for x in rest))

    @property
    def in_flight(self):
        return bool(self._flying)

    def send_parts(self, workers, action):
        for i in workers:
            assert i not in self._flying, "one step at a time"
            check_actions(action[self.parts[i]], len(action[self.parts[i]]), self.spec)
            self._flying[i] = action[self.parts[i]].copy()
            os.write(self._tell, b"x")

    def arrived(self):
        count = self._order.integers(1, len(self._flying) + 1)
        found = self._order.permutation([*self._flying])[:count].tolist()
        os.read(self._heard, count)
        for i in found:
            self._envs[i].send(self._flying.pop(i))
            result = self._envs[i].recv()
            self._write(self.results.obs, self.parts[i], result.obs)
            for whole, own in zip(self.results[1:], result[1:], strict=True):
                whole[self.parts[i]] = own
        return found

    @staticmethod
    def _write(whole, part, own):
        for name, x in leaves_of(own).items():
            leaves_of(whole)[name][part] = x

    def close(self):
        os.close(self._heard)
        os.close(self._tell)
