"""EnvPool's C++ environments as a `VecEnv`; optional, and without exact resuming."""

from __future__ import annotations

import difflib
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.envs.atari import MAX_EPISODE_STEPS, AtariProtocol, atari_protocol, lost_life
from gossamer.envs.episodes import formats_of
from gossamer.envs.gym import refuse_of_others
from gossamer.envs.making import UNLIMITED_STEPS
from gossamer.envs.masks import LEGAL_MASK, MASK, BadMask, find_mask
from gossamer.envs.seeding import WithoutTasks
from gossamer.envs.settings import FAMILIES_ONLY, flag_of, refuse_settings, suite_of
from gossamer.envs.spaces import Misfit, NestedFormat, check_actions, dict_of, space_at
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import MissingExtra
from gossamer.system.importing import RAISED
from gossamer.system.signs_of_life import Sign
from gossamer.types import StepResult

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from numpy.typing import NDArray

    from gossamer.envs.masks import MaskFormat
    from gossamer.envs.seeding import SeedStream
    from gossamer.envs.settings import EnvConfig
    from gossamer.spec import Obs

OWN_LIMITS = ("highway", "jumanji", "pgx")
"""Families of which most ids take no notice of a time limit that they are given."""
UNLIMITED = 2**31 - 1
"""EnvPool's time limit of an id that has none; such ids take no notice of another."""


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
        protocol = _protocol_of(env_id, settings)
        known: list[str] = envpool.list_all_envs()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join('envpool:' + x for x in near)}?" if near else ""
            raise ConfigError(f"unknown environment {env_id!r}{hint}")
        limit = max_episode_steps or (MAX_EPISODE_STEPS if protocol else 0)
        told = Told() if protocol else _look(envpool, env_id, name, max_episode_steps)
        self.options = atari_options(protocol) if protocol else dict(told.options)
        """What EnvPool is told beside the id, its seed, and the number of environments and threads."""
        if limit:
            self.options["max_episode_steps"] = limit

        def make(episode: int) -> Any:
            try:
                with _without_remarks():
                    pool = envpool.make_gymnasium(
                        name,
                        num_envs=num_envs,
                        num_threads=max(1, num_threads),
                        **self.options,
                        # one seed for the pool: env i is given this plus i
                        seed=seeds.seed(0, episode) % (2**30),
                    )
                    _ = pool.observation_space  # made here, once
                    return pool
            except RAISED as error:
                raise _unmade(env_id, error) from error

        self._make, self._seeded = make, 0
        self._envs: Any = make(0)
        with _without_remarks():
            self._obs_space = _observed(self._envs.observation_space, told.family)
            settings = _with_mask(env_id, self.spaces(), told, settings)
            formats = formats_of(env_id, *self.spaces(), settings)
        self._mask, self._action = formats.mask, formats.action
        if self._action.spec.kind == "joint":  # no id of EnvPool 1.2
            raise ConfigError(
                f"{env_id} takes a Dict or Tuple of actions, which EnvPool's ids are not trained with"
            )
        obs = formats.obs
        parts = obs.parts if isinstance(obs, NestedFormat) else {"": ((), obs)}
        self._arrays = [
            (leaf, keys, form, space_at(self._obs_space, keys))
            for leaf, (keys, form) in parts.items()
        ]
        """Of every leaf but the mask: its name, the keys that lead to it, its format, and its space."""
        self._watches_lives = protocol is not None and protocol.life_loss_terminal and training
        self._lives: NDArray[Any] = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)
        self._episode = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._sent: Any = None
        self._first_env = seeds.first_env
        self.sign = Sign(seeds.whose)
        self.num_envs = num_envs
        limit = limit or int(self._envs.spec.config.max_episode_steps) or UNLIMITED_STEPS
        self.spec = formats.spec(
            env_id,
            [protocol.describe(env_id, limit) if protocol else _protocol(env_id, told, limit)],
            max_episode_steps=limit,
            action_repeat=protocol.frame_skip if protocol else 1,
            differs="EnvPool draws the seeds of episodes itself",
        )
        if protocol and protocol.frame_stack > 1:
            stack: dict[str, Any] = {"frame_stack": protocol.frame_stack, "stack_padding": "repeat"}
            leaves = tuple(replace(leaf, **stack) for leaf in self.spec.leaves)
            self.spec = replace(self.spec, leaves=leaves)

    def spaces(self) -> tuple[Any, Any]:
        """Return the spaces of one environment's observations and actions."""
        return self._obs_space, self._envs.action_space

    def start(self, episodes: NDArray[np.int64]) -> Obs[NDArray[Any]]:
        """Begin an episode in every env; EnvPool draws their seeds itself.

        Of a pool with another seed, or each session of a run would play the same ones.
        """
        assert len(episodes) == self.num_envs
        if (newest := int(episodes.max(initial=0))) != self._seeded:
            self._envs.close()
            self._envs, self._seeded = self._make(newest), newest
        obs, info = self._envs.reset()
        self._lives = np.asarray(info.get("lives", self._lives))
        self._ended = self._terminated = np.zeros(self.num_envs, np.bool_)
        self._episode = np.array(episodes, np.int64)
        self._steps = np.zeros(self.num_envs, np.int64)
        return self._batch(obs, info)

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step; the actions are copied."""
        check_actions(action, self.num_envs, self.spec)
        decoded = self._action.decode(action)
        self._seeded = -1  # its streams are not at their beginning any more
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
        ended, begins = terminated | truncated, self._ended
        if self._watches_lives:
            lives = np.asarray(info["lives"])
            terminated = terminated | lost_life(self._lives, lives, begins)
            self._lives = lives.copy()
        self._ended, self._terminated = ended, terminated
        self._episode += begins
        self._steps = np.where(begins, 0, self._steps + 1)
        batch = self._batch(obs, info)
        return StepResult(batch, np.asarray(reward, np.float64), terminated, truncated, ended)

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> Obs[NDArray[Any]]:
        """Begin new episodes: EnvPool can neither save a state nor seed an episode."""
        del logs
        return self.start(episodes)

    def _batch(self, obs: Any, info: Any) -> Obs[NDArray[Any]]:
        """Return what policies see of all environments, leaf by leaf."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, keys, form, space in self._arrays:
            try:
                arrays[name] = form.batch(space_at(obs, keys), space)
            except (Misfit, KeyError) as error:
                raise RunFailed(
                    f"{self.spec.env_id} returned an observation that is not in its observation_space"
                    f"{f', its {name}' * bool(name)}: {error}"
                ) from error
        if self._mask is not None:
            held = (obs if self._mask.source == "observation" else info)[self._mask.key]
            arrays[MASK] = self._allowed(self._mask, np.asarray(held))
        return self.spec.obs_of(arrays)

    def _allowed(self, form: MaskFormat, said: NDArray[Any]) -> NDArray[np.bool_]:
        """Return masks [N, M]; where an episode is over, as `row_at_end` has them."""
        rows = said.reshape(self.num_envs, -1).astype(np.bool_)
        for i in np.flatnonzero(self._ended):
            last = {form.key: said[i]}
            row = form.row_at_end(last, terminated=bool(self._terminated[i]))
            rows[i] = np.frombuffer(row, np.bool_)
        try:
            form.check(rows.view(np.uint8))
        except BadMask as error:
            i = error.row
            raise RunFailed(
                f"environment {self._first_env + i}, episode {self._episode[i]}, step {self._steps[i]}: {error}; {flag_of('mask')} "
                "off lets it choose one all the same"
            ) from None
        return rows

    def close(self) -> None:
        """Free the pool and its threads."""
        self._envs.close()


