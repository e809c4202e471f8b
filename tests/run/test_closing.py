"""Environments that hang or crash when they are closed, when everything is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from sessions import QUICK, checkpoints, run_session, slow, summary_of

import gossamer
from gossamer.errors import ConfigError, RunFailed
from gossamer.roles.learner import Learner
from gossamer.roles.updates import Updates
from gossamer.run.placements.host_learners import HostLearners

RUN = ["--run-folder", "run", *QUICK, "--total-env-steps", "512"]
TWO = ["--num-learners", "2", "--learner-threads", "1"]
IN_STEP = [*TWO, "topology:gossip", "--topology.max-staleness", "0"]
REDUCED = [*TWO, "topology:allreduce"]


def assert_whole(folder: Path, restarts: int = 0) -> None:
    summary = summary_of(folder / "run")
    assert summary["exit_reason"] == "done: total_env_steps reached"
    assert summary["restarts"] == restarts
    assert checkpoints(folder / "run")[-1] == summary["updates"]


@pytest.mark.parametrize(
    ("kind", "placement"),
    [
        ("HangsInClose", "inline"),
        ("HangsInNativeClose", "local"),
        slow("HangsInClose", "local"),
        slow("HangsInNativeClose", "inline"),
    ],
)
def test_an_environment_that_hangs_in_close_holds_up_no_end(
    tmp_path: Path, kind: str, placement: str
) -> None:
    words = [f"broken_envs:{kind}", *RUN, "--placement", placement, "--stop-within-seconds", "1"]
    err = run_session(words, tmp_path)
    assert (tmp_path / "stuck").exists()
    assert "Traceback" not in err
    if kind == "HangsInClose":
        assert "closing was left unfinished: environment 0 is in close" in err
    assert_whole(tmp_path)


@pytest.mark.parametrize(
    ("kind", "topology"),
    [
        ("HangsInClose", IN_STEP),
        ("CrashesInClose", REDUCED),
        slow("HangsInClose", REDUCED),
        slow("CrashesInClose", IN_STEP),
    ],
)
def test_learners_are_done_before_their_environments_close(
    tmp_path: Path, kind: str, topology: list[str]
) -> None:
    err = run_session([f"broken_envs:{kind}", *RUN, *topology], tmp_path)
    assert " died (" not in err
    assert_whole(tmp_path)


def test_a_learner_that_is_done_fails_no_run(tmp_path: Path) -> None:
    """However its environments close, while another learns on."""
    err = run_session(["broken_envs:GivesUpInClose", *RUN, *TWO, "topology:single"], tmp_path)
    assert (tmp_path / "stuck").exists()
    assert " died (" not in err
    assert_whole(tmp_path)


def test_a_learner_that_dies_when_others_have_reached_the_end(tmp_path: Path) -> None:
    """In lock-step: the one that takes over cannot know that the end has been reached."""
    run_session(["broken_envs:DiesAtItsEnd", *RUN, *IN_STEP], tmp_path)
    assert_whole(tmp_path, restarts=1)


def test_what_fails_to_close_does_not_hide_what_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As everything does on a GPU that is gone."""

    def gone(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("does not fit")

    monkeypatch.setattr(Learner, "close", gone)
    for kind, method, error, told in (
        (Updates, "update", gone, "RuntimeError: CUDA error"),
        (HostLearners, "join", refuse, "does not fit"),
    ):
        monkeypatch.setattr(kind, method, error)
        with pytest.raises((RunFailed, ConfigError), match=told):
            gossamer.train(
                "CartPole-v1", presets=["debug"], run_folder=tmp_path / method, quiet=True
            )
