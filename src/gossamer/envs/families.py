"""What an environment may have beyond Gymnasium's interface: families of tasks, and numbers told of an episode.

Names like `set_task` and `spec` are anybody's. An attribute is taken for what gossamer calls by its name only in
gossamer's own environments, and where the settings say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium import Wrapper
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from gossamer.envs.settings import FAMILIES_ONLY, flag_of, refuse_settings
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gossamer.envs.settings import EnvConfig

_OURS = "gossamer."


class Family:
    """What one environment has of a family of tasks; nothing, where it is none.

    Args:
        env_id: of the environment.
        env: made.
        settings: say whether it is a family, and whether it tells of its episodes.

    Raises:
        ConfigError: it is said to be a family, and has no `set_task`, or settings of families are of no use.
    """

    def __init__(self, env_id: str, env: Any, settings: EnvConfig):
        own = [layer for layer in layers_of(env) if type(layer).__module__.startswith(_OURS)]
        told = any(getattr(settings, name) is not None for name in FAMILIES_ONLY)
        by_default = told or any(hasattr(layer, "set_task") for layer in own)
        wanted = by_default if settings.family is None else settings.family
        found = _having(env, "set_task")
        if settings.family and found is None:
            raise ConfigError(
                f"{flag_of('family')} is true, but {env_id} has no method set_task(seed), which chooses the task; give it "
                "one, or leave the setting out"
            )
        chosen = found if wanted else None
        self.is_one = chosen is not None
        """Whether the environment is a family of tasks."""
        if not self.is_one:
            refuse_settings(env_id, settings, FAMILIES_ONLY, "it is not a family of tasks")
        self.set_task: Callable[[int], Any] | None = None if chosen is None else chosen.set_task
        """set_task(seed) chooses the task of the episodes that begin from now on."""
        self.task_words: str = ""
        """How tasks differ."""
        if self.is_one and (layer := _having(env, "task_words")) is not None:
            self.task_words = str(layer.task_words)
        self.uncalled = found is not None and not self.is_one and settings.family is None
        """Whether there is a `set_task` of which nobody has said that it is to be called."""
        asked = settings.episode_info
        self._tells = bool(own) or self.is_one if asked is None else asked
        self.unrecorded = (
            asked is None and not self._tells and _having(env, "episode_info") is not None
        )
        """Whether there is an `episode_info` of which nobody has said whether it is to be recorded."""
        self._env = env

    @property
    def telling(self) -> Any:
        """The environment, or the wrapper of it, whose `episode_info` is recorded; None: none is.

        It may come to be there with the first reset.
        """
        return _having(self._env, "episode_info") if self._tells else None


def layers_of(env: Any) -> Iterator[Any]:
    """Yield an environment's wrappers, the outermost first, and then itself."""
    while isinstance(env, Wrapper):
        yield env
        env = env.env  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    yield env


def registered_spec(env: Any) -> GymnasiumSpec | None:
    """Return what Gymnasium knows of an environment that it has made; None of others, whatever they call `spec`."""
    *_, innermost = layers_of(env)
    return env.spec if isinstance(innermost.spec, GymnasiumSpec) else None


def _having(env: Any, name: str) -> Any:
    """Return the outermost layer that has an attribute of that name; None without one.

    Looks on types: asking an object whether it has a property runs that property, and what fails in
    there, for want of a task or a reset, would count as no.
    """
    for layer in layers_of(env):
        if hasattr(type(layer), name) or name in vars(layer):
            return layer
    return None
