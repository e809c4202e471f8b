"""Train Pong with Stable-Baselines3's A2C and its defaults; print env steps per second as JSON.

Runs inside the venv of `requirements.txt`; `benchmarks/peers/run.py` starts it.
"""

from __future__ import annotations

import argparse
import json
import time

import ale_py
import gymnasium
import stable_baselines3
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

VEC_ENVS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


class Stopwatch(BaseCallback):
    """Counts env steps from the end of the first update, as gossamer's `steps_per_second` does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._limit_seconds = seconds
        self._opened_seconds = time.perf_counter()
        self._updated_seconds: float | None = None
        self._first_steps = 0
        self.steps_per_second = 0.0

    def _on_rollout_start(self) -> None:
        # The second rollout starts when the first update is done.
        if self.num_timesteps and self._updated_seconds is None:
            self._updated_seconds, self._first_steps = time.perf_counter(), self.num_timesteps

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if self._updated_seconds is not None and now > self._updated_seconds:
            seconds = now - self._updated_seconds
            self.steps_per_second = (self.num_timesteps - self._first_steps) / seconds
        return now - self._opened_seconds < self._limit_seconds


def main() -> None:
    """Train for the given seconds and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--vec-env", choices=sorted(VEC_ENVS), default="dummy")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    gymnasium.register_envs(ale_py)
    envs = make_atari_env(
        args.env, n_envs=args.num_envs, seed=args.seed, vec_env_cls=VEC_ENVS[args.vec_env]
    )
    model = A2C("CnnPolicy", VecFrameStack(envs, n_stack=4), seed=args.seed, device="cpu")
    stopwatch = Stopwatch(args.seconds)
    model.learn(total_timesteps=10**9, callback=stopwatch)
    envs.close()
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "steps_per_second": stopwatch.steps_per_second,
                "torch_threads": torch.get_num_threads(),
                "versions": {
                    "stable-baselines3": stable_baselines3.__version__,
                    "torch": torch.__version__,
                    "gymnasium": gymnasium.__version__,
                    "ale-py": ale_py.__version__,
                },
                "vec_env": args.vec_env,
            }
        )
    )


if __name__ == "__main__":
    main()
