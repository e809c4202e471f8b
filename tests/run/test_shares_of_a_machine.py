"""What a run finds out before it begins: the share of the machine that each process has."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.machine import Machine, this_machine
from gossamer.run import prepare as prepare_module
from gossamer.run.placements import process_layout
from gossamer.run.prepare import Asked, Prepared, prepare
from gossamer.system.beginning import Beginning


def prepared(**settings: Any) -> Prepared:
    given = {"num_envs": 16, "evaluation.every_seconds": 0, "device": "cpu", **settings}
    config = make_config("CartPole-v1", {"algorithm.name": "vtrace", **given})
    found = prepare(Asked(config, Beginning(time.time(), told=False), time.time()), None)
    assert isinstance(found, Prepared)
    return found


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({}, 16),
        ({"num_learners": 2}, 8),
        ({"num_learners": 4}, 4),
        ({"num_learners": 4, "learners_per_process": 2}, 8),
        ({"num_learners": 4, "placement": "inline"}, 16),
    ],
)
def test_every_process_plans_with_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], cores: int
) -> None:
    """With all of them in each, threads would take turns and everything would be several times slower."""
    machine = replace(this_machine(), cores=16, cpus=16, gpus=())
    monkeypatch.setattr(prepare_module, "this_machine", lambda: machine)
    monkeypatch.setattr(process_layout, "num_cores", lambda: 16)
    topology = {"name": "gossip" if "num_learners" in settings else "single"}
    plan = prepared(topology=topology, **settings).plan
    assert plan.cores == cores
    assert plan.env_threads <= cores


@pytest.mark.parametrize(("num_learners", "workers"), [(1, 8), (2, 4), (4, 2)])
def test_workers_that_are_chosen_for_every_learner_have_room_together(
    monkeypatch: pytest.MonkeyPatch, num_learners: int, workers: int
) -> None:
    """Beside a GPU each has as many, and a machine that swaps steps nothing."""
    monkeypatch.setattr("gossamer.build.plan.main_is_ours", lambda: True)
    monkeypatch.setattr("gossamer.build.plan.free_memory", lambda: 4 << 30)
    machine = Machine(cores=16, processor="", gpus=("GPU 80",), bf16=("cuda",), torch="2.0")
    given = {"num_envs": 64, "num_learners": num_learners, "device": "cuda"}
    given["algorithm"] = {"name": "vtrace"}
    given["topology"] = {"name": "gossip" if num_learners > 1 else "single"}
    config = make_config("PongNoFrameskip-v4", given)
    spec = read_spec(config.env_id, config.env, 0, tries=False)
    assert make_plan(config, spec, machine).env_workers == workers
