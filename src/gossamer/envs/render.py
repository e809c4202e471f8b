"""One environment that can be looked at: for videos, and for a window."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np

from gossamer.envs.atari import AtariEnvs
from gossamer.envs.seeding import EVALUATION_RANK, ONE_TASK, SeedStream
from gossamer.envs.settings import is_atari
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import MissingExtra
from gossamer.types import VecEnv

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from gossamer.envs.seeding import Tasks
    from gossamer.envs.settings import EnvConfig
    from gossamer.types import StepResult

RenderMode = Literal["rgb_array", "human"]


class RenderEnv(VecEnv, Protocol):
    """A `VecEnv` of one environment that can be looked at."""

    def render(self) -> NDArray[np.uint8] | None:
        """Return the picture [H, W, 3] of where the game stands; None where a window shows it."""
        ...


@contextmanager
def without_screen() -> Generator[None]:
    """Context in which what is rendered looks for no screen and no loudspeaker; afterwards a program may open windows."""
    made = [name for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER") if name not in os.environ]
    os.environ.update(dict.fromkeys(made, "dummy"))
    try:
        yield
    finally:
        for name in made:
            os.environ.pop(name, None)


def make_render_env(
    env_id: str,
    settings: EnvConfig,
    seed: int,
    max_episode_steps: int = 0,
    render_mode: RenderMode = "rgb_array",
    tasks: Tasks = ONE_TASK,
) -> RenderEnv:
    """Make one environment for evaluation, with pictures.

    Args:
        env_id: as for `make_vec_env`; not EnvPool's.
        settings: as for `make_vec_env`; worker processes are not used.
        seed: the run's; its evaluation episodes are played.
        max_episode_steps: truncation; 0 for the environment's own.
        render_mode: "rgb_array" for pictures, "human" for a window.
        tasks: of a family, the first is played.
    """
    if env_id.startswith("envpool:"):
        raise ConfigError(
            f"{env_id} cannot be rendered: gossamer shows no pictures of EnvPool; leave out --video and --render"
        )
    wants_window = render_mode == "human" and sys.platform.startswith("linux")
    if wants_window and not {"DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"} & set(os.environ):
        raise ConfigError("--render needs a display, and there is none; use --video FILE")
    seeds = SeedStream(seed, EVALUATION_RANK, 0)
    if is_atari(env_id):
        return WatchedAtari(
            env_id,
            seeds=seeds,
            settings=settings,
            max_episode_steps=max_episode_steps,
            render_mode=render_mode,
        )
    import gymnasium

    from gossamer.envs.gym import GymEnvs

    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it greets on standard output
    wanted = (
        f'{env_id} cannot be rendered: it must take render_mode="{render_mode}" and have a render() '
        "that returns the picture [height, width, 3] as uint8"
    )
    try:
        env = GymEnvs(
            env_id,
            num_envs=1,
            seeds=seeds,
            tasks=tasks,
            settings=settings,
            max_episode_steps=max_episode_steps,
            render_mode=render_mode,
        )
    except ConfigError as error:
        if isinstance(error.__cause__, TypeError):  # Gymnasium hands the mode to what is registered
            raise ConfigError(wanted) from error
        raise
    try:
        env.start(np.zeros(1, np.int64))
        picture = env.render()
    except BaseException as error:
        env.close()
        if not isinstance(error, (ConfigError, RunFailed)):
            raise
        # What a user's environment or a graphics library raised, where it was a picture that failed.
        why = error.__cause__ if isinstance(error, ConfigError) and error.__cause__ else error
        if isinstance(why, gymnasium.error.DependencyNotInstalled) and "pygame" in str(why):
            raise MissingExtra(f"drawing {env_id} needs pygame", "video") from error
        if isinstance(why, NotImplementedError):  # Gymnasium's own render()
            raise ConfigError(wanted) from error
        message = " ".join(str(why).split()) or type(why).__name__
        raise ConfigError(f"{env_id} cannot be rendered: {message}") from error
    if render_mode == "rgb_array" and not _is_picture(picture):
        env.close()
        raise ConfigError(wanted)
    return env


def _is_picture(picture: NDArray[Any] | None) -> bool:
    """Whether a video can be made of it; of one without two rows and columns it would be empty."""
    if picture is None or picture.ndim != 3:
        return False
    return min(picture.shape[:2]) > 1 and picture.shape[2] <= 4


class WatchedAtari(AtariEnvs):
    """One copy of an Atari game, and beside it an emulator of which pictures can be had.

    ale-py's vector environment has no pictures but small grey ones. The emulator beside it is begun
    from the same seed and given the same actions, hence plays the same game, which is checked.
    """

    def __init__(
        self,
        env_id: str,
        *,
        seeds: SeedStream,
        settings: EnvConfig,
        max_episode_steps: int,
        render_mode: RenderMode,
    ):
        super().__init__(
            env_id,
            num_envs=1,
            num_threads=1,
            seeds=seeds,
            settings=settings,
            max_episode_steps=max_episode_steps,
            training=False,
        )
        import ale_py
        from ale_py import roms

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale: Any = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", self._protocol.sticky)
        self._ale.setBool("display_screen", render_mode == "human")
        self._render_mode = render_mode
        self._rom = roms.get_rom_path(self._game)
        self._actions: Any = ()
        self._action = 0

    def start(self, episodes: NDArray[np.int64]) -> NDArray[Any]:
        """Begin an episode in both."""
        obs = super().start(episodes)
        self._follow_start()
        return obs

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step in both."""
        super().send(action)
        self._action = int(action[0])

    def recv(self) -> StepResult:
        """Finish the step in both."""
        began = bool(self._ended[0])
        result = super().recv()
        if began:
            self._follow_start()
        else:
            reward = 0
            for _ in range(self._protocol.frame_skip):
                reward += self._ale.act(self._actions[self._action])
                if self._ale.game_over():
                    break
            self._check(reward == result.reward[0])
        return result

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> NDArray[Any]:
        """Begin the episode and replay it in both."""
        obs = self.start(episodes)
        for action in logs[0]:
            self.send(np.array([action]))
            obs = cast("NDArray[Any]", self.recv().obs)
        return obs

    def render(self) -> NDArray[np.uint8] | None:
        """Return the screen [210, 160, 3]; None where a window shows it."""
        return self._ale.getScreenRGB() if self._render_mode == "rgb_array" else None

    def _follow_start(self) -> None:
        import ale_py

        episode = int(self._episode[0])
        position = episode % self.episodes_per_seed
        self._ale.setInt("random_seed", self._seeds.seed(0, episode - position))
        self._ale.loadROM(self._rom)
        for _ in range(position + 1):
            self._ale.reset_game()
        full = self._protocol.full_action_space
        self._actions = self._ale.getLegalActionSet() if full else self._ale.getMinimalActionSet()
        # how many no-ops were drawn shows in the frames that have passed; FIRE comes before them
        num_frames = int(self._info["episode_frame_number"][0])
        if num_frames and self._protocol.fire_reset and ale_py.Action.FIRE in self._actions:
            self._ale.act(ale_py.Action.FIRE)
            num_frames -= 1
        for _ in range(num_frames):
            self._ale.act(ale_py.Action.NOOP)
        self._check(agrees=True)

    def _check(self, agrees: bool) -> None:
        frame = self._ale.getEpisodeFrameNumber()
        if not agrees or frame != self._info["episode_frame_number"][0]:
            raise RunFailed(
                f"the pictures of {self.spec.env_id} no longer show the game that is played"
            )
