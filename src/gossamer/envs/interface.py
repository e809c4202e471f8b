"""What passes between an environment and a policy, in words and numbers that a program without gossamer can follow."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from gossamer.envs.atari import (
    atari_game,
    atari_protocol,
    emulator_arguments,
)
from gossamer.envs.episodes import Formats, formats_of
from gossamer.envs.families import registered_spec
from gossamer.envs.gym import gym_spec, refuse_of_others
from gossamer.envs.making import (
    close_env,
    make_gym_env,
    module_of,
    spaces_of,
    time_limit,
)
from gossamer.envs.masks import MASK
from gossamer.envs.registry import masked_as, read_spec
from gossamer.envs.settings import EnvConfig, is_atari
from gossamer.envs.spaces import (
    NestedFormat,
    action_format,
    choices_of,
    dict_of,
    frames_format,
    parts_in,
    space_at,
)
from gossamer.envs.symbols import Symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gossamer.envs.masks import MaskFormat
    from gossamer.envs.spaces import ActionFormat, ObsFormat
    from gossamer.spec import ActionSpec, EnvSpec

MOST_NUMBERS = 2**30
"""Largest size of an observation or action that is believed."""
MOST_LEVELS, MOST_ITEMS = 32, 4096
"""Depth of nested observations and actions, and items of their Tuples together, that are believed."""


@dataclass(frozen=True, slots=True)
class Interface:
    """How an environment is made, and what becomes of its observations and of a policy's actions."""

    environment: dict[str, Any]
    """Function that makes it, and its arguments; of a family also what chooses a task, `task_seed`, for its set_task."""
    observation: dict[str, Any]
    """Shape and type that the environment returns, and the layout that the policy takes, see `Layout`; of a Dict or Tuple
    those of each array, as `leaves`, with the keys that lead to it."""
    action: dict[str, Any]
    """Shape, type and bounds that the environment takes, and the number that its first choice has; of a Dict or Tuple those
    of each part, as `parts`, with the keys that lead to it."""
    observation_space: spaces.Space[Any]
    """Of one environment."""
    action_space: spaces.Space[Any]
    """Of one environment."""
    obs_format: ObsFormat | NestedFormat
    """How an observation is written into a policy's batch."""
    action_format: ActionFormat
    """How a batch of actions of the policy's distribution becomes what the environment takes."""
    mask: MaskFormat | None = None
    """How what the environment says of its actions becomes a policy's mask; None: all are allowed."""


def read_interface(
    env_id: str, settings: EnvConfig, max_episode_steps: int = 0
) -> tuple[EnvSpec, Interface]:
    """Make one environment, read what passes between it and a policy, and close it; arguments as of `make_vec_env`."""
    if env_id.startswith("envpool:"):
        return _of_envpool(env_id, settings, max_episode_steps)
    if is_atari(env_id):
        return _of_atari(env_id, settings, max_episode_steps)
    env = make_gym_env(env_id, max_episode_steps)
    try:
        spec = gym_spec(env_id, env, refuse_of_others(env_id, settings))
        return spec, interface_of(
            env_id,
            _making(env_id, env) | _guard(settings.stuck_steps),
            *spaces_of(env_id, env),
            spec,
        )
    finally:
        close_env(env_id, env)


def _making(env_id: str, env: Any) -> dict[str, Any]:
    """Return the function that made a Gymnasium environment, and its arguments."""
    module, _, name = env_id.rpartition(":")
    registered = registered_spec(env)
    if registered is None or name != registered.id:
        return {"make": env_id, "arguments": {}, "max_episode_steps": time_limit(env)}
    # Gymnasium's word for no limit is -1.
    arguments = {"id": env_id, "max_episode_steps": time_limit(env) or -1}
    made: dict[str, Any] = {"make": "gymnasium.make", "arguments": arguments}
    if not module and str(registered.entry_point).startswith("gossamer"):
        made["import"] = "gossamer.envs.multitask"
    elif not module and (needed := module_of(name)):
        made["import"] = needed
    return made


