"""An episode that is watched or filmed: its environment is closed, however it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gossamer.build.roles import build_policy
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.roles.evaluation import Interrupted
from gossamer.run import video_or_window
from gossamer.run.video_or_window import record_video, show_episode


@pytest.mark.parametrize("is_stopped", [False, True])
def test_its_environment_is_closed(monkeypatch: pytest.MonkeyPatch, is_stopped: bool) -> None:
    made: list[Any] = []
    closed: list[bool] = []
    make = video_or_window.make_render_env

    def watched(*args: Any, **how: Any) -> Any:
        env = make(*args, **how)
        close = env.close
        env.close = lambda: closed.append(True) or close()
        made.append(env)
        return env

    monkeypatch.setattr(video_or_window, "make_render_env", watched)
    config = make_config("CartPole-v1", {"max_episode_steps": 5})
    policy = build_policy(config, read_spec("CartPole-v1", config.env))
    seen: list[Any] = []

    def show() -> Any:
        stop = lambda: is_stopped and len(seen) > 1  # noqa: E731
        return show_episode(config, policy, seen.append, seed=1, greedy=True, stop=stop)

    if is_stopped:
        with pytest.raises(Interrupted):
            show()
        assert 1 < len(seen) < 5
    else:
        assert show().lengths == (5,)
    assert len(made) == 1
    assert closed == [True]


def test_pictures_that_an_encoder_does_not_take_are_told_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra video")
    config = make_config("counting_envs:PaintsLarger", {"max_episode_steps": 5})
    policy = build_policy(config, read_spec(config.env_id, config.env))
    with pytest.raises(ConfigError, match=r"--video .*could not be written \(all images .*size\)"):
        record_video(config, policy, tmp_path / "a.mp4", seed=1, greedy=True)


def test_a_machine_without_ffmpeg_is_told_before_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs the extra video")
    missing = Mock(side_effect=RuntimeError("No ffmpeg exe could be found. Install it"))
    monkeypatch.setattr(ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(ConfigError, match=r"--video .*needs .*No ffmpeg .*Install it\); type: "):
        record_video(Mock(), Mock(), tmp_path / "a.mp4", seed=1, greedy=True)


def film(path: Path) -> None:
    config = make_config("CartPole-v1", {"max_episode_steps": 5})
    policy = build_policy(config, read_spec("CartPole-v1", config.env))
    record_video(config, policy, path, seed=1, greedy=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio's pipes
def test_a_video_whose_last_bytes_find_no_room_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra video")
    imageio = pytest.importorskip("imageio.v2")
    path, get_writer = tmp_path / "a.mp4", imageio.get_writer

    def made(*args: Any, **how: Any) -> Any:
        writer = get_writer(*args, **how)
        close = writer.close
        writer.close = lambda: (close(), path.write_bytes(path.read_bytes()[:-100]))
        return writer

    monkeypatch.setattr(imageio, "get_writer", made)
    with pytest.raises(ConfigError, match=r"could not be written \(the encoder has ended\)"):
        film(path)


def test_a_gif_that_finds_no_room_is_told_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio", reason="needs the extra video")
    (path := tmp_path / "a.gif").write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"could not be written \(no space left on device\)"):
        film(path)
    assert path.read_bytes() == b"before"
