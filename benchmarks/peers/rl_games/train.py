"""Train with rl_games' PPO on EnvPool; print speed and score as JSON.

Its own settings are the files in the package: `configs/atari/ppo_pong_envpool.yaml`, `configs/ppo_cartpole.yaml` and
`configs/mujoco/halfcheetah_envpool.yaml`. Ours are those of the `pong` preset. All environments are EnvPool's.
Runs inside the venv of `requirements.txt`; `benchmarks/peers/run.py` starts it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rl_games
import yaml
from meter import Finished, Meter, parser
from rl_games.common import env_configurations, vecenv
from rl_games.common.algo_observer import DefaultAlgoObserver
from rl_games.envs.envpool import Envpool
from rl_games.torch_runner import Runner

PACKAGES = ("rl-games", "envpool", "gymnasium")
CONFIGS = {
    "Pong": ("atari/ppo_pong_envpool.yaml", "Pong-v5"),
    "CartPole": ("ppo_cartpole.yaml", "CartPole-v1"),
    "HalfCheetah": ("mujoco/halfcheetah_envpool.yaml", "HalfCheetah-v5"),
}
OURS = {
    "num_actors": 16,
    "horizon_length": 64,
    "minibatch_size": 256,
    "mini_epochs": 3,
    "learning_rate": 6e-4,
    "lr_schedule": "linear",
    "e_clip": 0.2,
}


class Counted(Envpool):
    """rl_games' EnvPool, which tells the meter of every step and of every full game's unclipped return."""

    def __init__(self, meter: Meter, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._meter = meter
        self._return = np.zeros(self.batch_size)

    def step(self, action: Any) -> Any:
        obs, reward, done, info = super().step(action)
        # EnvPool names an Atari game's reward before clipping in its information.
        self._return += info.get("reward", reward)
        ended = self._return[done]
        self._return[done] = 0.0
        self._meter.stepped(self.batch_size, ended)
        return obs, reward, done, info


class Watch(DefaultAlgoObserver):
    """Marks the ends of updates, and leaves the training loop."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def after_print_stats(self, frame: int, epoch_num: int, total_time: float) -> None:
        super().after_print_stats(frame, epoch_num, total_time)
        self._meter.updated()
        if self._meter.over:
            raise Finished


def counted(meter: Meter) -> Callable[..., Counted]:
    """Return what makes rl_games' environments."""
    return lambda name, num_actors, **kwargs: Counted(meter, name, num_actors, **kwargs)


def main() -> None:
    """Train until the meter says so."""
    asked = parser(__doc__).parse_args()
    meter = Meter(asked)
    task = next(name for name in CONFIGS if asked.env.startswith(name))
    file, env_id = CONFIGS[task]
    text = (Path(rl_games.__file__).parent / "configs" / file).read_text()
    settings = yaml.safe_load(text)
    params, config = settings["params"], settings["params"]["config"]
    if asked.settings == "ours":
        config.update(OURS)
        config.pop("max_epochs", None)
        config["max_frames"] = 2_000_000
    # The meter ends a run; a score of their own would end it earlier.
    config.pop("score_to_win", None)
    config.update(device=asked.device, device_name=asked.device, env_name="envpool")
    config.setdefault("max_epochs", -1 if asked.settings == "ours" else 1_000_000)
    config.setdefault("env_config", {}).update(env_name=env_id, seed=asked.seed)
    params["seed"] = asked.seed
    vecenv.register("COUNTED", counted(meter))
    env_configurations.register("envpool", {"vecenv_type": "COUNTED", "env_creator": None})
    with tempfile.TemporaryDirectory(prefix="gossamer-peers-") as folder:
        config["train_dir"] = folder
        runner = Runner(Watch(meter))
        runner.load(settings)
        with contextlib.suppress(Finished):
            runner.run({"train": True})
    meter.report(PACKAGES, num_envs=config["num_actors"], env_used=env_id)


if __name__ == "__main__":
    main()
