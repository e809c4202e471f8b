"""From an id to a Gymnasium environment, and from a mistyped id to the ones that were meant."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from gossamer.envs.atari import atari_ids
from gossamer.envs.settings import suite_of
from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.system.devices import default_device_kept
from gossamer.system.importing import RAISED, as_module, failed, hidden_by, import_module
from gossamer.system.reading import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

LOOK_SECONDS = 60.0
"""Longest wait for a process that looks which ids it knows."""
UNLIMITED_STEPS = 1_000
"""Time limit given to an environment that has none."""
_OPEN: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Environments of this process that have not been closed, without their wrappers, by id()."""


@default_device_kept()
def make_gym_env(env_id: str, max_episode_steps: int, render_mode: str | None = None) -> Any:
    """Make one environment from an id, "module:Id-v0" or "module:function", with a time limit.

    Args:
        env_id: what to make.
        max_episode_steps: replaces the limit an id is registered with; 0 keeps it (1,000 if none).
        render_mode: Gymnasium's; None for no pictures.
    """
    import gymnasium

    from gossamer.envs.symbols import shown_with_symbols

    module_name, _, name = env_id.rpartition(":")
    if module_name.endswith(".py"):
        raise ConfigError(
            f"{env_id} is not an environment: write the module without .py: {as_module(module_name)}:{name}"
        )
    if module_name:
        module = import_module(module_name, env_id, "an environment")
        if name not in gymnasium.registry:
            return _call_maker(module, env_id, max_episode_steps, render_mode)
    _register_package(name)
    if name not in _registered_ids():
        raise unknown_id(env_id)
    registered = gymnasium.registry[name]
    limit = max_episode_steps or registered.max_episode_steps
    try:
        if suite_of(name) == "mujoco":
            _hear_mujoco()
        # the checker costs as much as a step of CartPole; it is for those who write environments
        shown = {} if render_mode is None else {"render_mode": render_mode}
        if name.startswith("Vizdoom"):  # which writes its settings into a file where it runs
            shown["doom_config_path"] = os.devnull
        env = gymnasium.make(name, max_episode_steps=limit, disable_env_checker=True, **shown)
        env = shown_with_symbols(env)
    except gymnasium.error.DependencyNotInstalled as error:
        suite = suite_of(name)
        if suite in _ENGINES:
            raise MissingExtra(f"{name} needs {_ENGINES[suite]}", suite) from error
        raise ConfigError(f"{name} cannot be made: {' '.join(str(error).split())}") from error
    except (gymnasium.error.Error, ImportError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be made: {message}{_suggestion(name)}") from error
    except RAISED as error:
        raise failed(env_id, "cannot be made", error) from error
    _hold(env_id, env)
    # Also -1, by which an id says that it has none.
    return env if limit else _limited(env)


class _Package(NamedTuple):
    """A package that registers ids with Gymnasium when it is imported."""

    prefixes: tuple[str, ...]
    """Of its ids, in lower case."""
    module: str
    name: str
    extra: str


_PACKAGES = (
    _Package(("minigrid-", "babyai-"), "minigrid", "MiniGrid", "minigrid"),
    _Package(("vizdoom",), "vizdoom.gymnasium_wrapper", "ViZDoom", "vizdoom"),
)


def _package_of(env_id: str) -> _Package | None:
    """Return the package that an id belongs to by its spelling."""
    return next((x for x in _PACKAGES if env_id.lower().startswith(x.prefixes)), None)


def module_of(env_id: str) -> str:
    """Return the module whose import registers an id with Gymnasium; nothing where none is needed or known."""
    package = _package_of(env_id)
    return "" if package is None else package.module


def _register_package(env_id: str) -> None:
    """Import the package whose ids are spelt like this one."""
    import gymnasium

    package = _package_of(env_id)
    if package is None or env_id in gymnasium.registry:
        return
    try:
        importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{env_id} needs {package.name}", package.extra) from error
    except RAISED as error:
        raise failed(env_id, "cannot be made", error) from error


def _own_limit(env: Any) -> int:
    """Return after how many steps MiniGrid or ViZDoom truncates an episode by itself; 0: not known, or another one."""
    inner = env.unwrapped
    if not any(x.__module__.startswith(("minigrid.", "vizdoom.")) for x in type(inner).__mro__):
        return 0
    if (game := getattr(inner, "game", None)) is not None:
        return math.ceil(game.get_episode_timeout() / inner.frame_skip)
    if not getattr(inner, "fixed_max_steps", True):
        return 0  # each mission of a BabyAI level has its own
    return int(getattr(inner, "max_steps", 0))


def refuse_limit(env_id: str, env: Any, asked: int) -> None:
    """Refuse a limit, one of an environment's wrappers by now, that no episode reaches: it is truncated before."""
    least = min((x for x in (time_limit(env), _own_limit(env)) if x), default=0)
    if asked > least > 0:
        raise ConfigError(
            f"--max-episode-steps {asked} does not apply to {env_id}, which truncates episodes after {least} steps by itself; "
            f"use at most {least}, or leave it out"
        )


_ENGINES = {"box2d": "Box2D", "mujoco": "MuJoCo"}
"""Simulators that an extra of the suite's name installs."""


def _hear_mujoco() -> None:
    """Print MuJoCo's warnings once each; by itself it repeats them and writes a file where it runs."""
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError:
        return  # told where the environment is made
    mujoco.set_mju_user_warning(_print_once)


_HEARD: set[str] = set()


def _print_once(text: str) -> None:
    # deprecated are attributes of the models that come with Gymnasium
    if "deprecated" not in text:
        _tell_once(f"MuJoCo: {text}")


def _tell_once(text: str) -> None:
    kind = re.sub(r"\d+(\.\d+)?", "", text)  # the time and the joint differ each time
    if kind not in _HEARD:
        _HEARD.add(kind)
        with suppress(OSError, ValueError):  # nobody may be there to read it
            sys.stderr.write(f"{text}\n")


def _call_maker(
    module: ModuleType, env_id: str, max_episode_steps: int, render_mode: str | None
) -> Any:
    import gymnasium
    from gymnasium.wrappers import TimeLimit

    from gossamer.envs.symbols import shown_with_symbols

    name = env_id.rpartition(":")[2]
    maker = getattr(module, name, None)
    if not callable(maker):
        near = _nearest_maker(module, name)
        meant = f"; did you mean {module.__name__}:{near}?" if near else ""
        raise ConfigError(
            f"{env_id} is not an environment: {module.__name__} neither registers an id {name} nor has "
            f"a function of that name{hidden_by(module) or meant}"
        )
    parameters = _parameters(maker)
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"{env_id} needs {', '.join(needed)}; it must take no arguments, or only some with "
            f"defaults: def {name}({needed[0]}=...)"
        )
    takes_mode = render_mode is not None and "render_mode" in parameters
    try:
        env = maker(render_mode=render_mode) if takes_mode else maker()
    except RAISED as error:
        raise failed(env_id, "cannot be made", error) from error
    if not isinstance(env, gymnasium.Env):
        kind, meant = type(env).__name__, ""
        if isinstance(env, gymnasium.vector.VectorEnv):
            meant = ", one alone: --env.workers N steps copies of it in N processes"
        elif hasattr(env, "step"):  # of gym, or of nobody's
            meant = (
                "; wrap it in one, whose reset(seed, options) returns an observation and an info, and whose step "
                "returns five values"
            )
        raise ConfigError(f"{env_id} returned {kind}; it must return a gymnasium.Env{meant}")
    _hold(env_id, env)  # pyright: ignore[reportUnknownArgumentType]
    if render_mode == "human" and not takes_mode and env.render_mode is None:
        close_env(env_id, env)
        raise ConfigError(
            f"{env_id} cannot be shown: {name} must take render_mode, and hand it to the environment that it makes"
        )
    shown = shown_with_symbols(env)  # pyright: ignore[reportUnknownArgumentType]
    return TimeLimit(shown, max_episode_steps) if max_episode_steps else _limited(shown)


