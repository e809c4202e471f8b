"""Run CleanRL's ppo_atari, ppo or ppo_continuous_action as the package has it; print speed and score as JSON.

Its own settings are the scripts' defaults; ours are those of the `pong` preset. The scripts have no way to stop
early, so this one counts in the vector environment that they make, and leaves from there. Pong comes from today's
ale-py, behind the interface of gym 0.23, which the script asks for. Runs inside the venv of `requirements.txt`;
`benchmarks/peers/run.py` starts it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterable
from typing import Any

import gym
import gymnasium
from meter import Finished, Meter, parser
from torch.optim.optimizer import register_optimizer_step_post_hook

PACKAGES = ("cleanrl", "gym", "gymnasium", "stable-baselines3", "ale-py", "mujoco")
SCRIPTS = {"Pong": "ppo_atari", "CartPole": "ppo", "HalfCheetah": "ppo_continuous_action"}
OURS = (
    *("--num-envs", "16", "--num-steps", "64", "--update-epochs", "3", "--num-minibatches", "4"),
    *("--learning-rate", "6e-4", "--clip-coef", "0.2", "--total-timesteps", "2000000"),
)


class OldPong(gym.Env):
    """Pong with what gym 0.23 expects of an environment."""

    metadata = {"render_modes": []}

    def __init__(self) -> None:
        from ale_py.registration import register_v0_v4_envs

        register_v0_v4_envs()
        self._env: Any = gymnasium.make("PongNoFrameskip-v4").unwrapped
        space = self._env.observation_space
        self.observation_space = gym.spaces.Box(space.low, space.high, dtype=space.dtype)
        self.action_space = gym.spaces.Discrete(int(self._env.action_space.n))
        self.ale = self._env.ale
        self._next_seed: int | None = None

    def seed(self, seed: int | None = None) -> list[int | None]:
        self._next_seed = seed
        return [seed]

    def reset(self, **_: Any) -> Any:
        seed, self._next_seed = self._next_seed, None
        super().reset(seed=seed)
        return self._env.reset(seed=seed)[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self._env.step(int(action))
        return obs, reward, terminated or truncated, info

    def get_action_meanings(self) -> list[str]:
        """Return the names of the actions, for wrappers."""
        return self._env.get_action_meanings()


class Counter:
    """Feeds the meter from a vector environment's steps and from the optimizer."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._learnt = False
        register_optimizer_step_post_hook(self._stepped)

    def before(self) -> None:
        """Note the end of an update: the first env step after some optimizer step."""
        if self._learnt:
            self._learnt = False
            self._meter.updated()

    def after(self, num_envs: int, infos: Iterable[dict[str, Any] | None]) -> None:
        """Count a step of all environments."""
        ended = [info["episode"]["r"] for info in infos if info and "episode" in info]
        self._meter.stepped(num_envs, map(float, ended))
        if self._meter.over:
            raise Finished

    def _stepped(self, *_: Any) -> None:
        self._learnt = True


def count_in(counter: Counter) -> None:
    """Put the counter into the vector environments of both libraries."""

    class OldVector(gym.vector.SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            counter.before()
            result = super().step(actions)
            counter.after(self.num_envs, result[3])
            return result

    class Vector(gymnasium.vector.SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            counter.before()
            result = super().step(actions)
            counter.after(self.num_envs, result[4].get("final_info", ()))
            return result

    gym.vector.SyncVectorEnv = OldVector
    gymnasium.vector.SyncVectorEnv = Vector


def main() -> None:
    """Run the script until the meter says so."""
    asked = parser(__doc__).parse_args()
    meter = Meter(asked)
    warnings.filterwarnings("ignore")
    gym.register("PongNoFrameskip-v4", entry_point=OldPong)
    count_in(Counter(meter))
    task = next(name for name in SCRIPTS if asked.env.startswith(name))
    # Gymnasium 0.29 has version 4 of MuJoCo's tasks; the reward is that of version 5.
    env_id = "HalfCheetah-v4" if task == "HalfCheetah" else asked.env
    script = f"cleanrl.{SCRIPTS[task]}"
    sys.argv = [
        *(script, "--env-id", env_id, "--seed", str(asked.seed)),
        *("--cuda", str(asked.device == "cuda")),
        *(OURS if asked.settings == "ours" else ()),
    ]
    with tempfile.TemporaryDirectory(prefix="gossamer-peers-") as folder:
        os.chdir(folder)  # the script writes its curves below the folder it is started in
        with contextlib.suppress(Finished):
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        os.chdir("/")
    meter.report(PACKAGES, env_used=env_id, script=script)


if __name__ == "__main__":
    main()