def _protocol_of(env_id: str, settings: EnvConfig) -> AtariProtocol | None:
    """Return the protocol of an Atari game, None of others; refuse settings of what EnvPool does not do."""
    refuse_settings(env_id, settings, ("workers",), "its simulator has threads of its own")
    protocol = None
    if suite_of(env_id) == "atari":
        protocol = atari_protocol(env_id, settings)
        if not protocol.grayscale and protocol.frame_stack > 10:
            raise ConfigError(f"{flag_of('frame_stack')} above 10 needs grey frames in EnvPool")
        if protocol.frame_skip == 1:
            game = env_id.removeprefix("envpool:").removesuffix("-v5")
            raise ConfigError(
                f"{flag_of('frame_skip')} 1 does not apply to {env_id}: EnvPool merges all frames of an episode then; use "
                f"{game}NoFrameskip-v4"
            )
    else:
        refuse_settings(
            env_id,
            settings,
            (*FAMILIES_ONLY, "family", "episode_info"),
            "it is not a family of tasks",
        )
        refuse_of_others(env_id, settings)
    if settings.stuck_steps:
        raise ConfigError(
            f"{flag_of('stuck_steps')} does not apply to {env_id}: EnvPool cannot be told to end an "
            "episode; leave it out, and use --max-episode-steps"
        )
    return protocol


