"""Train with Sample Factory's APPO; print speed and score as JSON.

Its own settings are those of the package's examples: `sf_examples.atari.atari_params` and
`sf_examples.mujoco.mujoco_params`, and for CartPole the command line in `sf_examples.train_gym_env`. Ours are those of
the `pong` preset. Runs inside the venv of `requirements.txt`; `benchmarks/peers/run.py` starts it.
"""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium
from ale_py.registration import register_v0_v4_envs
from meter import WINDOW, Meter, parser
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import make_atari_env
from sf_examples.mujoco.mujoco_params import mujoco_override_defaults

PACKAGES = ("sample-factory", "gymnasium", "ale-py", "mujoco")
FRAME_SKIP = 4
OURS = (
    *("--num_workers=2", "--num_envs_per_worker=8", "--rollout=64", "--batch_size=256"),
    *("--num_batches_per_epoch=4", "--num_epochs=3", "--learning_rate=6e-4"),
    *("--ppo_clip_ratio=0.2", "--train_for_env_steps=8000000"),
)
CARTPOLE = (
    *("--use_rnn=False", "--num_envs_per_worker=20", "--policy_workers_per_policy=2"),
    *("--recurrence=1", "--with_vtrace=False", "--batch_size=512", "--reward_scale=0.1"),
)


class Watch(AlgoObserver):
    """Feeds the meter; Sample Factory counts emulator frames where it skips some."""

    def __init__(self, meter: Meter, key: str, frames_per_step: int) -> None:
        self._meter, self._key, self._frames_per_step = meter, key, frames_per_step

    def on_init(self, runner: Runner) -> None:
        runner.register_episodic_stats_handler(self._ended)

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        self._meter.env_steps = sum(runner.env_steps.values()) // self._frames_per_step
        self._meter.updated()
        if self._meter.over:
            runner.cfg.train_for_seconds = -1  # the runner looks at it next

    def _ended(self, _runner: Runner, message: dict[str, Any], _policy: int) -> None:
        value = message[EPISODIC].get(self._key)
        if value is not None:
            self._meter.stepped(0, [value.item() if hasattr(value, "item") else value])


def make_atari(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Make an Atari environment as the package does, in a process that may not know the ids."""
    register_v0_v4_envs()
    return make_atari_env(name, cfg, env_config, render_mode)


def make_gym(name: str, _cfg: Any, _env_config: Any, render_mode: str | None = None) -> Any:
    """Make any other environment."""
    return gymnasium.make(name, render_mode=render_mode)


def main() -> None:
    """Train until the meter says so."""
    asked = parser(__doc__).parse_args()
    meter = Meter(asked)
    pong, cheetah = asked.env.startswith("Pong"), asked.env.startswith("HalfCheetah")
    # Gymnasium 0.29 has version 4 of MuJoCo's tasks; the reward is that of version 5.
    env_id = "atari_pong" if pong else "HalfCheetah-v4" if cheetah else asked.env
    register_env(env_id, make_atari if pong else make_gym)
    with tempfile.TemporaryDirectory(prefix="gossamer-peers-") as folder:
        words = [
            *("--algo=APPO", f"--env={env_id}", f"--seed={asked.seed}", "--experiment=peer"),
            *(f"--train_dir={folder}", f"--stats_avg={WINDOW}"),
            f"--device={'gpu' if asked.device == 'cuda' else 'cpu'}",
            *(OURS if asked.settings == "ours" else ()),
            *(() if pong or cheetah else CARTPOLE),
        ]
        sf_parser, _ = parse_sf_args(argv=words)
        if pong:
            atari_override_defaults(env_id, sf_parser)
        elif cheetah:
            mujoco_override_defaults(env_id, sf_parser)
        cfg, runner = make_runner(parse_full_cfg(sf_parser, words))
        runner.register_observer(
            Watch(
                meter,
                "RecordEpisodeStatistics_reward" if pong else "reward",
                FRAME_SKIP if pong else 1,
            )
        )
        runner.init()
        runner.run()
    meter.report(PACKAGES, num_envs=cfg.num_workers * cfg.num_envs_per_worker, env_used=env_id)


if __name__ == "__main__":
    main()
