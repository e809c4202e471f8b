"""Train with RLlib's IMPALA; print speed and score as JSON.

Its own settings are those of its examples for Pong and CartPole (`rllib/examples/algorithms/impala/pong_impala.py` and
`cartpole_impala.py`), which say nothing of continuous control. Runs inside the venv of `requirements.txt`;
`benchmarks/peers/run.py` starts it.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from typing import Any

import gymnasium
import ray
from meter import WINDOW, Meter, parser
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EPISODE_RETURN_MEAN,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES_LIFETIME,
)
from ray.tune.registry import register_env

PACKAGES = ("ray", "gymnasium", "ale-py")


def make_pong(_config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make Pong as the example does: 64x64, a stack of four."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("PongNoFrameskip-v4", render_mode="rgb_array")
    return wrap_atari_for_new_api_stack(env, dim=64, framestack=4)


def pong() -> IMPALAConfig:
    """Return the example's settings."""
    register_env("pong", make_pong)
    return (
        IMPALAConfig()
        .environment("pong", clip_rewards=True)
        .env_runners(num_envs_per_env_runner=5)
        .training(
            train_batch_size_per_learner=500,
            grad_clip=40.0,
            grad_clip_by="global_norm",
            lr=0.007,
            vf_loss_coeff=0.5,
            entropy_coeff=0.008,
            broadcast_interval=5,
        )
        .rl_module(
            model_config={
                "vf_share_layers": True,
                "conv_filters": [[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]],
                "conv_activation": "relu",
                "post_fcnet_hiddens": [256],
            }
        )
    )


def cartpole() -> IMPALAConfig:
    """Return the example's settings."""
    return (
        IMPALAConfig()
        .environment("CartPole-v1")
        .training(
            train_batch_size_per_learner=500,
            grad_clip=40.0,
            grad_clip_by="global_norm",
            lr=0.0005,
            vf_loss_coeff=0.05,
            entropy_coeff=0.0,
        )
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=True))
    )


def main() -> None:
    """Train until the meter says so."""
    asked = parser(__doc__).parse_args()
    meter = Meter(asked)
    warnings.filterwarnings("ignore")
    # Two runners, an aggregator and a learner each ask for a core: on fewer they must share.
    ray.init(
        num_cpus=max(os.cpu_count() or 1, 8),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    config = pong() if asked.env.startswith("Pong") else cartpole()
    config = config.debugging(seed=asked.seed).reporting(
        metrics_num_episodes_for_smoothing=WINDOW, min_time_s_per_iteration=1
    )
    if asked.device == "cuda":
        config = config.learners(num_gpus_per_learner=1)
    algorithm = config.build_algo()
    while not meter.over:
        runners = algorithm.train()[ENV_RUNNER_RESULTS]
        episodes = runners.get(NUM_EPISODES_LIFETIME, 0)
        mean = runners.get(EPISODE_RETURN_MEAN, math.nan)
        steps = int(runners.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0))
        meter.told(steps, mean, full=episodes >= WINDOW)
        meter.episodes = int(episodes)
        # A result is of a second at least, with many updates in it.
        if steps:
            meter.updated()
    meter.report(
        PACKAGES,
        num_envs=max(1, config.num_env_runners) * config.num_envs_per_env_runner,
    )
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
