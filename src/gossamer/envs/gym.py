"""Any Gymnasium environment as a `VecEnv`, stepped in the caller's thread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from gossamer.envs.episodes import Episodes, formats_of
from gossamer.envs.families import Family, layers_of, registered_spec
from gossamer.envs.making import (
    let_go,
    make_another,
    make_gym_env,
    refuse_limit,
    spaces_of,
    time_limit,
)
from gossamer.envs.masks import MASK, BadMask
from gossamer.envs.settings import ATARI_ONLY, flag_of, refuse_settings
from gossamer.envs.spaces import Misfit, NestedFormat, check_actions, draw_actions
from gossamer.envs.symbols import tiles_in_numbers
from gossamer.errors import ConfigError
from gossamer.spec import leaves_of
from gossamer.system.importing import RAISED, failed
from gossamer.system.signs_of_life import CLOSE, CONSTRUCTOR, Sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gossamer.envs.masks import MaskFormat
    from gossamer.envs.seeding import SeedStream, Tasks
    from gossamer.envs.settings import EnvConfig
    from gossamer.envs.spaces import ObsFormat
    from gossamer.spec import EnvSpec, Obs
    from gossamer.types import StepResult


class GymEnvs:
    """N Gymnasium environments in the caller's thread, as a `VecEnv`."""

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int,
        seeds: SeedStream,
        tasks: Tasks,
        settings: EnvConfig,
        max_episode_steps: int,
        render_mode: str | None = None,
    ):
        self.sign = Sign(seeds.whose)
        self._episodes = Episodes(
            env_id,
            partial(make_gym_env, env_id, max_episode_steps, render_mode),
            num_envs=num_envs,
            seeds=seeds,
            tasks=tasks,
            settings=refuse_of_others(env_id, settings),
            sign=self.sign,
        )
        self._settings, self._max_episode_steps = self._episodes.settings, max_episode_steps
        self._looked_for_mask = settings.mask == "auto"
        self.num_envs = num_envs
        try:
            self.spec = gym_spec(
                env_id,
                self._episodes.envs[0],
                self._settings,
                unread_masks=self._episodes.unread_masks,
            )
        except BaseException:
            self.close()
            raise
        self._action: NDArray[Any] | None = None

    def start(self, episodes: NDArray[np.int64]) -> Obs[NDArray[Any]]:
        """Begin episode `episodes[i]` in every env i; return first observations."""
        return self._episodes.begin(episodes)

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step; the actions are copied."""
        check_actions(action, self.num_envs, self.spec)
        self._action = action.copy()

    def recv(self) -> StepResult:
        """Finish the step that `send` began."""
        assert self._action is not None, "recv without send"
        action, self._action = self._action, None
        return self._episodes.step(action)

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> Obs[NDArray[Any]]:
        """Begin episodes, replay each env's action log since, return the observations."""
        check_logs(logs, self.spec)
        return self._episodes.begin(episodes, logs)

    def tasks(self) -> NDArray[np.int64]:
        """Return the number of the task that each environment plays."""
        return self._episodes.task.copy()

    def episode_info(self, env: int) -> dict[str, float]:
        """Return what an environment tells of its present episode."""
        return self._episodes.info(env)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the first environment's picture [H, W, 3]; None where a window shows it.

        Raises:
            ConfigError: the environment fails in it.
        """
        try:
            picture = self._episodes.envs[0].render()
            return None if picture is None else _as_bytes(np.asarray(picture))
        except RAISED as error:
            raise failed(self.spec.env_id, "fails in render", error) from error

    def try_out(self, *, alone: bool = False) -> None:
        """Raise ConfigError where the first environment does not do as it should; close it if it does.

        Unless there is to be one `alone`, there must be a new one each time.
        """
        self.sign.env, self.sign.doing = 0, "its first reset and step"
        try:
            refuse_limit(self.spec.env_id, self._episodes.envs[0], self._max_episode_steps)
            looked = self._looked_for_mask
            try_out(
                self.spec.env_id, self._episodes.envs[0], self._settings, looked_for_mask=looked
            )
            self.sign.doing = CLOSE
            first = self._episodes.envs.pop(0)
            try:
                _call(self.spec.env_id, "close", first.close)
                if not alone:
                    # The first one still counts as open, but some simulators bear no open one beside them.
                    self.sign.doing = CONSTRUCTOR
                    make_another(self.spec.env_id, self._max_episode_steps)
            finally:
                let_go(first)
        finally:
            self.sign.doing = ""

    def close(self) -> None:
        """Close every environment."""
        self._episodes.close()


def _as_bytes(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a picture in uint8; refuse one of other numbers, such as from 0 to 1, which would be black."""
    if picture.dtype == np.uint8:
        return picture
    least, largest = picture.min(initial=255), picture.max(initial=0)
    if not (least >= 0 and largest <= 255 and (picture == np.floor(picture)).all()):
        raise ValueError(
            f"a picture holds {picture.dtype} from {least:.3g} to {largest:.3g}; it must be of uint8, whole numbers from 0 to 255"
        )
    return picture.astype(np.uint8)


