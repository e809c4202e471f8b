"""What passes between an environment and a policy, in words and numbers that a program without gossamer can follow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.envs.atari import (
    MAX_EPISODE_STEPS,
    atari_game,
    atari_protocol,
    emulator_arguments,
    is_atari,
)
from gossamer.envs.making import close_env, make_gym_env, space_of, time_limit, unknown_id
from gossamer.envs.settings import suite_of
from gossamer.envs.spaces import action_format, obs_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gossamer.envs.settings import EnvConfig


@dataclass(frozen=True, slots=True)
class Interface:
    """How an environment is made, and what becomes of its observations and of a policy's actions."""

    environment: dict[str, Any]
    """Function that makes it, and its arguments."""
    observation: dict[str, Any]
    """Shape and type that the environment returns, and the layout that the policy takes; see `Layout`."""
    action: dict[str, Any]
    """Shape, type and bounds that the environment takes, and the number that its first choice has."""
    decode: Callable[[NDArray[Any]], NDArray[Any]]
    """decode(actions of the policy's distribution [N, *action_shape]) -> what the environment takes [N, ...]."""


def read_interface(env_id: str, settings: EnvConfig, max_episode_steps: int = 0) -> Interface:
    """Make one environment, read what passes between it and a policy, and close it; arguments as of `make_vec_env`."""
    if env_id.startswith("envpool:"):
        return _of_envpool(env_id, settings, max_episode_steps)
    if is_atari(env_id):
        return _of_atari(env_id, settings, max_episode_steps)
    env = make_gym_env(env_id, max_episode_steps)
    try:
        return interface_of(
            env_id,
            _making(env_id, env) | _guard(settings.stuck_steps),
            space_of(env_id, env, "observation_space"),
            space_of(env_id, env, "action_space"),
        )
    finally:
        close_env(env_id, env)


def _making(env_id: str, env: Any) -> dict[str, Any]:
    """Return the function that made a Gymnasium environment, and its arguments."""
    module, _, name = env_id.rpartition(":")
    if env.spec is None or name != env.spec.id:
        return {"make": env_id, "arguments": {}, "max_episode_steps": time_limit(env)}
    arguments = {"id": env_id, "max_episode_steps": time_limit(env)}
    made: dict[str, Any] = {"make": "gymnasium.make", "arguments": arguments}
    if not module and str(env.spec.entry_point).startswith("gossamer"):
        made["import"] = "gossamer.envs.multitask"
    return made


def interface_of(
    env_id: str, environment: dict[str, Any], obs_space: Any, action_space: Any
) -> Interface:
    """Return the interface of an environment with these spaces, which `environment` says how to make."""
    obs, action = obs_format(env_id, obs_space), action_format(env_id, action_space)
    observation: dict[str, Any] = {
        "shape": list(obs_space.shape),
        "dtype": str(obs_space.dtype),
        "layout": obs.layout,
    }
    if obs.layout == "one_hot":
        observation |= _choices(obs_space)
    taken: dict[str, Any] = {"shape": list(action_space.shape), "dtype": str(action_space.dtype)}
    if action.spec.kind in ("categorical", "multi_categorical"):
        taken |= _choices(action_space)
    if action.spec.kind == "gaussian":
        taken |= {"low": _bounds(action.spec.low), "high": _bounds(action.spec.high)}
    return Interface(environment, observation, taken, lambda x: np.asarray(action.decode(x)))


def _guard(stuck_steps: int | None) -> dict[str, int]:
    """Return after how many steps without a reward an episode is cut; nothing: it is not."""
    return {"stuck_steps": stuck_steps} if stuck_steps else {}


def _choices(space: Any) -> dict[str, list[int]]:
    """Return how many values each number of a Discrete or MultiDiscrete has, and the first of them."""
    sizes = space.nvec if hasattr(space, "nvec") else space.n
    return {
        "sizes": np.asarray(sizes, np.int64).ravel().tolist(),
        "start": np.asarray(space.start, np.int64).ravel().tolist(),
    }


def _bounds(bounds: tuple[float, ...]) -> list[float | None]:
    """None: JSON has no infinity."""
    return [x if abs(x) < float("inf") else None for x in bounds]


def _of_atari(env_id: str, settings: EnvConfig, max_episode_steps: int) -> Interface:
    protocol = atari_protocol(env_id, settings)
    game = atari_game(env_id)
    if game is None:
        raise unknown_id(env_id)
    names = _action_names(game, full=protocol.full_action_space)
    limit = max_episode_steps or MAX_EPISODE_STEPS
    stack, size = protocol.frame_stack, protocol.size
    environment = {
        "make": "ale_py.vector_env.AtariVectorEnv",
        "arguments": {"game": game, **emulator_arguments(protocol, limit)},
        **_guard(protocol.stuck_steps),
    }
    observation = {
        "shape": [stack, size, size] if protocol.grayscale else [stack, size, size, 3],
        "dtype": "uint8",
        "layout": "reshape" if protocol.grayscale else "frames_channels_first",
        "preprocessing": {
            **{name: x for name, x in asdict(protocol).items() if name != "life_loss_terminal"},
            "maximum_of_last_frames": min(2, protocol.frame_skip),
            "interpolation": "area",
            "oldest_frame": "first",
            "stack_padding": "zero",
        },
    }
    action = {
        "shape": [],
        "dtype": "int64",
        "sizes": [len(names)],
        "start": [0],
        "meanings": names,
    }
    return Interface(environment, observation, action, lambda x: x)


def _action_names(game: str, *, full: bool) -> list[str]:
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale: Any = ale_py.ALEInterface()
    ale.loadROM(roms.get_rom_path(game))
    actions = ale.getLegalActionSet() if full else ale.getMinimalActionSet()
    return [action.name for action in actions]


def _of_envpool(env_id: str, settings: EnvConfig, max_episode_steps: int) -> Interface:
    from gossamer.envs.envpool import EnvpoolEnvs, atari_options
    from gossamer.envs.seeding import EVALUATION_RANK, SeedStream

    envs = EnvpoolEnvs(
        env_id,
        num_envs=1,
        num_threads=1,
        seeds=SeedStream(1, EVALUATION_RANK, 0),
        settings=settings,
        max_episode_steps=max_episode_steps,
        training=False,
    )
    try:
        arguments: dict[str, Any] = {
            "task_id": env_id.removeprefix("envpool:"),
            "max_episode_steps": envs.spec.max_episode_steps,
        }
        if suite_of(env_id) == "atari":
            arguments |= atari_options(atari_protocol(env_id, settings))
        environment = {"make": "envpool.make_gymnasium", "arguments": arguments}
        return interface_of(env_id, environment, *envs.spaces())
    finally:
        envs.close()
