"""`--evaluation.video`: each new best policy leaves a video that a browser plays, and nothing of it ever ends a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer import cli
from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.record.folder import RunFolder
from gossamer.run import best_videos
from gossamer.run.train import train

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs the extra video")


def given(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "placement": "inline", "num_envs": 4, "total_env_steps": 2000, "run_folder": str(folder),
        "evaluation.every_seconds": 0.3, "evaluation.max_time_fraction": 1.0, "evaluation.episodes": 2,
        "evaluation.confirm_episodes": 2, "evaluation.video": True, "max_episode_steps": 60, **more,
    }  # fmt: skip


def videos(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(x.read_text()) for x in sorted((folder / "videos").glob("best-*.json"))]


def frames_of(path: Path) -> np.ndarray[Any, Any]:
    """Return the pictures of a video, small and grey: [N, 40, 60]."""
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-f", "rawvideo"]
    decode += ["-pix_fmt", "gray", "-s", "60x40", "-"]
    done = subprocess.run(decode, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, 40, 60)


GREEDY = {"evaluation.greedy": True, "seed": 5}


@pytest.mark.parametrize(
    "more", [GREEDY, {"topology": "gossip", "num_learners": 2}], ids=["one", "gossip"]
)
def test_every_best_policy_leaves_a_video(tmp_path: Path, more: dict[str, Any]) -> None:
    pytest.importorskip("pygame", reason="needs the extra video")
    folder = train(make_config("CartPole-v1", given(tmp_path / "run", **more)), quiet=True).folder
    told = videos(folder)
    best = RunFolder(folder).checkpoints().load("best")
    assert told[-1]["env_steps"] == best.state["env_steps"]
    assert told[-1]["updates"] == best.updates
    assert [x["env_steps"] for x in told] == sorted({x["env_steps"] for x in told})
    names = {x.name for x in (folder / "videos").iterdir()}
    assert names == {f"best-{x['env_steps']:012d}{end}" for x in told for end in (".mp4", ".json")}
    frames = frames_of(folder / "videos" / f"best-{told[-1]['env_steps']:012d}.mp4")
    assert len(frames) == pytest.approx(told[-1]["length"] + 1, abs=2)
    assert told[-1]["return"] == told[-1]["length"], "of CartPole"
    assert np.ptp(frames[0]) > 100, "something is shown"
    if more is GREEDY:  # the policy that was saved plays the same game
        words = ["eval", str(folder), "--checkpoint", "best", "--episodes", "1", "--seed", "5"]
        again = tmp_path / "again.mp4"
        assert cli.main([*words, "--video", str(again)]) == 0
        assert len(frames_of(again)) == pytest.approx(told[-1]["length"] + 1, abs=2)


def test_pictures_that_fail_do_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def broken(*_: Any, **__: Any) -> Any:
        tries.append(1)
        raise RuntimeError("no graphics\nhere")

    monkeypatch.setattr(best_videos, "record_video", broken)
    result = train(make_config("CartPole-v1", given(tmp_path / "run")), quiet=True)
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    log = (result.folder / "log.txt").read_text()
    told = "no video of the best policy, and no more in this session: no graphics here"
    assert (log.count(told), len(tries)) == (1, 1)
    assert videos(result.folder) == []


@pytest.mark.parametrize(
    ("env_id", "more", "told"),
    [
        ("CartPole-v1", {"evaluation.every_seconds": 0}, "--evaluation.every-seconds is 0"),
        (
            "envpool:CartPole-v1",
            {},
            "gossamer shows no pictures of EnvPool; leave out --evaluation.video",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_made(
    tmp_path: Path, env_id: str, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        train(make_config(env_id, given(tmp_path / "run", **more)), quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_missing_encoder_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_videos.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs imageio, which is not installed; type: .*video"):
        train(make_config("CartPole-v1", given(tmp_path / "run")), quiet=True)
