"""Look at a policy play: a video file, or a window where there is one."""

from __future__ import annotations

import importlib
from contextlib import closing, contextmanager, nullcontext
from io import BytesIO
from typing import TYPE_CHECKING, Any

from gossamer.build.evaluation_tasks import training_tasks
from gossamer.envs.render import make_render_env, without_screen
from gossamer.errors import ConfigError
from gossamer.machine import install_command, same_folder
from gossamer.record.files import write_bytes
from gossamer.roles.evaluation import play
from gossamer.system.reading import expand

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.roles.evaluation import Evaluation

VIDEO_FPS = 30
FORMATS = (".mp4", ".gif")
ENCODING = ["-threads", "1"]
"""Else the encoder takes all cores for moments, from a run that trains beside."""


def record_video(
    config: TrainConfig,
    policy: ActorCritic,
    path: Path | str,
    *,
    seed: int,
    greedy: bool,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Play one episode, write it to a file (.mp4 or .gif), and return what it has earned.

    Args:
        config: of the run.
        policy: set up for inference.
        path: of the file.
        seed: of the episode.
        greedy: take the likeliest action instead of sampling.
        stop: asked every step; True raises Interrupted.

    Raises:
        ConfigError: the file cannot be written.
    """
    held = BytesIO()  # of a .gif, which imageio would try to write again and again on a full disk
    writer = _open_video(str(path), held)

    def add(picture: Any) -> None:
        with _writing(path):
            writer.append_data(_even(picture))

    try:
        shown = show_episode(config, policy, add, seed=seed, greedy=greedy, stop=stop)
    finally:
        with _writing(path):
            writer.close()
            if data := held.getvalue():
                write_bytes(expand(path), data)
    with _writing(path):  # an encoder whose last bytes found no room does not say so
        importlib.import_module("imageio.v2").get_reader(path).close()
    return shown


def show_episode(
    config: TrainConfig,
    policy: ActorCritic,
    on_picture: Callable[[Any], None] | None = None,
    *,
    seed: int,
    greedy: bool,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Play one episode, in a window or for a function that is called with its pictures; arguments as for `record_video`."""

    def on_step(shown: Any, _: int) -> None:
        picture = shown.render()
        if on_picture is not None and picture is not None:
            on_picture(picture)

    with same_folder(), nullcontext() if on_picture is None else without_screen():
        env = make_render_env(
            config.env_id,
            config.env,
            seed,
            config.max_episode_steps,
            render_mode="human" if on_picture is None else "rgb_array",
            tasks=training_tasks(config, policy.spec),
        )
        with closing(env):
            return play(
                policy, env, episodes=1, greedy=greedy, seed=seed, stop=stop, on_step=on_step
            )


def _open_video(path: str, held: BytesIO) -> Any:
    if not path.endswith(FORMATS):
        raise ConfigError(f"--video {path}: write {' or '.join(FORMATS)}, for example game.mp4")
    target = expand(path).absolute()
    if not target.parent.is_dir():
        raise ConfigError(f"--video {path}: the folder does not exist; make it first")
    with _writing(
        path
    ):  # ffmpeg opens it at the first picture, and imageio at the last one of a .gif
        is_new = not target.exists()
        target.open("ab").close()
        if is_new:
            target.unlink()
    try:
        imageio: Any = importlib.import_module("imageio.v2")
        if path.endswith(".gif"):
            return imageio.get_writer(held, format="gif", duration=1000 / VIDEO_FPS, loop=0)
        importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()  # its wheel may have none
        return imageio.get_writer(path, fps=VIDEO_FPS, macro_block_size=2, output_params=ENCODING)
    except (ImportError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"--video {path} needs imageio with ffmpeg ({' '.join(str(error).split())[:80]}); "
            f"type: {install_command('video')}"
        ) from None


@contextmanager
def _writing(path: Path | str) -> Generator[None]:
    """Tell in one line that a file could not be written; of ffmpeg one hears no more than of a broken pipe."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or "the encoder has ended").lower()
        raise ConfigError(f"--video {path} could not be written ({why})") from None
    except ValueError as error:  # of pictures of several sizes
        why = " ".join(str(error).split()).lower()
        raise ConfigError(f"--video {path} could not be written ({why})") from None


def _even(picture: Any) -> Any:
    """Cut odd rows and columns off: the video codec halves both sizes."""
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]
