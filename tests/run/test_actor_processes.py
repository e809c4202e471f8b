"""Actors in processes of their own: what they collect, how they die, and how a run goes on from their checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from held_envs import steps_for
from runs import assert_same, processes_of, rows_of
from sessions import (
    QUICK,
    Session,
    checkpoints,
    env_steps_logged,
    run_session,
    slow,
    summary_of,
    wait_for,
)

from gossamer.config import make_config
from gossamer.config.cores import MACHINE
from gossamer.errors import ConfigError
from gossamer.run.placements.actor_team import ActorTeam
from gossamer.run.train import train
from gossamer.system.cores import num_cores
from gossamer.system.gpus import visible_gpus

SMALL: dict[str, Any] = {
    "num_envs": 6,
    "env_groups": 2,
    "unroll_length": 8,
    "lag": "1",
    "total_env_steps": 6 * 8 * 4,
    "evaluation.every_seconds": 0.0,
    "policy.hidden_sizes": [8],
    "optimizer.schedule": "constant",
    "algorithm": {"name": "vtrace"},
}
PPO = {"name": "ppo", "passes": 2, "num_minibatches": 2}


def run(folder: Path, env_id: str = "CartPole-v1", **settings: Any) -> Path:
    config = make_config(env_id, {**SMALL, **settings, "run_folder": str(folder)})
    train(config, quiet=True)
    return folder


def actors_of(folder: Path) -> dict[int, int]:
    """Return the process of every actor of learner 0."""
    rows = processes_of(folder, "actor")
    return {row["actor"]: row["pid"] for row in rows if row["rank"] == 0}


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"lag": "0", "algorithm": {"name": "a2c"}}),
        ("CartPole-v1", {"algorithm": PPO, "policy.core": "lstm", "policy.core_size": 4}),
        (
            "CartPole-v1",
            {"algorithm": {"name": "laser"}, "replay_ratio": 1.0, "checkpoint_replay": True},
        ),
        ("Pendulum-v1", {"algorithm": {"name": "impact", "passes": 2}, "policy.core": "gru"}),
        (
            "PongNoFrameskip-v4",
            {"algorithm": PPO, "policy.fc_size": 16, "num_envs": 2, "total_env_steps": 2 * 8 * 3},
        ),
        ("RandomExtremeAcrobot-v1", {}),
    ],
)
def test_several_actors_collect_what_one_collects(
    tmp_path: Path, env_id: str, settings: dict[str, Any]
) -> None:
    one = run(tmp_path / "one", env_id, **settings)
    two = run(tmp_path / "two", env_id, **settings, actors_per_learner=2)
    assert_same(one, two)
    told = [[row["env_steps"] for row in rows_of(x, "episodes")] for x in (one, two)]
    assert told[0] == told[1]


def test_inline_actors_take_turns_and_collect_the_same(tmp_path: Path) -> None:
    inline = run(tmp_path / "inline", actors_per_learner=2, env_groups=0, placement="inline")
    assert actors_of(inline) == {}
    assert_same(inline, run(tmp_path / "local", actors_per_learner=2, env_groups=0))


def test_one_actor_may_step_several_groups(tmp_path: Path) -> None:
    assert_same(run(tmp_path / "one", actors_per_learner=1), run(tmp_path / "none"))


@pytest.mark.skipif(num_cores() < 2 or bool(visible_gpus()), reason="needs two cores, and no GPU")
def test_the_command_acts_in_a_process_of_its_own_where_that_is_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MACHINE)
    folder = tmp_path / "run"
    words = ["CartPole-v1", "algorithm:vtrace", *QUICK, "--run-folder", str(folder)]
    with Session(words, tmp_path, forked=False) as session:
        session.wait_for(lambda: actors_of(folder), "an actor")
        first = actors_of(folder)[0]
        os.kill(first, signal.SIGKILL)
        session.wait_for(lambda: actors_of(folder)[0] != first, "a new one")
        session.signal(signal.SIGINT)
        err = session.ends()
    assert "; 1 actor process\n" in err
    settings = json.loads((folder / "config.json").read_text())
    assert settings["actors_per_learner"] is None, "another machine decides anew"


def test_learners_that_mix_have_actors_of_their_own(tmp_path: Path) -> None:
    settings = {"num_learners": 2, "topology": {"name": "diffusion"}, "learners_per_process": 1}
    settings |= {"total_env_steps": 2 * 6 * 8 * 4}
    one = run(tmp_path / "one", **settings)
    two = run(tmp_path / "two", **settings, actors_per_learner=2)
    assert_same(one, two, ordered=False)
    assert [row["rank"] for row in processes_of(two, "actor")] == [0, 0, 1, 1]


def test_a_run_goes_on_exactly_with_any_number_of_actors(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    first = run(tmp_path / "first", actors_per_learner=2, total_env_steps=6 * 8 * 2)
    for later in (0, 2):
        again = shutil.copytree(first, tmp_path / str(later))
        settings = {**SMALL, "actors_per_learner": later, "run_folder": str(again)}
        train(make_config("CartPole-v1", settings), resume=str(again), quiet=True)
        assert_same(whole, again)


def test_without_a_lag_nobody_waits_for_the_slowest(tmp_path: Path) -> None:
    steps = 6 * 8 * 60
    folder = run(
        tmp_path / "run", lag="free", actors_per_learner=3, env_groups=3, total_env_steps=steps
    )
    summary = summary_of(folder)
    assert summary["env_steps"] >= steps
    found = rows_of(folder, "episodes")
    assert {x["env"] for x in found} == set(range(6))
    # Every row of every environment is learnt once: episodes follow each other, with a row for each reset.
    waiting = 4 * 6 * 8  # that were not learnt in the end
    assert sum(x["length"] for x in found) <= summary["env_steps"] + waiting
    assert sum(x["length"] for x in found) > 0.8 * summary["env_steps"]
    # And they act with what was learnt meanwhile.
    last = rows_of(folder)[-1]
    assert last["lag_versions_max"] < last["version"] / 2


@pytest.mark.parametrize(
    ("lag", "env_id"),
    [("1", "HeldAndHelped"), slow("1", "HeldCartPole"), slow("free", "HeldCartPole")],
)
def test_an_actor_that_is_killed_comes_back(tmp_path: Path, lag: str, env_id: str) -> None:
    folder = tmp_path / "run"
    total = steps_for(2, 120.0)
    words = [f"held_envs:{env_id}", "algorithm:vtrace", *QUICK, "--lag", lag]
    words += ["--actors-per-learner", "2", "--total-env-steps", str(total)]
    words += ["--run-folder", str(folder)]
    with Session(words, tmp_path) as session:
        for _ in range(2):
            steps = env_steps_logged(folder)
            session.wait_for(lambda: env_steps_logged(folder) > steps, "learning")  # noqa: B023
            before = actors_of(folder)
            os.kill(before[1], signal.SIGKILL)
            session.wait_for(lambda: actors_of(folder)[1] != before[1], "a new actor")  # noqa: B023
            assert actors_of(folder)[0] == before[0]
        session.release()
        err = session.ends()
    assert err.count("actor 1 has died (signal 9); a new one begins new episodes") == 2
    assert summary_of(folder)["env_steps"] >= total
    assert summary_of(folder)["restarts"] == 0, "of learners"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["learner/actor_restarts"] == 2


def test_after_a_death_a_run_does_not_go_on_exactly_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["held_envs:HeldCartPole", "algorithm:vtrace", *QUICK, "--actors-per-learner", "2"]
    words += ["--run-folder", str(folder)]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: actors_of(folder), "actors")
        victim = actors_of(folder)[0]
        os.kill(victim, signal.SIGKILL)
        session.wait_for(lambda: actors_of(folder)[0] != victim, "a new actor")
        session.release()
        session.signal(signal.SIGTERM)
        session.ends()
    more = summary_of(folder)["env_steps"] + 64
    words = ["--resume", str(folder), "--total-env-steps", str(more)]
    with Session(words, tmp_path) as session:
        session.release()
        assert "not exactly" in session.ends()


def test_an_actor_that_dies_while_it_is_brought_back_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path / "run", actors_per_learner=2, total_env_steps=6 * 8 * 2)
    load = ActorTeam.load_state_dict

    def loses_one(team: ActorTeam, state: dict[str, Any], **how: Any) -> bool:
        os.kill(team.processes[0]["pid"], signal.SIGKILL)
        return load(team, state, **how)

    monkeypatch.setattr(ActorTeam, "load_state_dict", loses_one)
    settings = {**SMALL, "actors_per_learner": 2, "run_folder": str(folder)}
    train(make_config("CartPole-v1", settings), resume=str(folder), quiet=True)
    log = (folder / "log.txt").read_text()
    assert "actor 0 has died (signal 9); a new one begins new episodes" in log
    assert "not exactly: an actor died while its environments were brought back" in log
    assert summary_of(folder)["exit_reason"] == "done: total_env_steps reached"
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["env_comes_back"], "that says nothing of the environments"
    assert meta["env_differs"] == ""


def test_an_actor_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    words = ["broken_envs:KillsChildren", "algorithm:vtrace", *QUICK, "--actors-per-learner", "2"]
    err = run_session([*words, "--run-folder", "run"], tmp_path, code=1)
    assert "died 3 times before it had collected anything" in err
    assert err.count("has died (signal 9); a new one begins new episodes") >= 2, "each is told"


def test_what_is_said_of_an_actor_waits_for_no_trajectory(tmp_path: Path) -> None:
    """As that its environment has been in a step for long, which nobody else tells."""
    folder = tmp_path / "run"
    words = ["held_envs:HeldCartPole", *QUICK, "--actors-per-learner", "1", "--run-folder", "run"]
    words += ["--unroll-length", "100000", "--stop-within-seconds", "1"]
    with Session(words, tmp_path) as session:
        server = psutil.Process(session.process.pid)

        def actors() -> list[psutil.Process]:
            return [x for child in server.children() for x in child.children()]

        session.wait_for_line("run folder", folder)
        session.wait_for(actors, "an actor")
        actors()[0].kill()
        session.wait_for_line("actor 0 has died (signal 9)", folder)
        session.signal(signal.SIGINT)
        session.ends()


def test_an_environment_that_fails_ends_the_run_with_its_own_error(tmp_path: Path) -> None:
    words = ["broken_envs:Raises", "algorithm:vtrace", *QUICK, "--actors-per-learner", "2"]
    err = run_session([*words, "--run-folder", "run"], tmp_path, code=1)
    assert "the motor is on fire" in err
    assert "Traceback" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_actors_end_with_their_learner(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    words = ["CartPole-v1", "algorithm:vtrace", *QUICK, "--actors-per-learner", "2"]
    with Session([*words, "--run-folder", str(folder)], tmp_path) as session:
        session.wait_for(lambda: actors_of(folder) and env_steps_logged(folder), "learning")
        pids = list(actors_of(folder).values())
        session.signal(number)
        code, _, err = session.end()
        wait_for(lambda: not any(map(psutil.pid_exists, pids)), "the end of actors")
    if number == signal.SIGINT:
        assert code == 0, err
        assert checkpoints(folder)[-1] == summary_of(folder)["updates"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"actors_per_learner": 7, "env_groups": 0}, "a learner has 6 environments"),
        (
            {"actors_per_learner": 2, "env_groups": 3},
            "env_groups is 3, which 2 actors cannot share",
        ),
        (
            {"actors_per_learner": 4, "env_groups": 8},
            "env_groups is 6 at most, which 4 actors cannot share",
        ),
        (
            {"actors_per_learner": 4, "env_groups": 0, "lag": "free"},
            "num_envs is 6, which 4 actors cannot share equally at lag free: --num-envs 8",
        ),
    ],
)
def test_environments_that_cannot_be_shared_out_are_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_torso_cannot_travel(tmp_path: Path) -> None:
    class Torso(torch.nn.Module):
        feature_size = 4

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return obs

    config = make_config(
        "CartPole-v1", {**SMALL, "actors_per_learner": 2, "run_folder": str(tmp_path / "run")}
    )
    with pytest.raises(ConfigError, match="cannot be handed to actor processes"):
        train(config, torso=Torso(), quiet=True)
