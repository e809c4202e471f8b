"""Runs with layers chosen for single leaves: exact, loaded from their settings alone, refused before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nested_envs
import numpy as np
import pytest
import torch
from runs import assert_resumes, state_of

import gossamer
from gossamer import cli
from gossamer.build.plan import make_plan
from gossamer.config import TrainConfig, make_config
from gossamer.envs.registry import read_spec
from gossamer.machine import Machine
from gossamer.run.train import train

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 8,
    "checkpoint_every_seconds": 0.0,
    "evaluation.every_seconds": 0.0,
    "optimizer.schedule": "constant",
    "algorithm": {"name": "ppo", "passes": 1, "num_minibatches": 2},
    "placement": "inline",
    "policy.join_size": 16,
    "policy.hidden_sizes": [12],
    "learner_threads": 1,
}
ENCODERS: dict[str, Any] = {
    "image": {"name": "a3c", "fc_size": 16},
    "pair/0": "own_encoders:Keeps",
    "pair/1": {"name": "embedding", "embedding_size": 4},
    "switches": "none",
    "type": "mlp",
}


def config(folder: Path, steps: int) -> TrainConfig:
    given = {**SMALL, "policy.encoders": ENCODERS}
    given |= {"run_folder": str(folder), "total_env_steps": steps}
    return make_config("nested_envs:Everything", given)


@pytest.mark.parametrize(
    ("encoders", "precision", "rows"),
    [
        ({}, "bf16", 136),
        ({"image": "a3c"}, "bf16", 288),
        ({"image": "auto"}, "bf16", 136),
        ({"image": "none"}, "fp32", 136),
    ],
)
def test_the_plan_is_that_of_the_layers(
    encoders: dict[str, str], precision: str, rows: int
) -> None:
    settings = {**SMALL, "policy.encoders": encoders, "policy.torso": "elite"}
    made = make_config("nested_envs:Everything", settings)
    spec = read_spec(made.env_id, made.env, 0, tries=False)
    machine = Machine(2, "a processor", (), ("cpu",), "2.13.0")
    plan = make_plan(made, spec, machine)
    assert (plan.precision, plan.micro_batch_rows) == (precision, rows)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one batch."""
    return train(config(tmp_path_factory.mktemp("begun") / "run", 32), quiet=True).folder


def test_a_resumed_run_equals_an_uninterrupted_one_and_is_loaded(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert_resumes(config(whole, 256), config(tmp_path / "parts", 256), 128)
    held = state_of(whole)
    assert any("torso.apart./pair/0.layer.weight" in x for x in held)
    assert not any("switches" in x for x in held if "moments" in x)
    policy = gossamer.load_policy(whole)
    assert policy.config.encoders["pair/1"].embedding_size == 4
    for name, x in policy.state_dict().items():
        assert any(torch.equal(x, held[other]) for other in held if other.endswith(name)), name
    obs, _ = nested_envs.Everything().reset(seed=1)
    action, _ = policy.act(obs)
    obs["switches"] = 1 - obs["switches"]
    assert policy.act(obs)[0] == action
    assert nested_envs.Everything().action_space.contains(np.int64(action))


@pytest.mark.parametrize(
    "words",
    [
        "--policy.encoders.image elite",
        "--policy.encoders.switches auto",
        "--policy.encoders.pair/1.embedding-size 8",
        "--policy.join-size 8",
    ],
)
def test_a_resumed_run_keeps_its_encoders(
    begun: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = ["train", "--resume", str(begun), "--total-env-steps", "64", *words.split()]
    assert cli.main(resumed) == 2
    assert "does not fit this network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nested_envs:Everything --policy.encoders.imge nature", "does not observe imge; it observes image, pair/0"),
        ("nested_envs:Everything --policy.encoders.type nature", "type is a vector of 2 numbers; allowed: auto, mlp"),
        ("nested_envs:Everything --policy.encoders.type like:image", "have to be alike"),
        ("nested_envs:Everything --policy.encoders.image a3c --policy.torso own_encoders:Keeps", "leave one of the two out"),
        ("CartPole-v1 --policy.encoders.image nature", "CartPole-v1 observes one array, whose layers have no name; use --policy.torso nature"),
        ("masked_envs:Forbids --policy.encoders.image mlp", "observes one array"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words.split(), "--total-env-steps", "64"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "trying out" not in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_mask_that_is_seen_beside_one_array_is_trained_and_acted_with(tmp_path: Path) -> None:
    given = {**SMALL, "policy.encoders.action_mask": "mlp", "total_env_steps": 128}
    given["run_folder"] = str(tmp_path / "run")
    train(make_config("masked_envs:Forbids", given), quiet=True)
    held = state_of(tmp_path / "run")
    assert any("torso.apart./action_mask.layers.0.weight" in x for x in held)
    policy = gossamer.load_policy(tmp_path / "run")
    mask = np.array([0, 0, 1, 0, 0], np.int8)
    assert policy.act(np.zeros(3, np.float32), mask=mask)[0] == 2
