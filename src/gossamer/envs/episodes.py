"""Gymnasium environments stepped in a loop, every episode begun from its own seed.

An episode is thereby a function of its seed and its actions, which is what exact resuming needs.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gossamer.envs.families import Family
from gossamer.envs.making import close_env, space_of, spaces_of
from gossamer.envs.masks import MASK, BadMask, find_mask, mask_format, unread_masks
from gossamer.envs.spaces import Misfit, NestedFormat, action_format, dict_of, obs_format
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import Stopped
from gossamer.spec import EnvSpec, leaves_of
from gossamer.system.importing import RAISED, readable
from gossamer.system.signs_of_life import CLOSE, CONSTRUCTOR
from gossamer.types import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gossamer.envs.masks import MaskFormat
    from gossamer.envs.seeding import SeedStream, Tasks
    from gossamer.envs.settings import EnvConfig
    from gossamer.envs.spaces import ActionFormat, ObsFormat
    from gossamer.spec import Obs
    from gossamer.system.signs_of_life import Sign


class Formats(NamedTuple):
    """How an environment's observations, masks and actions become a policy's, and its actions the environment's."""

    obs: ObsFormat | NestedFormat
    mask: MaskFormat | None
    """None: all actions are allowed, always."""
    action: ActionFormat

    def spec(self, env_id: str, protocol: Iterable[str], **facts: Any) -> EnvSpec:
        """Return the spec that has these formats; `protocol`: how it is played, in words, `facts`: its other fields."""
        obs, mask, words = self.obs, self.mask, [*protocol]
        if isinstance(obs, NestedFormat) and obs.left_out:
            words.append(f"not observed: {', '.join(obs.left_out)}")
        if mask is not None:
            words.append(f"actions masked as its {mask.source} says")
        return EnvSpec(
            env_id=env_id,
            leaves=obs.leaves if mask is None else (*obs.leaves, mask.leaf),
            action=self.action.spec,
            protocol="; ".join(words),
            observes=obs.words,
            mask_from="" if mask is None else mask.source,
            mask_form="" if mask is None else "joint" if mask.joint else "parts",
            **facts,
        )


def formats_of(env_id: str, space: Any, actions: Any, settings: EnvConfig) -> Formats:
    """Choose the formats of observations and actions of these spaces; settings say where masks are."""
    source = settings.mask
    if source not in ("observation", "info"):
        if settings.mask_form is not None:
            raise ConfigError(
                f"--env.mask-form {settings.mask_form}: {env_id} has no mask of actions; leave it out"
            )
        return Formats(obs_format(env_id, space), None, action_format(env_id, actions))
    if source == "observation" and MASK not in dict_of(space):
        raise ConfigError(
            f"--env.mask observation: {env_id} observes no {MASK} at the top of a Dict; use --env.mask info, or off"
        )
    joint = settings.mask_form == "joint"
    mask = mask_format(env_id, source, actions, joint=joint)
    action = action_format(env_id, actions, joint=joint)
    # No leaf is called as the mask is, wherever that is said.
    return Formats(obs_format(env_id, space, without=MASK), mask, action)


def with_mask(env_id: str, env: Any, settings: EnvConfig) -> tuple[EnvConfig, tuple[str, ...]]:
    """Find masks of actions at a first reset, where settings leave that to be found.

    Returns:
        Settings that say where masks are, and of what; and lines about what looks like a mask and is not read.

    Raises:
        ConfigError: the environment has a mask that does not fit its actions.
    """
    if settings.mask in (None, "off") or (settings.mask != "auto" and settings.mask_form):
        return settings, ()
    family, info = Family(env_id, env, settings), dict[str, Any]()
    with suppress(*RAISED):  # which trying it out tells better
        if family.set_task is not None:
            family.set_task(1)
        _, told = env.reset(seed=1)
        info = dict(told)
    # Where one was asked for and is missing, the first reset says so.
    found = find_mask(env_id, *spaces_of(env_id, env), info, settings)
    return found, tuple(unread_masks(env_id, env, info)) if found.mask == "off" else ()


