"""A run goes on on another machine: what is the run's stays, the rest is the machine's, and it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL_ATARI, assert_same, config, log_of

from gossamer.build.plan import Plan, make_plan
from gossamer.config import TrainConfig, make_config, to_dict
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.machine import Machine, this_machine
from gossamer.record.checkpoint import Checkpoint, CheckpointStore
from gossamer.run import prepare as prepare_module
from gossamer.run.resumed_settings import for_this_machine, resumed_plan
from gossamer.run.train import train, train_command

PONG = "PongNoFrameskip-v4"
SMALL = Machine(cores=2, processor="Small", gpus=(), bf16=(), torch="2.0")
LARGE = replace(SMALL, cores=16)
OTHER = replace(SMALL, processor="Other", bf16=("cpu",))
WITH_GPU = replace(SMALL, gpus=("GPU 80",), bf16=("cuda",))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a run believe that it is on a machine."""

    def be(machine: Machine) -> None:
        monkeypatch.setattr(prepare_module, "this_machine", lambda: machine)

    return be


def last(folder: Path) -> Checkpoint:
    return CheckpointStore(folder / "checkpoints", 0).load("last")


def rewrite(folder: Path, **plan: Any) -> None:
    """Let the last checkpoint have been written under another plan."""
    found = last(folder)
    state = {**found.state, "plan": {**found.state["plan"], **plan}}
    CheckpointStore(folder / "checkpoints", 0).save(found.updates, found.tensors, state)


def test_this_machine_is_like_itself() -> None:
    machine = this_machine()
    assert machine == this_machine()
    assert machine.cores >= 1
    assert machine.processor