def refuse_of_others(env_id: str, settings: EnvConfig) -> EnvConfig:
    """Refuse what means nothing outside Atari; return the settings."""
    refuse_settings(env_id, settings, ATARI_ONLY, "it is for Atari ids only")
    if (settings.stuck_steps or 0) < 0:
        raise ConfigError(
            f"{flag_of('stuck_steps')} is {settings.stuck_steps}; allowed is 0 (off) or more"
        )
    return settings


def gym_spec(
    env_id: str, env: Any, settings: EnvConfig, *, unread_masks: Sequence[str] = ()
) -> EnvSpec:
    """Read from an environment what policies and actors must know.

    Args:
        env_id: of the environment.
        env: it.
        settings: which say where its masks are.
        unread_masks: lines about what looks like a mask of actions and is not read.
    """
    family, registered = Family(env_id, env, settings), registered_spec(env)
    limit = time_limit(env)
    cut = f"truncated after {limit:,} steps" if limit else "without a time limit"
    protocol = [f"{env_id}: Gymnasium, {cut}"]
    if family.task_words:
        protocol.append(f"tasks: {family.task_words}")
    return formats_of(env_id, *spaces_of(env_id, env), settings).spec(
        env_id,
        protocol,
        max_episode_steps=limit,
        differs="it is registered as nondeterministic"
        if registered is not None and registered.nondeterministic
        else "",
        family=family.is_one,
        remarks=(*_remarks(env_id, env, family), *unread_masks),
    )


def _remarks(env_id: str, env: Any, family: Family) -> Iterator[str]:
    """Yield what a user may not expect of such an environment."""
    if told := tiles_in_numbers(env_id, env):
        yield told
    if family.uncalled:
        yield (
            f"{env_id} has a method set_task, which is not called; if it is a family of tasks, as set_task(seed) "
            f"chooses one: {flag_of('family')} true"
        )
    if family.unrecorded:
        yield f"{env_id} has a property episode_info, which is not recorded: {flag_of('episode_info')} true, or false"
    advice = {
        NormalizeObservation: "--policy.normalize-obs true",
        NormalizeReward: "--algorithm.value-norm true",
    }
    kept = [kind for kind in advice if any(isinstance(x, kind) for x in layers_of(env))]
    if kept:
        yield (
            f"{' and '.join(kind.__name__ for kind in kept)} keep{'s' * (len(kept) == 1)} statistics in each environment "
            "alone, which no checkpoint holds and an evaluation begins anew: its scores are not comparable with training's, "
            f"nor with one another; leave {'it' if len(kept) == 1 else 'them'} out, and use "
            + " and ".join(advice[kind] for kind in kept)
        )


