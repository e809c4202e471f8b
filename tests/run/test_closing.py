"""Environments that hang or crash when they are closed, when everything is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from sessions import QUICK, Session, checkpoints, slow, summary_of

TWO = ["--num-learners", "2", "--learner-threads", "1"]
IN_STEP = [*TWO, "topology:gossip", "--topology.max-staleness", "0"]
REDUCED = [*TWO, "topology:allreduce"]


def ended(folder: Path) -> None:
    """The run is whole."""
    summary = summary_of(folder / "run")
    assert summary["exit_reason"] == "done: total_env_steps reached"
    assert summary["restarts"] == 0
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
    words = [f"broken_envs:{kind}", "--run-folder", "run", *QUICK, "--placement", placement]
    words += ["--stop-within-seconds", "1", "--total-env-steps", "512"]
    with Session(words, tmp_path) as session:
        session.wait_for(session.stuck.exists, "an environment that hangs")
        code, _, err = session.end()
    assert code == 0, err
    assert "Traceback" not in err
    if kind == "HangsInClose":
        assert "closing was left unfinished: environment 0 is in close" in err
    ended(tmp_path)


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
    words = [f"broken_envs:{kind}", "--run-folder", "run", *QUICK, *topology]
    with Session([*words, "--total-env-steps", "512"], tmp_path) as session:
        code, _, err = session.end()
    assert code == 0, err
    assert " died (" not in err
    ended(tmp_path)


def test_a_learner_that_dies_when_others_have_reached_the_end(tmp_path: Path) -> None:
    """In lock-step: the one that takes over cannot know that the end has been reached."""
    words = ["broken_envs:DiesAtItsEnd", "--run-folder", "run", *QUICK, *IN_STEP]
    with Session([*words, "--total-env-steps", "512"], tmp_path) as session:
        code, _, err = session.end()
    assert code == 0, err
    summary = summary_of(tmp_path / "run")
    assert summary["exit_reason"] == "done: total_env_steps reached"
    assert summary["restarts"] == 1
    assert checkpoints(tmp_path / "run")[-1] == summary["updates"]
