"""An environment of one's own, whose actions are not always allowed, and how it is trained.

cd examples
gossamer train own_env:make --total-env-steps 100_000     # from the command line: module:function
python own_env.py                                         # from Python
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PARCELS = 6


class Packing(gymnasium.Env[dict[str, Any], int]):
    """Load parcels into a van, one per step; the last action drives off. The reward is the value of the parcel."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "sizes": spaces.Box(0.0, 1.0, (PARCELS,)),
                "values": spaces.Box(0.0, 1.0, (PARCELS,)),
                "room": spaces.Box(0.0, 1.0, (1,)),
                "action_mask": spaces.MultiBinary(PARCELS + 1),
            }
        )
        self.action_space = spaces.Discrete(PARCELS + 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin with new parcels and an empty van."""
        super().reset(seed=seed)  # seeds self.np_random
        self.sizes = self.np_random.uniform(0.1, 0.6, PARCELS).astype(np.float32)
        self.values = self.np_random.uniform(0.0, 1.0, PARCELS).astype(np.float32)
        self.room = 1.0
        return self.observe(), {}

    def step(self, action: int) -> Any:
        """Load a parcel, which is then gone, or drive off."""
        if action == PARCELS:
            return self.observe(), 0.0, True, False, {}
        reward = float(self.values[action])
        self.room -= float(self.sizes[action])
        self.sizes[action] = self.values[action] = 0.0
        return self.observe(), reward, False, False, {}

    def observe(self) -> dict[str, Any]:
        """Return what the policy sees; action_mask is 1 for parcels that are left and fit, and for driving off."""
        fits = (self.sizes > 0.0) & (self.sizes <= self.room)
        return {
            "sizes": self.sizes.copy(),
            "values": self.values.copy(),
            "room": np.array([self.room], np.float32),
            "action_mask": np.append(fits, True).astype(np.int8),
        }


def make() -> gymnasium.Env[Any, Any]:
    """Return one environment; gossamer calls this for each that it steps."""
    return Packing()


def main() -> None:
    """Train a policy, evaluate it, and load one van with it."""
    import gossamer

    result = gossamer.train("own_env:make", total_env_steps=100_000, run_folder="runs/packing")
    print(gossamer.evaluate(result).mean)
    policy, env = gossamer.load_policy(result), make()
    obs, _ = env.reset(seed=1)
    state, ended = None, False
    while not ended:
        action, state = policy.act(obs, state)
        print("parcel", action, obs["action_mask"])
        obs, _, ended, _, _ = env.step(action)


if __name__ == "__main__":
    main()