def try_out(env_id: str, env: Any, settings: EnvConfig, *, looked_for_mask: bool = False) -> None:
    """Begin an episode and take a step: an environment's mistakes show before a run is begun.

    Args:
        env_id: of the environment.
        env: it.
        settings: which say where its masks are.
        looked_for_mask: a mask would have been taken from wherever a first reset has one.

    Raises:
        ConfigError: what it returns is not what Gymnasium and its own spaces promise.
    """
    obs = env.observation_space
    family = Family(env_id, env, settings)
    if family.set_task is not None:
        _call(env_id, "set_task(1)", partial(family.set_task, 1))
    began = _call(env_id, "reset(seed=1)", partial(env.reset, seed=1))
    if not isinstance(began, tuple) or len(began) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(
            f"{env_id}: reset(seed=1) returned {_describe(began)}; it must return two values, "
            "observation and info"
        )
    form, mask, action = formats_of(env_id, *spaces_of(env_id, env), settings)
    _check_obs(env_id, "reset", obs, began[0], form)
    allowed = None
    if mask is not None:
        allowed = _allowed(env_id, mask, began[0] if mask.source == "observation" else began[1])
    first = action.decode(draw_actions(action.spec, 1, None, allowed))[0]
    stepped = _call(env_id, "step", partial(env.step, first))
    if not isinstance(stepped, tuple) or len(stepped) != 5:  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(f"{env_id}: step returned {_describe(stepped)}; {_FIVE_VALUES}")
    _check_obs(env_id, "step", obs, stepped[0], form)
    told: Any = stepped[4]
    if looked_for_mask and mask is None and action.spec.choices and _holds_mask(told):
        raise ConfigError(
            f"{env_id}: the info of step has {MASK}, but that of reset has none, so that nobody would know what the "
            f"first action may be; return it from reset too, or use {flag_of('mask')} off"
        )
    try:
        finite = abs(float(stepped[1])) <= float(np.finfo(np.float32).max)
    except (TypeError, ValueError):
        finite = False
    if not finite:
        raise ConfigError(
            f"{env_id}: step returned the reward {stepped[1]!r}; it must be a finite number of float32"
        )
    if settings.episode_info and family.telling is None:
        raise ConfigError(
            f"{flag_of('episode_info')} is true, but {env_id} has no property episode_info, a dict of numbers; give it one, or "
            "leave the setting out"
        )
    _check_info(env_id, family.telling)


def _holds_mask(info: Any) -> bool:
    return isinstance(info, Mapping) and MASK in info


_FIVE_VALUES = "it must return five values, observation, reward, terminated, truncated and info"


def _call(env_id: str, name: str, method: Callable[[], Any]) -> Any:
    try:
        return method()
    except RAISED as error:
        if isinstance(error, ValueError) and "(expected 5" in str(error) and name == "step":
            # a wrapper took apart what the environment returned
            raise ConfigError(f"{env_id}: step failed ({error}); {_FIVE_VALUES}") from error
        raise failed(env_id, f"fails in {name}", error) from error


def _allowed(env_id: str, mask: MaskFormat, held: Any) -> NDArray[np.bool_]:
    """Return the mask [1, M] that an observation or info holds."""
    try:
        return mask.masks([mask.row(held)])
    except (Misfit, BadMask) as error:
        raise ConfigError(f"{env_id}: reset(seed=1): in its {mask.place}, {error}") from error


def _check_obs(
    env_id: str, name: str, space: Any, obs: Any, form: ObsFormat | NestedFormat
) -> None:
    row: Any = form.empty(1)
    try:
        form.write(row, 0, obs)
    except Exception as error:
        raise ConfigError(
            f"{env_id}: {name} returned {_describe(obs)} as observation, which does not fit its "
            f"observation_space {' '.join(str(space).split())[:80]}: {' '.join(str(error).split())}"
        ) from error
    leaves: Mapping[str, NDArray[Any]] = leaves_of(row)
    for leaf, x in leaves.items():
        if len(bad := np.flatnonzero(~np.isfinite(x))):
            raise ConfigError(
                f"{env_id}: {name} returned an observation{f' {leaf}' * bool(leaf)} whose entry {bad[0]} of {x.size} is "
                f"{x.flat[bad[0]]}; it must be a finite number"
            )


def _check_info(env_id: str, layer: Any) -> None:
    if layer is None:
        return
    told = _call(env_id, "episode_info", lambda: layer.episode_info)
    try:
        right = isinstance(told, Mapping) and all(
            isinstance(name, str) and "," not in name and not np.isinf(float(number))
            for name, number in told.items()
        )
    except (TypeError, ValueError):
        right = False
    if not right:
        raise ConfigError(
            f"{env_id}: episode_info is {told!r:.100}; it must be a dict of numbers, finite or NaN, by "
            "names without commas"
        )


def _describe(x: Any) -> str:
    if isinstance(x, tuple):
        return f"{len(x)} values"  # pyright: ignore[reportUnknownArgumentType]
    shape = getattr(x, "shape", ())
    return f"{type(x).__name__} of shape {shape}" if shape else f"{type(x).__name__} {str(x)[:40]}"


def check_logs(logs: list[NDArray[Any]], spec: EnvSpec) -> None:
    """Raise ValueError unless every action of every log is one the environment takes."""
    for log in logs:
        if len(log):
            check_actions(log, len(log), spec)
