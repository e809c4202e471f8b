"""Training on a GPU: alone, in groups that mix through it, in processes, and on from a checkpoint."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL, state_of

import gossamer
from gossamer.build.auto import device_of, make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.policies.core import Core
from gossamer.policies.settings import PolicyConfig
from gossamer.run.train import train
from gossamer.system.devices import Mark, own_stream

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
        deterministic=True,
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


def parameters_of(folder: Path) -> dict[str, torch.Tensor]:
    return {k: x for k, x in state_of(folder).items() if k.startswith("learner.policy.")}


@pytest.mark.parametrize("placement", ["inline", "local"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_deterministic_runs_are_alike_and_resume_exactly(
    tmp_path: Path, core: str, placement: str
) -> None:
    given = settings(
        tmp_path / "run", placement=placement, lag="1", algorithm={"name": "vtrace"},
        deterministic=True, **{"policy.core": core},
    )  # fmt: skip
    train(make_config("CartPole-v1", given), quiet=True)
    train(
        make_config("CartPole-v1", {**given, "total_env_steps": 4_000}),
        resume=str(tmp_path / "run"),
        quiet=True,
    )
    whole = {**given, "total_env_steps": 4_000, "run_folder": str(tmp_path / "whole")}
    train(make_config("CartPole-v1", whole), quiet=True)
    one, other = parameters_of(tmp_path / "run"), parameters_of(tmp_path / "whole")
    assert [name for name, x in one.items() if not torch.equal(x, other[name])] == []


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("env_groups", [1, 2])
def test_a_compiled_policy_acts_as_it_is(tmp_path: Path, env_groups: int, core: str) -> None:
    """Its recurrent state is not what a CUDA graph has written over."""
    held: list[dict[str, torch.Tensor]] = []
    for compiled in (False, True):
        given = settings(
            tmp_path / str(compiled), placement="local", lag="1", algorithm={"name": "vtrace"},
            env_groups=env_groups, compile=compiled, total_env_steps=512, deterministic=True,
            **{"policy.core": core, "precision": "fp32", "optimizer.learning_rate": 1e-8},
        )  # fmt: skip
        train(make_config("CartPole-v1", given), quiet=True)
        held.append(state_of(tmp_path / str(compiled)))
    for name in ("behavior", "value", "core_state"):
        ours, theirs = (x[f"queue.0.{name}"] for x in held)
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_packed_sequences_are_computed_as_on_a_cpu(core: str) -> None:
    torch.manual_seed(1)
    here = Core(PolicyConfig(core=core, core_size=32, core_layers=2), 16)  # type: ignore[arg-type]
    there = copy.deepcopy(here).to("cuda")
    x, starts = torch.randn(20 * 8, 16), torch.rand(20, 8) < 0.1
    state = torch.randn(here.state_size, 8)
    for ours, theirs in zip(
        there(x.cuda(), starts, state.cuda()), here(x, starts, state), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)


def test_nothing_waits_for_the_device_but_the_reads_that_are_counted(tmp_path: Path) -> None:
    """torch warns of every synchronisation; the lines are the ones that may wait."""
    given = settings(
        tmp_path / "run", placement="inline", total_env_steps=640, algorithm={"name": "ppo"},
        **{"policy.core": "lstm", "evaluation.every_seconds": 0.0},
    )  # fmt: skip
    torch.cuda.init()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train(make_config("CartPole-v1", given), quiet=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = {Path(x.filename).name for x in told if "synchroniz" in str(x.message)}
    # Numbers of an update, what an actor is told, and what is built, saved or ended with.
    allowed = {"devices.py", "snapshot.py", "build.py", "learner.py", "actor.py", "module.py"}
    assert lines <= allowed, lines


def test_acting_and_learning_have_a_stream_each() -> None:
    device = torch.device("cuda")
    before = torch.cuda.current_stream(device)
    with own_stream(device, first=True):
        mine = torch.cuda.current_stream(device)
        assert mine != before
        mark = Mark(device)
        mark.set()
    mark.follow()
    assert torch.cuda.current_stream(device) == before


def test_two_gpus_average_over_nccl_what_one_process_averages(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    common: dict[str, Any] = {"num_learners": 2, "total_env_steps": 1_000}
    for name, topology in (("nccl", "nccl"), ("memory", "memory")):
        given = settings(
            tmp_path / name, placement="local", topology={"name": "allreduce", "transport": topology},
            **common,
        )  # fmt: skip
        train(make_config("CartPole-v1", given), quiet=True)
    one, other = state_of(tmp_path / "nccl"), state_of(tmp_path / "memory")
    for name, x in one.items():
        if "learner.policy." in name:
            torch.testing.assert_close(x, other[name], rtol=1e-2, atol=1e-3)


def test_a_policy_is_evaluated_on_the_device(tmp_path: Path) -> None:
    train(make_config("CartPole-v1", settings(tmp_path / "run")), quiet=True)
    scores = [
        gossamer.evaluate(str(tmp_path / "run"), episodes=3, device=x) for x in ("cuda", "cpu")
    ]
    assert scores[0].lengths == pytest.approx(scores[1].lengths, rel=0.2)