class Episodes:
    """N environments of one kind, one after another in this thread."""

    def __init__(
        self,
        env_id: str,
        make_env: Callable[[], Any],
        *,
        num_envs: int,
        seeds: SeedStream,
        tasks: Tasks,
        settings: EnvConfig,
        sign: Sign,
    ):
        self._sign = sign
        self._seeds = seeds
        self._tasks = tasks
        self._stuck_steps = settings.stuck_steps or 0
        self._env_id = env_id
        self.envs: list[Any] = []
        try:
            for i in range(num_envs):
                self._refuse_unwanted()
                self._begins(i, CONSTRUCTOR)
                self.envs.append(make_env())
            sign.doing = ""
            settings, self.unread_masks = with_mask(env_id, self.envs[0], settings)
            spaces = spaces_of(env_id, self.envs[0])
            self.obs, self.mask, self.action = formats_of(env_id, *spaces, settings)
            for env in self.envs:  # observations show by themselves where they do not fit
                if (other := space_of(env_id, env, "action_space")) != spaces[1]:
                    raise ConfigError(
                        f"{env_id} has the action_space {spaces[1]} once and {other} another time; it must be the same each time"
                    )
            self._families = [Family(env_id, env, settings) for env in self.envs]
        except BaseException:  # Ctrl-C among them: some take long to make
            self.close()  # what has been made; a simulator may be a process of its own
            raise
        finally:
            sign.doing = ""
        self.settings = settings
        self._vectors = [x.name for x in self.obs.leaves if x.kind == "vector"]
        self.task = np.full(num_envs, -1 if self._families[0].is_one else 0)
        """[N] number of the task that each environment plays; -1 before its first."""
        self._episode = [0] * num_envs
        self._ended = [False] * num_envs
        self._quiet_steps = [0] * num_envs
        self._steps = np.zeros(num_envs, np.int64)
        self._batch: Any = None  # observations that are being written, [N, *shape] of each leaf
        self._masks = [b""] * num_envs  # and their masks

    def _written(self) -> Obs[NDArray[Any]]:
        """Return the observations that were written; they are looked at together, as that is quicker."""
        batch, self._batch = self._batch, None
        self._refuse_not_finite(batch)
        if self.mask is None:
            return batch
        try:
            return {**leaves_of(batch), MASK: self.mask.masks(self._masks)}
        except BadMask as error:
            raise self._of_mask(error.row, str(error)) from None

    def begin(
        self, episodes: NDArray[np.int64], logs: Sequence[NDArray[Any]] | None = None
    ) -> Obs[NDArray[Any]]:
        """Begin the given episodes, replay the actions logged since, return the observations."""
        self._batch = self.obs.empty(len(self.envs))
        for i, episode in enumerate(episodes.tolist()):
            self._refuse_unwanted()
            self._begins(i, "reset")
            self._episode[i] = episode
            try:
                self._reset(i)
                if logs is None or not len(logs[i]):
                    continue
                for action in self.action.decode(logs[i]):
                    self._begins(i, "step")
                    self._steps[i] += 1
                    _, terminated, truncated = self._step(i, action)
                    self._ended[i] = terminated or truncated
            except Misfit as error:
                raise self._misfit(i, error) from error
            except RunFailed:
                self._sign.doing = ""
                raise
            except RAISED as error:
                raise self._failure(i) from error
        self._sign.doing = ""
        return self._written()

    def step(self, actions: NDArray[Any]) -> StepResult:
        """Step every environment; begin the next episode in those whose last one is over."""
        num_envs = len(self.envs)
        self._batch = self.obs.empty(num_envs)
        reward = np.zeros(num_envs)
        terminated = np.zeros(num_envs, np.bool_)
        truncated = np.zeros(num_envs, np.bool_)
        i, sign, first = 0, self._sign, self._seeds.first_env
        sign.doing = "step"
        self._steps += 1
        try:
            for i, action in enumerate(self.action.decode(actions)):
                sign.env = first + i
                sign.beats += 1
                if self._ended[i]:
                    self._episode[i] += 1
                    sign.doing = "reset"
                    self._reset(i)
                    sign.doing = "step"
                else:
                    paid, died, cut = self._step(i, action)
                    reward[i] = paid
                    if died or cut:
                        terminated[i], truncated[i], self._ended[i] = died, cut, True
        except Misfit as error:
            raise self._misfit(i, error) from error
        except RunFailed:
            sign.doing = ""
            raise
        except RAISED as error:
            raise self._failure(i) from error
        sign.doing = ""
        return StepResult(self._written(), reward, terminated, truncated, terminated | truncated)

    def _begins(self, i: int, doing: str) -> None:
        """Show what environment i is asked for, which may take long."""
        sign = self._sign
        sign.env, sign.doing = self._seeds.first_env + i, doing
        sign.beats += 1

    def _refuse_unwanted(self) -> None:
        if self._sign.unwanted():
            raise Stopped

    @property
    def tells(self) -> bool:
        """Whether environments tell of their episodes; known after the first reset."""
        return self._families[0].telling is not None

    def info(self, i: int) -> dict[str, float]:
        """Return what environment i tells of its present episode."""
        layer = self._families[i].telling
        try:
            return {} if layer is None else {k: float(x) for k, x in layer.episode_info.items()}
        except RAISED as error:
            raise self._failure(i) from error

    def _reset(self, i: int) -> None:
        if set_task := self._families[i].set_task:
            number = self._tasks.number(self._seeds.first_env + i, self._episode[i])
            if number != self.task[i]:
                set_task(self._tasks.seed_of(number))
                self.task[i] = number
        obs, info = self.envs[i].reset(seed=self._seeds.seed(i, self._episode[i]))
        self._ended[i] = False
        self._quiet_steps[i] = self._steps[i] = 0
        self.obs.write(self._batch, i, obs)
        if (mask := self.mask) is not None:
            self._masks[i] = self._mask_of(mask, i, obs, info)

    def _step(self, i: int, action: Any) -> tuple[float, bool, bool]:
        obs, reward, terminated, truncated, info = self.envs[i].step(action)
        if self._stuck_steps:
            self._quiet_steps[i] = 0 if reward else self._quiet_steps[i] + 1
            truncated = truncated or self._quiet_steps[i] >= self._stuck_steps
        if terminated:  # Gymnasium's limit cuts in its last step whatever has ended there
            truncated = False
        self.obs.write(self._batch, i, obs)
        if (mask := self.mask) is not None:
            if terminated or truncated:
                said = obs if not mask.in_info else info
                self._masks[i] = mask.row_at_end(said, terminated=terminated)
            else:
                self._masks[i] = self._mask_of(mask, i, obs, info)
        return reward, terminated, truncated

    def _mask_of(self, mask: MaskFormat, i: int, obs: Any, info: Any) -> bytes:
        try:
            return mask.row(info if mask.in_info else obs)
        except Misfit as error:
            raise self._of_mask(i, str(error)) from None

    def _of_mask(self, i: int, error: str) -> RunFailed:
        place = "" if self.mask is None else f"in its {self.mask.place}, "
        return RunFailed(
            f"environment {self._seeds.first_env + i}, episode {self._episode[i]}, step {self._steps[i]}: {place}{error}"
        )

    def _refuse_not_finite(self, batch: Obs[NDArray[Any]]) -> None:
        # No policy can act on it. A reward that is not finite is the learner's to skip.
        leaves = leaves_of(batch)
        for name in self._vectors:
            rows = leaves[name]
            if np.isfinite(rows).all():
                continue
            i, entry = np.argwhere(~np.isfinite(rows))[0].tolist()
            raise RunFailed(
                f"environment {self._seeds.first_env + i} failed in episode {self._episode[i]}: entry "
                f"{entry} of its observation{f' {name}' * bool(name)} is {rows[i, entry]}; it must be a finite number"
            )

    def _misfit(self, i: int, error: Misfit) -> RunFailed:
        doing, self._sign.doing = self._sign.doing, ""
        return RunFailed(
            f"environment {self._seeds.first_env + i} failed in episode {self._episode[i]}: its {doing} returned an "
            f"observation that is not in its observation_space: {error}"
        )

    def _failure(self, i: int) -> RunFailed:
        self._sign.doing = ""
        return RunFailed(
            f"environment {self._seeds.first_env + i} failed in episode {self._episode[i]}:\n"
            + readable(traceback.format_exc().rstrip())
        )

    def close(self) -> None:
        """Close every environment."""
        for i, env in enumerate(self.envs):
            self._begins(i, CLOSE)
            close_env(self._env_id, env)
        self._sign.doing = ""
