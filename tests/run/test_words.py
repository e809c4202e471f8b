"""What a run says of its learners as it begins, and keeps of it, and what it says at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, log_of

from gossamer.config import TrainConfig, make_config
from gossamer.envs.registry import read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import RunFailed
from gossamer.record.checkpoint import Score
from gossamer.record.exits import Exit
from gossamer.record.folder import RunFolder
from gossamer.run.host_protocol import Failed
from gossamer.run.mixing_facts import mixing_facts
from gossamer.run.summary import summary_of
from gossamer.run.train import train
from gossamer.run.user_messages import ending, headline, mixing_in_words, seen_and_done


def config(topology: dict[str, Any] | str, size: int, **settings: Any) -> TrainConfig:
    given = {**SMALL, "num_learners": size, "topology": topology, "placement": "inline"}
    return make_config("CartPole-v1", {**given, **settings})


def said(topology: dict[str, Any] | str, size: int, **settings: Any) -> str:
    made = config(topology, size, **settings)
    return mixing_in_words(made, mixing_facts(made))


def test_a_figure_that_is_true_only_if_messages_arrive_says_so() -> None:
    ring = "a round of mixing leaves 0.333 of their disagreement (spectral gap 0.667)"
    lock_step = {"name": "diffusion", "adjacency": "ring"}
    assert said(lock_step, 4) == f"4 learners, diffusion: {ring}"
    for staleness in (2, "never"):
        late = said({**lock_step, "max_staleness": staleness}, 4)
        assert late == f"4 learners, diffusion: if every message arrives, {ring}"
    # 1/3 off the diagonal is 1/6 where every other message is lost: 2/3 + 2/6 cos(pi / 2)
    lossy = said({**lock_step, "link_drop": 0.5}, 4)
    assert lossy.startswith("4 learners, diffusion: on average a round of mixing leaves 0.667 of")
    assert said("allreduce", 2) == "2 learners, allreduce"


def test_an_outer_step_that_drives_learners_apart_is_told() -> None:
    ring: dict[str, Any] = {"name": "gossip", "max_staleness": 0}
    heavy = {"optimizer": {"outer_momentum": 0.5}}
    often = said(ring, 4, **heavy)  # PPO's four updates
    assert often.endswith("(spectral gap 0.293), a version with its outer step 0.707")
    once = said({**ring, "every": "versions"}, 4, **heavy)
    assert ", a version with its outer step 1.10" in once
    assert "so that they drift apart: lower --optimizer.outer-momentum or" in once
    back = said({"name": "diffusion", "every": "versions"}, 4, **heavy)
    assert back.endswith(", a version with its outer step 0.707")
    over = said({**ring, "graph": "complete"}, 4, optimizer={"outer_rate": 2.0})
    assert "a version with its outer step 1.000, so that they drift apart" in over
    assert "outer" not in said("single", 4, **heavy)


def test_who_has_nobody_to_talk_to_is_told_what_to_type() -> None:
    others = "topology:gossip, topology:allreduce or topology:diffusion"
    assert said("single", 4) == f"4 independent learners (to let them mix: {others})"
    assert said("single", 1) == ""
    for topology in ("gossip", "allreduce", "diffusion"):
        told = said(topology, 1)
        assert told == "one learner has nobody to talk to: --num-learners 4"
    local = {"placement": "local", "learners_per_process": 4}
    assert said("gossip", 4, **local).startswith("4 learners, gossip, in 1 process: ")
    local = {"placement": "local", "learners_per_process": 1}
    assert said("allreduce", 2, **local) == "2 learners, allreduce, in 2 processes"


@pytest.mark.parametrize(("topology", "size"), [("gossip", 2), ("single", 1)])
def test_what_a_round_does_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], topology: str, size: int
) -> None:
    folder = str(tmp_path / "run")
    train(config(topology, size, run_folder=folder, total_env_steps=64 * size))
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    err = capsys.readouterr().err
    assert not any(line.startswith("observes ") for line in log_of(tmp_path / "run"))
    if topology == "gossip":
        assert (meta["contraction"], meta["spectral_gap"]) == (0.0, 1.0)
        assert "\n4 envs each, lag " in err
    else:
        assert "contraction" not in meta
        assert "\n4 envs, lag " in err


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ((None, None), "return 20; next"),
        ((Score(19.25, 20), None), "return 20, best evaluation 19.25 over 20 episodes; next"),
        ((Score(19.25, 1), None), "return 20, best evaluation 19.25 over 1 episode; next"),
        ((Score(19.25), None), "return 20, best evaluation 19.25; next"),  # of an older run
        (
            (Score(-3.0, 20), Score(7.0, 5)),
            "return 20, best evaluation -3 over 20 episodes, 7 to be confirmed; next",
        ),
    ],
)
def test_the_last_line_tells_what_was_confirmed(
    tmp_path: Path, scores: tuple[Score | None, Score | None], said: str
) -> None:
    best, candidate = scores
    summary = summary_of(
        env_steps=1, updates=1, restarts=0, seconds=1.0, steps_per_second=None, mean_return=20.0,
        best=best, candidate=candidate, best_learner=None, ended=Exit("stopped", "SIGINT"),
    )  # fmt: skip
    assert "nothing was saved that could be resumed" in ending(summary, RunFolder(tmp_path))
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "1" / "manifest.json").touch()
    assert said in ending(summary, RunFolder(tmp_path))


def test_learners_with_one_replay_are_not_said_to_have_nothing_in_common() -> None:
    replays = [
        {"name": "queue", "fraction": 0.5},
        {"name": "uniform", "fraction": 0.5, "shared": True},
    ]
    config = make_config(
        "CartPole-v1",
        {"algorithm": "laser", "num_learners": 3, "placement": "inline", "replays": replays},
    )
    assert mixing_in_words(config, {}) == "3 learners that share a replay, and no parameters"


def test_environments_that_take_long_to_make_are_told_of_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**SMALL, "num_envs": 2, "total_env_steps": 32, "run_folder": str(tmp_path / "run")}
    train(make_config("broken_envs:SlowToMake", given))
    assert "making 2 environments\n" in capsys.readouterr().out


def test_processes_that_take_long_to_make_environments_are_told_of(tmp_path: Path) -> None:
    given = {**SMALL, "num_envs": 2, "total_env_steps": 64, "run_folder": str(tmp_path / "run")}
    given |= {"num_learners": 2, "topology": "gossip"}
    train(make_config("broken_envs:SlowToMake", given), quiet=True)
    assert "making 4 environments in 2 processes" in log_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("CartPole-v1", ""),
        ("Pendulum-v1", ""),
        ("FrozenLake-v1", ""),
        ("Taxi-v4", "observes one of 500; acts with one of 6 actions, masked by infos"),
        ("masked_envs:Switches", ""),
        (
            "nested_envs:Vectors",
            "observes state/position (3 numbers), state/speed (2x2 numbers), time (1 number); acts with one of 3 actions",
        ),
        (
            "nested_envs:Everything",
            "observes image (40x36x3 pixels), pair/0 (one of 3), pair/1 (2 whole numbers), switches (4 numbers), type (2 "
            "numbers); acts with one of 3 actions",
        ),
        (
            "masked_envs:Observed",
            "observes observation (3 numbers); acts with one of 5 actions, masked by the observation",
        ),
        (
            "masked_envs:Parts",
            "observes 3 numbers; acts with one each of 3, 2, 4 actions, masked by infos",
        ),
        (
            "masked_envs:Combined",
            "observes 3 numbers; acts with one of 12 combinations of actions, masked by infos",
        ),
        (
            "joint_envs:Joint",
            "observes 3 numbers; acts with aim (2 real numbers), legs/move (one of 3), switches (2 switches)",
        ),
        (
            "joint_envs:Forbidding",
            "observes 3 numbers; acts with aim (2 real numbers), legs/move (one of 3), switches (2 switches), choices masked "
            "by infos",
        ),
        (
            "joint_envs:Pair",
            "observes 3 numbers; acts with 0 (one of 3), 1 (one each of 2, 3), 2 (one of 4)",
        ),
    ],
)
def test_what_is_observed_and_how_a_run_acts(env_id: str, said: str) -> None:
    auto = EnvConfig() if env_id == "masked_envs:Switches" else EnvConfig(mask="auto")
    assert seen_and_done(read_spec(env_id, auto)) == said


def test_of_many_arrays_the_first_are_told() -> None:
    spec = read_spec("nested_envs:Vectors", EnvConfig())
    told = seen_and_done(replace(spec, observes=tuple(f"x{i}" for i in range(20))))
    assert told.startswith("observes x0, ")
    assert " x11 and 8 more; acts with" in told


def test_symbols_are_told() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    said = seen_and_done(read_spec("minigrid_envs:masked", EnvConfig(mask="auto")))
    assert said == (
        "observes direction (one of 4), image (7x7x3 symbols); acts with one of 7 actions, masked by infos"
    )


def test_first_lines_tell_what_is_observed_where_that_is_several_arrays(tmp_path: Path) -> None:
    given = {**SMALL, "num_envs": 2, "total_env_steps": 32, "run_folder": str(tmp_path / "run")}
    train(make_config("nested_envs:Vectors", given), quiet=True)
    told = log_of(tmp_path / "run")[:4]
    assert sum(line.startswith("observes ") for line in told) == 1


def test_an_error_of_several_lines_is_told_once():
    """Its last line is that of the traceback, which the first may hold already."""
    raised = "ValueError: my bug"
    several = f"Traceback:\n  File\n{raised}"
    told = headline(RunFailed(f"a learner failed: {raised}\n{several}"))
    assert told == f"a learner failed: {raised}"
    assert headline(RunFailed(f"a learner failed\n{several}")) == f"a learner failed {raised}"


def test_an_error_whose_message_has_several_lines_is_told_whole() -> None:
    """As CUDA's, of which the last line tells what to compile torch with."""
    error = RuntimeError("CUDA error: device-side assert triggered\n  Compile with this.\n\n")
    whole = "RuntimeError: CUDA error: device-side assert triggered Compile with this."
    assert headline(error) == whole
    assert headline(Failed.of(error, "a learner").error) == f"a learner failed: {whole}"
