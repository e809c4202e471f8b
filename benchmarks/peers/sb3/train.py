"""Train with Stable-Baselines3's A2C or PPO; print speed and score as JSON.

Its own settings are those of RL Baselines3 Zoo (`hyperparams/a2c.yml` and `hyperparams/ppo.yml`), which its authors
tuned; A2C on HalfCheetah is not there and runs with the library's defaults. Ours are those of the `pong` preset.
Runs inside the venv of `requirements.txt`; `benchmarks/peers/run.py` starts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium
from meter import Meter, parser
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from torch import nn

ALGORITHMS = {"a2c": A2C, "ppo": PPO}
PACKAGES = ("stable-baselines3", "gymnasium", "ale-py", "mujoco")


def falling(start: float) -> Callable[[float], float]:
    """Return a rate that falls to 0 with what is left of training, from 1 to 0: the zoo's `lin_`."""
    return lambda left: start * left


WIDE = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
SETTINGS: dict[tuple[str, str, str], tuple[int, int, dict[str, Any]]] = {
    ("a2c", "Pong", "own"): (
        16,
        10_000_000,
        {
            "ent_coef": 0.01,
            "vf_coef": 0.25,
            "policy_kwargs": {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}},
        },
    ),
    ("a2c", "CartPole", "own"): (8, 500_000, {"ent_coef": 0.0}),
    ("a2c", "HalfCheetah", "own"): (1, 1_000_000, {}),
    ("ppo", "Pong", "own"): (
        8,
        10_000_000,
        {
            "n_steps": 128,
            "n_epochs": 4,
            "batch_size": 256,
            "learning_rate": falling(2.5e-4),
            "clip_range": falling(0.1),
            "vf_coef": 0.5,
            "ent_coef": 0.01,
        },
    ),
    ("ppo", "Pong", "ours"): (
        16,
        2_000_000,
        {
            "n_steps": 64,
            "n_epochs": 3,
            "batch_size": 256,
            "learning_rate": falling(6e-4),
            "clip_range": 0.2,
            "vf_coef": 0.5,
            "ent_coef": 0.01,
        },
    ),
    ("ppo", "CartPole", "own"): (
        8,
        100_000,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": falling(0.001),
            "clip_range": falling(0.2),
        },
    ),
    ("ppo", "HalfCheetah", "own"): (
        1,
        1_000_000,
        {
            "batch_size": 64,
            "n_steps": 512,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": WIDE,
        },
    ),
}
"""Environments, env steps over which rates fall, and settings of an algorithm, by task and by whose they are."""


class Watch(BaseCallback):
    """Feeds the meter."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def _on_rollout_start(self) -> None:
        # The second rollout starts when the first update is done.
        if self.num_timesteps:
            self._meter.updated()

    def _on_step(self) -> bool:
        # A monitor below all wrappers adds the return of a full game with unclipped rewards.
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self._meter.stepped(self.training_env.num_envs, ended)
        return not self._meter.over


def main() -> None:
    """Train until the meter says so."""
    words = parser(__doc__)
    words.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="a2c")
    asked = words.parse_args()
    meter = Meter(asked)
    task = next(name for name in ("Pong", "CartPole", "HalfCheetah") if asked.env.startswith(name))
    num_envs, total, settings = SETTINGS[asked.algorithm, task, asked.settings]
    if task == "Pong":
        gymnasium.register_envs(ale_py)
        envs = VecFrameStack(make_atari_env(asked.env, n_envs=num_envs, seed=asked.seed), n_stack=4)
    else:
        envs = make_vec_env(asked.env, n_envs=num_envs, seed=asked.seed)
    if task == "HalfCheetah":
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    model = ALGORITHMS[asked.algorithm](
        "CnnPolicy" if task == "Pong" else "MlpPolicy",
        envs,
        seed=asked.seed,
        device=asked.device,
        **settings,
    )
    model.learn(total_timesteps=total, callback=Watch(meter))
    envs.close()
    meter.report(PACKAGES, num_envs=num_envs)


if __name__ == "__main__":
    main()