def _limited(env: Any) -> Any:
    """Return an environment with a time limit: its own, which a function behind an id may have set too, or one for it."""
    from gymnasium.wrappers import TimeLimit

    return env if time_limit(env) else TimeLimit(env, _own_limit(env) or UNLIMITED_STEPS)


def _parameters(maker: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some that are written in C do not tell
        return {}


def _nearest_maker(module: ModuleType, name: str) -> str | None:
    makers = {known.lower(): known for known, held in vars(module).items() if callable(held)}
    found = difflib.get_close_matches(name.lower(), makers, n=1)
    return makers[found[0]] if found else None


def space_of(env_id: str, env: Any, name: str) -> Any:
    """Return an environment's `observation_space` or `action_space`; ConfigError if it has none."""
    try:
        return getattr(env, name)
    except AttributeError as error:
        raise ConfigError(
            f"{env_id} has no {name}; give it one in __init__, such as self.{name} = "
            f"gymnasium.spaces.{'Discrete(2)' if name == 'action_space' else 'Box(-1.0, 1.0, (3,))'}"
        ) from error
    except RAISED as error:
        raise failed(env_id, f"fails in {name}", error) from error


def spaces_of(env_id: str, env: Any) -> tuple[Any, Any]:
    """Return an environment's spaces of observations and of actions; ConfigError if it lacks one."""
    return space_of(env_id, env, "observation_space"), space_of(env_id, env, "action_space")


def close_env(env_id: str, env: Any) -> None:
    """Close an environment; where that fails, one line tells it, and nothing else is lost."""
    try:
        env.close()
    except RAISED as error:
        _tell_once(f"gossamer: {failed(env_id, 'fails in close', error)}")
    finally:
        let_go(env)


def make_another(env_id: str, max_episode_steps: int) -> None:
    """Call a function of the user's again, and close what it makes; ConfigError if that counts as open already."""
    module, _, name = env_id.rpartition(":")
    maker = getattr(sys.modules.get(module), name, None)
    if maker is not None and not isinstance(maker, type):  # a class makes a new one at every call
        close_env(env_id, make_gym_env(env_id, max_episode_steps))


def let_go(env: Any) -> None:
    """Count an environment as closed; what makes environments may return it again."""
    _OPEN.pop(id(_innermost(env)), None)


def _hold(env_id: str, env: Any) -> None:
    """Count an environment as open; refuse one that is: who steps it would step somebody else's episode."""
    innermost = _innermost(env)
    if _OPEN.get(id(innermost)) is innermost:
        raise ConfigError(
            f"{env_id} returned the same environment object twice; it must create a new one at every call"
        )
    _OPEN[id(innermost)] = innermost


def _innermost(env: Any) -> Any:
    from gossamer.envs.families import layers_of

    *_, innermost = layers_of(env)
    return innermost


def time_limit(env: Any) -> int:
    """Return the least time limit among an environment's wrappers, in env steps; 0 for none."""
    from gymnasium.wrappers import TimeLimit

    from gossamer.envs.families import layers_of

    limits = [x for x in layers_of(env) if isinstance(x, TimeLimit)]
    return min((int(x._max_episode_steps) for x in limits), default=0)  # noqa: SLF001 - kept nowhere else


def registered_here_alone(env_id: str) -> bool:
    """Whether an id is registered with Gymnasium by this program, so that a process which begins afresh does not know it."""
    import gymnasium

    registered = gymnasium.registry.get(env_id)
    if registered is None:
        return False
    maker = registered.entry_point
    module = maker.partition(":")[0] if isinstance(maker, str) else getattr(maker, "__module__", "")
    if module.partition(".")[0] in ("gymnasium", "gossamer", "ale_py", "minigrid", "vizdoom"):
        return False
    # A package may register its ids wherever Gymnasium is imported.
    look = f"import sys, gymnasium; sys.exit({env_id!r} not in gymnasium.registry)"
    try:
        asked = [sys.executable, "-c", look]
        return subprocess.run(asked, capture_output=True, timeout=LOOK_SECONDS).returncode == 1
    except (OSError, subprocess.TimeoutExpired):
        return False


def known_ids() -> list[str]:
    """Return every id that can be trained: Gymnasium's, and Atari's where ale-py is installed."""
    return sorted({*_registered_ids(), *atari_ids()})


def _registered_ids() -> list[str]:
    import gymnasium

    from gossamer.envs import multitask

    multitask.register()
    # importing ale-py registers ids without preprocessing, in protocols that we do not have
    return [
        name
        for name, registered in gymnasium.registry.items()
        if not str(registered.entry_point).startswith("ale_py")
    ]


def nearest_ids(env_id: str) -> list[str]:
    """Return up to three other known ids spelt like this one: those of the same name, newest first, then similar."""
    known = [name for name in known_ids() if name != env_id]
    if exact := [name for name in known if name.lower() == env_id.lower()]:
        return exact
    wanted = _bare_name(env_id)
    same = [name for name in known if _bare_name(name) == wanted]
    same.sort(key=_version, reverse=True)
    folded = {name.lower(): name for name in known}
    similar = difflib.get_close_matches(env_id.lower(), folded, n=3)
    return list(dict.fromkeys([*same, *(folded[name] for name in similar)]))[:3]


def _version(env_id: str) -> int:
    version = env_id.rpartition("-v")[2]
    return int(version) if version.isdigit() else -1


def _bare_name(env_id: str) -> str:
    name, dash, version = env_id.lower().removeprefix("ale/").rpartition("-v")
    bare = name if dash and version.isdigit() else env_id.lower()
    return bare.removesuffix("noframeskip")


def refuse_unknown(env_id: str) -> None:
    """Refuse an id that nobody registered; one of a module's is not looked up, as that would import the module."""
    if ":" in env_id:
        return
    _register_package(env_id)
    if env_id not in known_ids():
        raise unknown_id(env_id)


def unknown_id(env_id: str) -> ConfigError:
    """Return the error for an id that nobody registered."""
    return ConfigError(f"unknown environment {env_id!r}{_suggestion(env_id)}")


def _suggestion(env_id: str) -> str:
    near = nearest_ids(env_id)
    module, dot, function = env_id.rpartition(".")
    if function == "py":
        return f"; an environment of your own is written {as_module(env_id)}:FUNCTION"
    if function in ("toml", "json"):
        return f"; a file of settings is given with --config {quoted(env_id)}"
    if not near and env_id.isidentifier() and Path(f"{env_id}.py").is_file():
        return f"; an environment of your own is written {env_id}:FUNCTION"
    if dot and not near and env_id.replace(".", "").isidentifier():
        return f"; an environment of your own is written {module}:{function}"
    return f"; did you mean {' or '.join(near)}?" if near else "; `gossamer list` names some"