def test_more_cores_change_nothing_but_a_hint(tmp_path: Path, on: Any) -> None:
    on(SMALL)
    train(config(PONG, tmp_path / "one", 96), quiet=True)
    train(config(PONG, tmp_path / "two", 32), quiet=True)
    on(LARGE)
    train(config(PONG, tmp_path / "two", 96), resume=str(tmp_path / "two"), quiet=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    told = log_of(tmp_path / "two")
    assert [line for line in told if line.startswith("resumed exactly at 32 env steps")]
    assert [line for line in told if line.endswith(": --learner-threads 8 --actor-threads 2")]
    assert plan_of(LARGE)[1].env_groups == 2, "of a new run"
    assert last(tmp_path / "two").state["plan"]["env_groups"] == 1


def test_on_fewer_cores_threads_are_fewer_and_groups_as_many(tmp_path: Path, on: Any) -> None:
    on(LARGE)
    train(config(PONG, tmp_path, 32), quiet=True)
    on(SMALL)
    train(config(PONG, tmp_path, 64), resume=str(tmp_path), quiet=True)
    plan = last(tmp_path).state["plan"]
    assert (plan["env_groups"], plan["learner_threads"], plan["actor_threads"]) == (2, 1, 1)
    (told,) = [line for line in log_of(tmp_path) if line.startswith("resumed")]
    why = "learner_threads 8 -> 1, actor_threads 2 -> 1".replace(", ", "; ")
    assert told.startswith(f"resumed (not exactly: {why}) at 32 env steps")
    assert not [line for line in log_of(tmp_path) if line.startswith("changed")][1:]


@pytest.mark.parametrize(
    ("env_id", "anew"),
    [(PONG, {}), ("CartPole-v1", {"max_episode_steps": 50})],  # the second is tried out again
)
def test_from_a_gpu_to_a_cpu(tmp_path: Path, on: Any, env_id: str, anew: dict[str, int]) -> None:
    on(SMALL)
    train(config(env_id, tmp_path, 32, lag="1"), quiet=True)
    found = last(tmp_path)
    tensors = {**found.tensors, "actor.generator": torch.zeros(16, dtype=torch.uint8)}
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved == found.state["settings"]
    saved |= {"device": "cuda"}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    state = {**found.state, "settings": saved}
    CheckpointStore(tmp_path / "checkpoints", 0).save(found.updates, tensors, state)
    rewrite(tmp_path, device="cuda", precision="bf16", micro_batch_rows=36, hardware="GPU 80")
    longer = make_config(settings={"total_env_steps": 64, **anew}, resume=str(tmp_path))
    assert longer.device == "cuda"
    result = train_command(
        longer, layers={}, argv=[], resume=tmp_path, config_given={"total_env_steps", *anew}
    )
    assert result.summary["env_steps"] >= 64
    plan = last(tmp_path).state["plan"]
    assert (plan["device"], plan["precision"], plan["num_envs"]) == ("cpu", "fp32", 4)
    (told,) = [line for line in log_of(tmp_path) if line.startswith("resumed")]
    new = "with new episodes (not exactly: max_episode_steps 0 -> 50; "
    how = new if anew else "(not exactly: "
    assert told.startswith(f"resumed {how}device cuda -> cpu) at ")
    assert "changed: device cuda -> auto" in log_of(tmp_path)


def plan_of(machine: Machine, **settings: Any) -> tuple[TrainConfig, Plan]:
    made = make_config(PONG, {**SMALL_ATARI, **settings})
    return made, make_plan(made, read_spec(PONG, made.env), machine)


def resumed(saved: Plan, made: TrainConfig, machine: Machine, *given: str) -> tuple[Plan, str]:
    now = for_this_machine(made, machine, set(given), saved)
    spec = read_spec(PONG, made.env)
    return resumed_plan(saved, now, spec, machine, set(given), to_dict(made))


def test_from_a_cpu_to_a_gpu_the_run_keeps_what_is_its_own() -> None:
    made, plan = plan_of(LARGE, learner_threads=4, num_envs=8)
    auto = replace(made, num_envs=0)  # what a new run would have is not what this one has
    now, more = resumed(plan, auto, WITH_GPU)
    assert (now.device, now.precision, now.learner_threads) == ("cuda", "bf16", 1)
    assert (now.num_envs, now.env_groups, now.lag) == (8, 2, plan.lag)
    assert now.micro_batch_rows == 8 * 9, "a whole batch, of so many environments"
    assert not more
    with pytest.raises(ConfigError, match="--learner-threads 4: on a GPU a batch is learnt whole"):
        resumed(plan, made, WITH_GPU, "learner_threads")
    with pytest.raises(ConfigError, match="num_envs is 16, but this run was begun with 8"):
        resumed(plan, replace(made, num_envs=16), LARGE, "num_envs")
    stays, _ = resumed(plan, replace(made, device="cpu"), WITH_GPU)
    assert stays == replace(plan, cores=2, learner_threads=1, env_threads=2, actor_threads=1)
    made, plan = plan_of(LARGE, actor_threads=2)
    assert resumed(plan, made, WITH_GPU)[0].actor_threads == 1
    with pytest.raises(ConfigError, match="--actor-threads 2: a GPU computes all actions at once"):
        resumed(plan, made, WITH_GPU, "actor_threads")


def test_a_gpu_that_is_asked_for_anew_and_is_not_there_is_refused() -> None:
    made, plan = plan_of(SMALL)
    with pytest.raises(ConfigError, match="--device cuda: this machine"):
        resumed(plan, replace(made, device="cuda"), SMALL, "device")


def test_another_processor_chooses_its_own_arithmetic() -> None:
    made, plan = plan_of(SMALL)
    assert resumed(plan, made, SMALL)[0] == plan
    assert resumed(plan, made, OTHER)[0].precision == "bf16"
    assert resumed(plan, made, replace(OTHER, processor="Small"))[0].precision == "fp32"
    assert resumed(plan, replace(made, precision="fp32"), OTHER)[0].precision == "fp32"
    made, plan = plan_of(OTHER)
    assert resumed(plan, made, SMALL)[0].precision == "fp32"
    explicit, plan = plan_of(SMALL, precision="bf16")
    assert resumed(plan, explicit, SMALL)[0] == plan


def test_of_an_older_checkpoint_only_what_cannot_be_is_changed() -> None:
    made, plan = plan_of(OTHER)
    old = replace(plan, cores=0, hardware="", torch="")
    now, more = resumed(replace(old, learner_threads=2), made, OTHER)
    assert not more, "it is not known of how many cores it was"
    assert (now.learner_threads, now.precision) == (2, "bf16")
    assert resumed(old, made, SMALL)[0].precision == "fp32"


def test_threads_beyond_the_cores_are_kept_where_they_were_asked_for() -> None:
    made, plan = plan_of(SMALL, learner_threads=3)
    assert resumed(plan, made, SMALL)[0] == plan
    assert resumed(plan, made, replace(SMALL, cores=1))[0].learner_threads == 1
    assert resumed(plan, made, LARGE)[0].learner_threads == 3


def test_nccl_is_let_go_of_where_there_is_no_gpu() -> None:
    settings: dict[str, Any] = {
        "num_learners": 2,
        "topology": {"name": "allreduce", "transport": "nccl"},
    }
    made, plan = plan_of(WITH_GPU, **settings)
    now = for_this_machine(made, SMALL, set(), plan)
    assert getattr(now.topology, "transport", "") == "auto"
    kept = for_this_machine(made, SMALL, {"topology.transport"}, plan)
    assert getattr(kept.topology, "transport", "") == "nccl"


def test_a_fleet_goes_on_with_other_cores(tmp_path: Path, on: Any) -> None:
    on(LARGE)
    settings: dict[str, Any] = {
        "num_learners": 2,
        "topology": make_config("CartPole-v1", {"topology": "allreduce"}).topology,
    }
    train(config("CartPole-v1", tmp_path, 128, **settings), quiet=True)
    on(replace(SMALL, torch="2.1"))
    longer = config("CartPole-v1", tmp_path, 256, **settings)
    assert train(longer, resume=str(tmp_path), quiet=True).summary["env_steps"] >= 256
    (told,) = [line for line in log_of(tmp_path) if line.startswith("resumed")]
    assert told.startswith("resumed (not exactly: torch 2.0 -> 2.1) at ")
