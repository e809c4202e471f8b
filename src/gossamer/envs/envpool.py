"""EnvPool's C++ environments as a `VecEnv`; optional, and without exact resuming."""

from __future__ import annotations

import difflib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.envs.atari import MAX_EPISODE_STEPS, AtariProtocol, atari_protocol, lost_life
from gossamer.envs.gym import refuse_of_others
from gossamer.envs.making import UNLIMITED_STEPS
from gossamer.envs.seeding import WithoutTasks
from gossamer.envs.settings import (
    FAMILIES_ONLY,
    OF_OWN_ENVIRONMENTS,
    flag_of,
    refuse_settings,
    suite_of,
)
from gossamer.envs.spaces import action_format, array_format, check_actions
from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.spec import EnvSpec, one_leaf
from gossamer.system.signs import Sign
from gossamer.types import StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gossamer.envs.seeding import SeedStream
    from gossamer.envs.settings import EnvConfig


class EnvpoolEnvs(WithoutTasks):
    """N environments of EnvPool. They are seeded once, so that a resumed run begins new episodes."""

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int,
        num_threads: int,
        seeds: SeedStream,
        settings: EnvConfig,
        max_episode_steps: int,
        training: bool,
    ):
        name = env_id.removeprefix("envpool:")
        envpool = _import_envpool(env_id)
        protocol: AtariProtocol | None = None
        options: dict[str, Any] = {}
        if suite_of(env_id) == "atari":
            protocol = atari_protocol(env_id, settings)
            if not protocol.grayscale and protocol.frame_stack > 10:
                raise ConfigError(f"{flag_of('frame_stack')} above 10 needs grey frames in EnvPool")
            options = atari_options(protocol)
            stuck_steps = protocol.stuck_steps
        else:
            refuse_settings(env_id, settings, ("workers",), "its simulator has threads of its own")
            refuse_settings(
                env_id,
                settings,
                (*FAMILIES_ONLY, *OF_OWN_ENVIRONMENTS),
                "it is not a family of tasks",
            )
            stuck_steps = refuse_of_others(env_id, settings).stuck_steps
        if stuck_steps:
            raise ConfigError(_no_guard(env_id))
        known: list[str] = envpool.list_all_envs()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join('envpool:' + x for x in near)}?" if near else ""
            raise ConfigError(f"unknown environment {env_id!r}{hint}")
        limit = max_episode_steps or (MAX_EPISODE_STEPS if protocol else 0)
        if limit:
            options["max_episode_steps"] = limit
        # one seed for the pool: env i is given this plus i
        options["seed"] = seeds.seed(0, 0) % (2**30)
        self._envs: Any = envpool.make_gymnasium(
            name, num_envs=num_envs, num_threads=max(1, num_threads), **options
        )
        with warnings.catch_warnings():
            # EnvPool writes bounds in float64 into float32 spaces, which Gymnasium remarks upon
            warnings.filterwarnings("ignore", message=".*precision lowered")
            self._obs = array_format(env_id, self._envs.observation_space)
            self._action = action_format(env_id, self._envs.action_space)
        self._is_vector = self._obs.kind == "vector"
        self._watches_lives = protocol is not None and protocol.life_loss_terminal and training
        self._lives: NDArray[Any] = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)
        self._sent: Any = None
        self.sign = Sign(seeds.whose)
        self.num_envs = num_envs
        limit = limit or int(self._envs.spec.config.max_episode_steps) or UNLIMITED_STEPS
        self.spec = EnvSpec(
            env_id=env_id,
            leaves=one_leaf(
                self._obs.kind,
                self._obs.shape,
                frame_stack=protocol.frame_stack if protocol else 1,
                stack_padding="repeat" if protocol and protocol.frame_stack > 1 else "none",
            ),
            action=self._action.spec,
            protocol=(
                protocol.describe(env_id, limit)
                if protocol
                else f"{env_id}: EnvPool, truncated after {limit:,} steps"
            ),
            max_episode_steps=limit,
            action_repeat=protocol.frame_skip if protocol else 1,
            differs="EnvPool draws the seeds of episodes itself",
        )

    def spaces(self) -> tuple[Any, Any]:
        """Return the spaces of one environment's observations and actions."""
        return self._envs.observation_space, self._envs.action_space

    def start(self, episodes: NDArray[np.int64]) -> NDArray[Any]:
        """Begin an episode in every env; EnvPool draws their seeds itself."""
        assert len(episodes) == self.num_envs
        obs, info = self._envs.reset()
        self._lives = np.asarray(info.get("lives", self._lives))
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._batch(obs)

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step; the actions are copied."""
        check_actions(action, self.num_envs, self.spec)
        decoded = self._action.decode(action)
        # EnvPool takes int32 where Gymnasium's spaces say int64
        self._sent = decoded.astype(np.int32) if decoded.dtype == np.int64 else decoded.copy()

    def recv(self) -> StepResult:
        """Finish the step that `send` began."""
        assert self._sent is not None, "recv without send"
        action, self._sent = self._sent, None
        self.sign.doing = "step"
        obs, reward, terminated, truncated, info = self._envs.step(action)
        self.sign.doing = ""
        self.sign.beats += 1
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        ended = terminated | truncated
        if self._watches_lives:
            lives = np.asarray(info["lives"])
            terminated = terminated | lost_life(self._lives, lives, self._ended)
            self._lives, self._ended = lives.copy(), ended
        return StepResult(
            self._batch(obs), np.asarray(reward, np.float32), terminated, truncated, ended
        )

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> NDArray[Any]:
        """Begin new episodes: EnvPool can neither save a state nor seed an episode."""
        del logs
        return self.start(episodes)

    def _batch(self, obs: Any) -> NDArray[Any]:
        if self._obs.kind == "pixels" and obs.shape[1:] == self._obs.shape:
            return np.asarray(obs)
        if self._is_vector and obs.shape[1:] == self._obs.shape:
            return np.asarray(obs, np.float32)
        batch = self._obs.empty(self.num_envs)
        for i in range(self.num_envs):
            self._obs.write(batch, i, obs[i])
        return batch

    def close(self) -> None:
        """Free the pool and its threads."""
        self._envs.close()


def _import_envpool(env_id: str) -> Any:
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra(f"{env_id} needs EnvPool", "envpool") from error
    return envpool  # pyright: ignore[reportUnknownVariableType]


def _no_guard(env_id: str) -> str:
    return (
        f"{flag_of('stuck_steps')} does not apply to {env_id}: EnvPool cannot be told to end an "
        "episode; leave it out, and use --max-episode-steps"
    )


def atari_options(protocol: AtariProtocol) -> dict[str, Any]:
    """Return what EnvPool is told of an Atari protocol."""
    return {
        "frame_skip": protocol.frame_skip,
        "stack_num": protocol.frame_stack,
        "img_height": protocol.size,
        "img_width": protocol.size,
        "gray_scale": protocol.grayscale,
        "noop_max": max(1, protocol.noop_max),
        "repeat_action_probability": protocol.sticky,
        "full_action_space": protocol.full_action_space,
        "use_fire_reset": protocol.fire_reset,
        # our life-loss terminals let the game go on without a reset row
        "episodic_life": False,
        "reward_clip": False,
    }