@contextmanager
def _without_remarks() -> Generator[None]:
    """Context without what Gymnasium remarks on bounds in float64 that EnvPool writes into float32 spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered")
        yield


@dataclass(frozen=True, slots=True)
class Told:
    """What EnvPool tells of an id before it is made."""

    family: str = ""
    """Module of its simulator: minigrid, vizdoom."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it has to be told, that policies can act in it."""
    legal: tuple[int, ...] | None = None
    """Shape of the mask of actions beside observations; None: there is none."""


def _look(envpool: Any, env_id: str, name: str, max_episode_steps: int) -> Told:
    """Ask EnvPool what an id is; refuse those that one agent cannot play."""
    try:
        spec = envpool.make_spec(name)
    except RAISED as error:
        raise _unmade(env_id, error) from error
    players = int(getattr(spec.config, "max_num_players", 1))
    if players > 1:
        raise ConfigError(
            f"{env_id} is for {players} players, and gossamer trains one agent; choose an id for one player"
        )
    family = type(spec).__mro__[1].__module__.removeprefix("envpool.").partition(".")[0]
    ends_itself = family in OWN_LIMITS or spec.config.max_episode_steps >= UNLIMITED
    if max_episode_steps and ends_itself:
        raise ConfigError(
            f"--max-episode-steps {max_episode_steps} does not apply to {env_id}: its simulator ends episodes by rules of its "
            "own; leave it out"
        )
    legal = spec.state_array_spec.get(f"info:{LEGAL_MASK}")
    return Told(
        family,
        # Without this a choice of buttons is a Box, whose bounds mean nothing.
        {"use_combined_action": True} if family == "vizdoom" else {},
        None if legal is None else tuple(int(n) for n in legal.shape),
    )


def _protocol(env_id: str, told: Told, limit: int) -> str:
    """Return how an id is played, in words."""
    if limit >= UNLIMITED:
        return f"{env_id}: EnvPool, without a time limit"
    if told.family in OWN_LIMITS:
        return f"{env_id}: EnvPool, with its simulator's time limit of {limit:,} steps"
    return f"{env_id}: EnvPool, truncated after {limit:,} steps"


def _observed(space: Any, family: str) -> Any:
    """Return the space of observations, in which bytes of a text are a text, and tiles of a grid symbols."""
    if family != "minigrid":
        return space
    from gymnasium import spaces

    from gossamer.envs.symbols import with_symbols

    held = dict_of(with_symbols(space))
    if "mission" in held:
        held["mission"] = spaces.Text(held["mission"].shape[0])
    return spaces.Dict([*held.items()])


def _with_mask(env_id: str, spaces: tuple[Any, Any], told: Told, settings: EnvConfig) -> EnvConfig:
    """Return settings that say where masks of actions are, and of what, where they leave that to be found."""
    if settings.mask in (None, "off"):
        return settings
    info = {} if told.legal is None else {MASK: np.zeros(told.legal, np.bool_)}
    found = find_mask(env_id, *spaces, info, settings)
    if found is settings and settings.mask == "info":
        raise ConfigError(
            f"--env.mask info: {env_id} has no {LEGAL_MASK} in its info; use --env.mask observation, or off"
        )
    return found


def _unmade(env_id: str, error: BaseException) -> ConfigError:
    return ConfigError(f"{env_id} cannot be made: {' '.join(str(error).split())}")


def _import_envpool(env_id: str) -> Any:
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra(f"{env_id} needs EnvPool", "envpool") from error
    return envpool  # pyright: ignore[reportUnknownVariableType]


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
