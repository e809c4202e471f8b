"""What was typed and changes nothing is told, and nothing else: runs with it and without it say whether that is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import log_of, state_of
from sessions import QUICK

from gossamer import cli
from gossamer.build.unused_settings import unused_in_words
from gossamer.config import make_config
from gossamer.envs.registry import read_spec

CART, PONG = "CartPole-v1", "PongNoFrameskip-v4"
ELITE = [CART, "algorithm:vtrace", "--replay-ratio=1", "--replays.1.name=elite"]
SMALL_PONG = ["--num-envs=2", "--policy.fc-size=16", "--policy.normalize-steps=64"]


def told_by(folder: Path, *words: str) -> list[str]:
    """Train, and return what is told of settings that change nothing."""
    env_id, *others = words
    own = SMALL_PONG if env_id == PONG else []
    common = ["--placement=inline", "--total-env-steps=128", "--checkpoint-every-seconds=0"]
    cli.main(["train", env_id, *QUICK, *common, *own, *others, f"--run-folder={folder}"])
    return [line for line in log_of(folder) if " nothing: " in line]


def same(one: Path, other: Path) -> bool:
    a, b = state_of(one), state_of(other)
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape and torch.equal(a[name], b[name]) for name in a
    )


@pytest.mark.parametrize(
    ("base", "typed", "why"),
    [
        ([CART], ["--policy.core-size=32"], "policy.core is none"),
        ([CART], ["--policy.head-sizes=32", "--policy.forget-bias=4"], "policy.core is none"),
        ([CART], ["--policy.fc-size=32", "--policy.last-filters=32"], "policy.torso is mlp"),
        ([CART], ["--policy.pixel-std-floor=3"], "observations are no images"),
        ([CART, "--policy.normalize-obs=false"], ["--policy.obs-clip=0.1"], "normalize_obs is off"),
        ([CART, "--algorithm.value-norm=false"], ["--algorithm.popart"], "value_norm is off"),
        ([CART, "--policy.core=gru"], ["--policy.separate-value=false"], "policy.core is gru"),
        ([CART, "--policy.core=lstm"], ["--policy.tile-size=4"], "no grid of symbols"),
        ([CART], ["--optimizer.decay=0.5"], "optimizer.name is adam"),
        (
            [CART, "--optimizer.name=rmsprop"],
            ["--optimizer.beta1=0.5"],
            "optimizer.name is rmsprop",
        ),
        ([CART, "--optimizer.schedule=linear"], ["--optimizer.schedule-power=3"], "is linear"),
        ([CART], ["--optimizer.schedule-end=0.5"], "optimizer.schedule is constant"),
        ([CART, "--lag=0"], ["--replays.0.capacity=4"], "lag is 0"),
        ([CART, "algorithm:vtrace"], ["--replays.0.capacity=4"], "lag is 1"),
        (
            [CART, "algorithm:vtrace", "--replay-ratio=1", "--replays.1.capacity=16"],
            ["--replays.1.capacity-steps=64"],
            "replays.1.capacity is 16",
        ),
        ([CART], ["--prefetch-batches=3"], "nothing is replayed"),
        (
            [CART],
            ["--policy.noise-correlation=0.5", "--policy.init-log-std=-1"],
            "no action is continuous",
        ),
        ([CART], ["--policy.scale-actions=true"], "no action is continuous"),
        (
            ["Pendulum-v1", "--policy.squash=true"],
            ["--policy.scale-actions=true"],
            "policy.squash is on",
        ),
        ([CART], ["--env-threads=3"], "CartPole-v1 is stepped by its actor"),
        ([CART], ["--same-start=false"], "there is one learner"),
        (ELITE, ["--replays.1.shared=true"], "there is one learner"),
        (
            [*ELITE, "--replays.1.distance=kl"],
            ["--replays.1.norm-order=4"],
            "replays.1.distance is kl",
        ),
        (ELITE, ["--replays.1.elite-batch=4"], "replays.1.insert is fifo"),
        (
            [*ELITE, "--replays.1.candidate-multiplier=1"],
            ["--replays.1.strategy=nearest", "--replays.1.distance=kl"],
            "candidate_multiplier is 1, so no more columns are drawn",
        ),
        ([CART], ["--cluster.gpus-per-learner=1"], "placement is inline"),
        ([CART], ["--evaluation.episodes=3"], "evaluation.every_seconds is 0"),
        ([PONG], ["--policy.obs-clip=0.1"], "observations are images"),
        (
            [PONG, "--policy.torso=a3c"],
            ["--policy.hidden-sizes=8", "--policy.activation=relu", "--policy.last-filters=8"],
            "policy.torso is a3c",
        ),
    ],
)
def test_what_changes_nothing_is_told(
    tmp_path: Path, base: list[str], typed: list[str], why: str
) -> None:
    assert told_by(tmp_path / "without", *base) == []
    (line,) = told_by(tmp_path / "with", *base, *typed)
    names = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in typed]
    assert all(name in line for name in names)
    assert why in line
    assert same(tmp_path / "without", tmp_path / "with")


@pytest.mark.parametrize(
    ("base", "typed"),
    [
        ([CART, "--policy.core=lstm"], ["--policy.core-size=32", "--policy.head-sizes=8"]),
        ([CART], ["--policy.separate-value=false"]),
        ([CART], ["--policy.obs-clip=0.1"]),
        (["Pendulum-v1"], ["--policy.noise-correlation=0.5", "--policy.init-log-std=-1"]),
        (["Pendulum-v1"], ["--policy.scale-actions=false"]),
        (ELITE, ["--replays.1.strategy=nearest"]),
        (
            [*ELITE, "--replays.1.strategy=nearest"],
            ["--replays.1.distance=cosine"],
        ),
        ([CART, "--optimizer.name=rmsprop"], ["--optimizer.decay=0.5"]),
        ([CART], ["--optimizer.beta1=0.5"]),
        (
            [CART, "--optimizer.schedule=polynomial"],
            ["--optimizer.schedule-power=3", "--optimizer.schedule-end=0.5"],
        ),
        ([PONG, "--policy.core=lstm", "--policy.head-sizes=8"], ["--policy.activation=relu"]),
    ],
)
def test_what_changes_something_is_not(tmp_path: Path, base: list[str], typed: list[str]) -> None:
    assert told_by(tmp_path / "without", *base) == []
    assert told_by(tmp_path / "with", *base, *typed) == []
    assert not same(tmp_path / "without", tmp_path / "with")


def test_a_file_may_hold_what_some_runs_do_not_use(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[policy]\ncore_size = 32\n")
    assert told_by(tmp_path / "run", CART, f"--config={file}") == []


REPLAYED = {"algorithm.name": "vtrace", "replay_ratio": 1.0}


@pytest.mark.parametrize(
    ("env_id", "settings", "asked"),
    [
        (
            "RandomExtremeAcrobot-v1",
            {"evaluation.every_seconds": 0.0},  # `gossamer eval` plays them
            "evaluation.held_out_tasks",
        ),
        (CART, {"evaluation.every_seconds": 5.0}, "evaluation.episodes"),
        (CART, {"algorithm.name": "vtrace", "lag": "free"}, "replays.0.capacity"),
        (CART, REPLAYED, "algorithm.policy_cloning_cost"),
        (CART, REPLAYED, "prefetch_batches"),
        (
            CART,
            {**REPLAYED, "replays.1.name": "elite", "replays.1.insert": "elite"},
            "replays.1.elite_batch",
        ),
        (CART, {"placement": "cluster"}, "cluster.gpus_per_learner"),
    ],
)
def test_what_has_an_effect_is_not_said_to_have_none(
    env_id: str, settings: dict[str, Any], asked: str
) -> None:
    config = make_config(env_id, settings)
    spec = read_spec(env_id, config.env, 0, tries=False)
    assert unused_in_words(config, spec, [asked]) == []


@pytest.mark.parametrize("weights", ["runs/first", "the resumed run"])
def test_what_first_weights_are_drawn_by_changes_none_that_are_there(weights: str) -> None:
    config = make_config("Pendulum-v1", {"policy.init_log_std": -2.0, "num_learners": 2})
    spec = read_spec(config.env_id, config.env, 0, tries=False)
    typed = ["policy.init_log_std", "same_start"]
    assert unused_in_words(config, spec, typed) == []
    (told,) = unused_in_words(config, spec, typed, weights)
    assert told.startswith("policy.init_log_std -2.0 and same_start on change nothing: ")
    assert told.endswith(f"learners begin with the weights of {weights}")
    typed = ["policy.forget_bias"]
    assert len(unused_in_words(config, spec, typed, weights)) == 1, "though there is no core either"


def test_settings_of_first_weights_are_told_on_resume_and_with_init_from(tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert told_by(first, CART, "--policy.core=lstm") == []
    typed = ["--policy.forget-bias=4", "--policy.core=lstm"]
    (told,) = told_by(tmp_path / "second", CART, f"--init-from={first}", *typed)
    assert told.endswith(f"learners begin with the weights of {first}")
    asked = [f"--resume={first}", "--total-env-steps=192", "--policy.forget-bias=4"]
    assert cli.main(["train", *asked]) == 0
    assert any("weights of the resumed run" in line for line in log_of(first))
