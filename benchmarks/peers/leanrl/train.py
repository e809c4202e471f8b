"""Run LeanRL's ppo_atari_envpool_torchcompile from a clone; print speed and score as JSON.

Its settings are the script's defaults, with `--compile --cudagraphs` as its README says. The script has no way to
stop early, so this one counts in the EnvPool that it makes, and leaves from there. Runs inside the venv of
`requirements.txt`; `benchmarks/peers/run.py` starts it. LEANRL_FOLDER names the clone.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import envpool
import gym
import numpy as np
from meter import Finished, Meter, parser

PACKAGES = ("envpool", "gym", "tensordict")
SCRIPT = Path("leanrl", "ppo_atari_envpool_torchcompile.py")
UNROLL_STEPS = 128
"""Env steps of each environment between two updates: the script's default."""


class Counted(gym.Env):
    """EnvPool behind the interface of gym 0.23, which the script expects; feeds the meter."""

    def __init__(self, meter: Meter, env: Any, num_envs: int) -> None:
        self._meter, self._env, self._num_envs = meter, env, num_envs
        self._return = np.zeros(num_envs)
        self._calls = 0
        space = env.observation_space
        self.observation_space = gym.spaces.Box(0, 255, space.shape, dtype=np.uint8)
        self.action_space = gym.spaces.Discrete(int(env.action_space.n))

    def reset(self, **_: Any) -> Any:
        result = self._env.reset()
        return result[0] if isinstance(result, tuple) else result

    def step(self, action: Any) -> Any:
        # Inside a captured update nothing of Python runs, so updates are told by the steps between them.
        if self._calls and self._calls % UNROLL_STEPS == 0:
            self._meter.updated()
            if self._meter.over:
                raise Finished
        self._calls += 1
        obs, reward, *ends, info = self._env.step(action)
        done = np.logical_or.reduce(ends)
        self._return += info["reward"]  # before clipping
        # A lost life ends an episode for the script alone; a game that has none says 0.
        ended = done & (info["lives"] == 0)
        self._meter.stepped(self._num_envs, self._return[ended])
        self._return[ended] = 0.0
        return obs, reward, done, info


def main() -> None:
    """Run the script until the meter says so."""
    asked = parser(__doc__).parse_args()
    meter = Meter(asked)
    clone = Path(os.environ["LEANRL_FOLDER"]).resolve()
    make = envpool.make
    envpool.make = lambda *args, **kwargs: Counted(meter, make(*args, **kwargs), kwargs["num_envs"])
    sys.argv = [str(SCRIPT), "--env-id", "Pong-v5", "--seed", str(asked.seed)]
    sys.argv += ["--compile", "--cudagraphs"] if asked.device == "cuda" else ["--no-cuda"]
    with tempfile.TemporaryDirectory(prefix="gossamer-peers-") as folder:
        os.chdir(folder)  # the script writes its curves below the folder it is started in
        with contextlib.suppress(Finished):
            runpy.run_path(str(clone / SCRIPT), run_name="__main__")
        os.chdir("/")
    meter.report(PACKAGES, env_used="Pong-v5")


if __name__ == "__main__":
    main()