def interface_of(
    env_id: str,
    environment: dict[str, Any],
    obs_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    spec: EnvSpec | None = None,
) -> Interface:
    """Return the interface of an environment with these spaces, which `environment` says how to make.

    `spec` says where it tells which actions are allowed, if it does.
    """
    if is_atari(env_id) and len(obs_space.shape or ()) == 4:
        formats = Formats(frames_format(obs_space), None, action_format(env_id, action_space))
    else:
        settings = EnvConfig() if spec is None else masked_as(EnvConfig(mask="auto"), spec)
        formats = formats_of(env_id, obs_space, action_space, settings)
    obs, mask, action = formats
    observation: dict[str, Any] = {}
    if isinstance(obs, NestedFormat):
        observation["leaves"] = [
            {"keys": list(keys), **_layout_of(form, space_at(obs_space, keys))}
            for keys, form in obs.parts.values()
        ]
    else:
        observation = _layout_of(obs, obs_space)
    taken: dict[str, Any] = {}
    if action.spec.kind == "joint":
        each = zip(parts_in(env_id, action_space), action.spec.each, strict=True)
        taken["parts"] = [
            {"keys": list(keys), "kind": spec.kind, **_taken(spec, one)}
            for (keys, one), spec in each
        ]
    else:
        taken = _taken(action.spec, action_space)
    return Interface(environment, observation, taken, obs_space, action_space, obs, action, mask)


def _layout_of(form: ObsFormat, space: Any) -> dict[str, Any]:
    """Return the shape and type of an array that the environment returns, and the layout that the policy takes."""
    told: dict[str, Any] = {
        "shape": list(form.declared),
        "dtype": str(space.dtype),
        "layout": form.layout,
    }
    return told | _choices(space) if form.layout in ("one_hot", "from_zero") else told


def _taken(spec: ActionSpec, space: Any) -> dict[str, Any]:
    """Return the shape and type of an action that the environment takes, and its bounds or its choices."""
    told: dict[str, Any] = {"shape": list(space.shape or ()), "dtype": str(space.dtype)}
    if spec.choices:
        # Its type can hold its bounds, but not how many numbers lie between them.
        box = {"space": "Box"} if isinstance(space, spaces.Box) else {}
        return told | _choices(space) | box
    if spec.kind == "gaussian":
        return told | {"low": _bounds(spec.low), "high": _bounds(spec.high)}
    return told


