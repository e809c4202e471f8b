"""Training on a GPU: alone, in groups that mix through it, in processes, and on from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_exact_resume import SMALL, state_of

from gossamer.build import device_of, make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.launch.run import train

pytestmark = pytest.mark.gpu

TOPOLOGIES: list[dict[str, Any]] = [
    {"name": "allreduce"},
    {"name": "gossip"},
    {"name": "gossip", "graph": "complete", "max_staleness": 0},
    {"name": "diffusion", "adjacency": "ring"},
]


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        **SMALL,
        "device": "cuda",
        "run_folder": str(folder),
        "total_env_steps": 2_000,
        "evaluation.every_seconds": 0.2,
        "evaluation.episodes": 2,
        **more,
    }


@pytest.mark.parametrize("placement", ["inline", "local"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_groups_train_evaluate_and_resume(
    tmp_path: Path, topology: dict[str, Any], placement: str
) -> None:
    given = settings(tmp_path / "run", num_learners=3, topology=topology, placement=placement)
    result = train(make_config("CartPole-v1", given), quiet=True)
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    scored = (result.folder / "evaluation.jsonl").read_text().splitlines()
    assert all(json.loads(row)["mean"] > 0 for row in scored)
    assert scored
    longer = make_config("CartPole-v1", {**given, "total_env_steps": 4_000})
    again = train(longer, resume=str(result.folder), quiet=True)
    assert again.summary["env_steps"] >= 4_000
    if topology["name"] == "allreduce":
        state = state_of(result.folder)
        own = {k: x for k, x in state.items() if k.startswith("learner.policy.")}
        assert all(torch.equal(x, state[f"1/{k}"]) for k, x in own.items())


def test_one_learner_computes_what_it_computes_on_a_cpu(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        given = settings(tmp_path / device, placement="inline", device=device, total_env_steps=256)
        train(make_config("CartPole-v1", given), quiet=True)
    one, other = state_of(tmp_path / "cpu"), state_of(tmp_path / "cuda")
    for name, x in one.items():
        if name.startswith("learner.policy."):
            torch.testing.assert_close(other[name], x, rtol=1e-3, atol=1e-4)


def test_learner_r_is_on_gpu_r_mod_n() -> None:
    config = make_config("CartPole-v1", {"device": "cuda"})
    plan = make_plan(config, read_spec(config.env_id, config.env, 0))
    count = torch.cuda.device_count()
    assert [device_of(plan, rank) for rank in range(5)] == [f"cuda:{r % count}" for r in range(5)]


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_replays_feed_a_gpu_and_are_measured_on_it(tmp_path: Path, placement: str) -> None:
    quarter = {"fraction": 0.25, "capacity": 40}
    kinds = ("uniform", "elite", "attentive")
    given = settings(
        tmp_path / "run",
        placement=placement,
        lag="1",
        algorithm={"name": "laser", "num_minibatches": 1},
        replays=[{"name": "queue", "fraction": 0.25}, *({"name": x, **quarter} for x in kinds)],
        checkpoint_replay=True,
    )
    result = train(make_config("CartPole-v1", given), quiet=True)
    longer = make_config("CartPole-v1", {**given, "total_env_steps": 4_000})
    train(longer, resume=str(result.folder), quiet=True)
    whole = {**given, "total_env_steps": 4_000, "run_folder": str(tmp_path / "whole")}
    train(make_config("CartPole-v1", whole), quiet=True)
    one, other = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert [name for name, x in one.items() if not torch.equal(x, other[name])] == []
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["replay/ratio"] > 0.0
    assert any("replay/attentive_distance_p50" in row for row in rows)