def interface_from(
    env_id: str, description: Mapping[str, Any], spec: EnvSpec | None = None
) -> Interface:
    """Return the interface that an exported policy's description tells of, under the names that `Interface` has.

    `spec` says where the environment tells which actions are allowed, if it does.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    obs, action = description["observation"], description["action"]
    observed = _nested_space(obs["leaves"]) if "leaves" in obs else _space(obs)
    taken = _nested_space(action["parts"]) if "parts" in action else _space(action)
    if spec is not None and spec.mask is not None and spec.mask_from == "observation":
        held = dict_of(observed) | {MASK: spaces.MultiBinary(spec.mask.shape)}
        observed = spaces.Dict(list(held.items()))
    return interface_of(env_id, dict(description["environment"]), observed, taken, spec)


def _nested_space(leaves: Iterable[Mapping[str, Any]]) -> spaces.Space[Any]:
    """Return a space that holds arrays by the keys that lead to each."""
    found = [(tuple(leaf["keys"]), _space(leaf)) for leaf in leaves]
    if sum(math.prod(space.shape or ()) for _, space in found) > MOST_NUMBERS:
        raise ValueError("its spaces are too large")
    if any(not 0 < len(keys) <= MOST_LEVELS for keys, _ in found):
        raise ValueError("its spaces are not where keys lead")
    return _space_below(found, [MOST_ITEMS])


def _space_below(
    found: list[tuple[tuple[Any, ...], spaces.Space[Any]]], left: list[int]
) -> spaces.Space[Any]:
    """Return what holds spaces by keys; `left` is how many items Tuples may still have."""
    if len(found) == 1 and not found[0][0]:
        return found[0][1]
    below: dict[Any, list[tuple[tuple[Any, ...], spaces.Space[Any]]]] = {}
    for keys, space in found:
        if not keys:
            raise ValueError("two of its spaces are in the same place")
        below.setdefault(keys[0], []).append((keys[1:], space))
    held = {key: _space_below(rest, left) for key, rest in below.items()}
    if all(isinstance(key, str) for key in held):
        return spaces.Dict(list(held.items()))
    if any(type(key) is not int or not 0 <= key < MOST_ITEMS for key in held):
        raise ValueError("its spaces are not where keys lead")
    left[0] -= max(held) + 1
    if left[0] < 0:
        raise ValueError("its Tuples are too long")
    # The other items were left out: no network takes them.
    return spaces.Tuple([held.get(i, _LEFT_OUT) for i in range(max(held) + 1)])


_LEFT_OUT = spaces.Text(1)


def _space(told: Mapping[str, Any]) -> spaces.Space[Any]:
    """Return a space that a description tells of: of observations, the numbers that its type has."""
    shape, dtype = tuple(int(n) for n in told["shape"]), np.dtype(str(told["dtype"]))
    if dtype.kind not in "biuf" or math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"there is no space of {dtype} {list(shape)}")
    if "sizes" in told:
        sizes, start = (np.asarray(told[name], np.int64) for name in ("sizes", "start"))
        if told.get("space") == "Box":
            low, high = (x.astype(dtype).reshape(shape) for x in (start, start + sizes - 1))
            return spaces.Box(low, high, dtype=dtype.type)
        if not shape:
            return spaces.Discrete(int(sizes[0]), start=int(start[0]))
        # Beside others, whole numbers that are told as zeros and ones are symbols; alone they all are.
        kind = Symbols if told.get("layout") == "one_hot" else spaces.MultiDiscrete
        return kind(sizes.reshape(shape), dtype.type, start=start.reshape(shape))
    if "low" in told:
        low, high = (
            np.array([end if x is None else x for x in told[name]], dtype).reshape(shape)
            for name, end in (("low", -np.inf), ("high", np.inf))
        )
        return spaces.Box(low, high, dtype=dtype.type)
    if "layout" not in told:
        return spaces.MultiBinary(shape)
    least, most = (-np.inf, np.inf) if dtype.kind == "f" else (0, 1)
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(least, most, shape, dtype.type)


def _guard(stuck_steps: int | None) -> dict[str, int]:
    """Return after how many steps without a reward an episode is cut; nothing: it is not."""
    return {"stuck_steps": stuck_steps} if stuck_steps else {}


def _choices(space: Any) -> dict[str, list[int]]:
    """Return how many values each number of a Discrete or MultiDiscrete has, and the first of them."""
    held = choices_of(space) or (np.array([space.n]), np.array([space.start]))
    return {name: x.tolist() for name, x in zip(("sizes", "start"), held, strict=True)}


def _bounds(bounds: tuple[float, ...]) -> list[float | None]:
    """None: JSON has no infinity."""
    return [x if abs(x) < float("inf") else None for x in bounds]


def _of_atari(
    env_id: str, settings: EnvConfig, max_episode_steps: int
) -> tuple[EnvSpec, Interface]:
    spec = read_spec(env_id, settings, max_episode_steps)
    protocol = atari_protocol(env_id, settings)
    game = atari_game(env_id)
    assert game is not None, "it could be made"
    names = _action_names(game, full=protocol.full_action_space)
    stack, size = protocol.frame_stack, protocol.size
    environment = {
        "make": "ale_py.vector_env.AtariVectorEnv",
        "arguments": {"game": game, **emulator_arguments(protocol, spec.max_episode_steps)},
        **_guard(protocol.stuck_steps),
    }
    shape = (stack, size, size) if protocol.grayscale else (stack, size, size, 3)
    frames, actions = spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(len(names))
    found = interface_of(env_id, environment, frames, actions)
    found.observation["preprocessing"] = {
        **{name: x for name, x in asdict(protocol).items() if name != "life_loss_terminal"},
        "maximum_of_last_frames": min(2, protocol.frame_skip),
        "interpolation": "area",
        "oldest_frame": "first",
        "stack_padding": "zero",
    }
    found.action["meanings"] = names
    return spec, found


def _action_names(game: str, *, full: bool) -> list[str]:
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale: Any = ale_py.ALEInterface()
    ale.loadROM(roms.get_rom_path(game))
    actions = ale.getLegalActionSet() if full else ale.getMinimalActionSet()
    return [action.name for action in actions]


def _of_envpool(
    env_id: str, settings: EnvConfig, max_episode_steps: int
) -> tuple[EnvSpec, Interface]:
    from gossamer.envs.envpool import EnvpoolEnvs
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
            **envs.options,
        }
        environment = {"make": "envpool.make_gymnasium", "arguments": arguments}
        return envs.spec, interface_of(env_id, environment, *envs.spaces(), envs.spec)
    finally:
        envs.close()
