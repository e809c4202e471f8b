"""Training on a GPU: alone, in groups that mix through it, in processes, and on from a checkpoint."""

from __future__ import annotations

import copy
import json
import warnings
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from core_fakes import make_learner, poisoned, random_batch, small_policy, spec_of
from random_envs import RandomEnvs
from recorder import calling
from runs import SMALL, state_of

import gossamer
from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.build.plan import device_of, make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.core import Core
from gossamer.policies.settings import PolicyConfig
from gossamer.roles.actor import Actor
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.run.train import train
from gossamer.system.devices import Mark, own_stream, use_deterministic_algorithms
from gossamer.system.graphs import Graphs
from gossamer.types import empty_trajectory

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


@pytest.fixture
def deterministic() -> Generator[None]:
    use_deterministic_algorithms(True)
    yield
    use_deterministic_algorithms(False)


def test_learner_r_is_on_gpu_r_mod_n() -> None:
    config = make_config("CartPole-v1", {"device": "cuda"})
    plan = make_plan(config, read_spec(config.env_id, config.env, 0))
    count = torch.cuda.device_count()
    assert [device_of(plan, rank) for rank in range(5)] == [f"cuda:{r % count}" for r in range(5)]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "PongNoFrameskip-v4"])
@pytest.mark.parametrize("kept", ["cpu", "cuda"])
@pytest.mark.parametrize("placement", ["inline", "local"])
def test_replays_feed_a_gpu_and_are_measured_on_it(
    tmp_path: Path, placement: str, kept: str, env_id: str
) -> None:
    quarter = {"fraction": 0.25, "capacity": 40, "device": kept}
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
    result = train(make_config(env_id, given), quiet=True)
    longer = make_config(env_id, {**given, "total_env_steps": 4_000})
    train(longer, resume=str(result.folder), quiet=True)
    whole = {**given, "total_env_steps": 4_000, "run_folder": str(tmp_path / "whole")}
    train(make_config(env_id, whole), quiet=True)
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


def on(device: str, thing: Any) -> Any:
    return copy.deepcopy(thing).to(device)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize(
    "algorithm", [A2C(), VTrace(), Laser(), PPO(passes=2), Impact()], ids=lambda x: x.name
)
def test_what_is_captured_is_what_is_called(
    deterministic: None, algorithm: Algorithm, core: str
) -> None:
    """On new data, with a batch whose gradient is not finite and a learning rate that falls."""
    spec = spec_of(obs_shape=(4, 36, 36))
    held: list[dict[str, torch.Tensor]] = []
    for graphs in (calling(), Graphs(torch.device("cuda"))):
        policy = small_policy(spec, core=core, core_size=8, fc_size=32, normalize_obs=True).cuda()
        batches = [random_batch(spec, 5, 8, seed=i, core_units=policy.core_units) for i in range(7)]
        poisoned(batches[4])
        learner = make_learner(
            policy,
            algorithm,
            *batches,
            graphs=graphs,
            optimizer=OptimizerConfig(learning_rate=(1e-4,)),
        )
        for _ in range(7):
            learner.learn_version()
        assert learner.nonfinite_updates > 0
        held.append(
            {k: x.clone() for k, x in learner.state_dict().items() if isinstance(x, torch.Tensor)}
        )
    for name, x in held[0].items():
        assert torch.equal(x, held[1][name]), name


@pytest.fixture
def full_precision() -> Generator[None]:
    """Convolutions multiply numbers of 24 bits, as a CPU's do, and not of 11."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_one_update_is_what_a_cpu_computes(full_precision: None, core: str) -> None:
    """By an optimizer whose step is nearly the gradient: others make whole steps of what is rounding."""
    spec = spec_of(obs_shape=(4, 36, 36))
    moved: list[dict[str, torch.Tensor]] = []
    for device in ("cpu", "cuda"):
        policy = small_policy(spec, core=core, core_size=8, fc_size=32, normalize_obs=True).to(
            device
        )
        before = {name: x.detach().cpu().clone() for name, x in policy.state_dict().items()}
        batch = random_batch(spec, 5, 8, seed=1, core_units=policy.core_units)
        optimizer = OptimizerConfig(name="rmsprop", learning_rate=(100.0,), epsilon=100.0)
        learner = make_learner(policy, VTrace(), batch, optimizer=optimizer)
        learner.learn_version()
        moved.append({name: x.cpu() - before[name] for name, x in policy.state_dict().items()})
    parameters = [name for name, _ in policy.named_parameters()]
    assert [x for x in parameters if moved[0][x].numel() and not moved[0][x].any()] == []
    for name, x in moved[0].items():
        most = float(x.abs().max()) if x.numel() else 0.0
        torch.testing.assert_close(
            moved[1][name], x, rtol=0.0, atol=1e-3 * most, msg=lambda told, name=name: f"{name}: {told}"
        )  # fmt: skip


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_captured_acting_is_acting_that_is_called(deterministic: None, core: str) -> None:
    spec = spec_of(obs_shape=(4, 36, 36))
    held: list[list[torch.Tensor]] = []
    for graphs in (calling(), Graphs(torch.device("cuda"))):
        settings = {
            "core": core,
            "core_size": 8,
            "fc_size": 32,
            "last_reward": True,
            "last_action": True,
        }
        policy = small_policy(spec, **settings).cuda().requires_grad_(False)
        envs = [RandomEnvs(spec, 4, seed=i) for i in range(2)]
        actor = Actor(
            envs, policy, unroll_length=5, seeds=[1, 2], on_episode=lambda x: None, graphs=graphs
        )
        slot = empty_trajectory(
            spec,
            unroll_length=5,
            num_columns=8,
            core_units=policy.core_units,
            device=torch.device("cuda"),
        )
        found: list[torch.Tensor] = []
        for version in range(4):
            actor.collect(slot, version)
            found += [x.cpu().clone() for _, x, _ in slot.each()]
        held.append(found)
    for one, other in zip(*held, strict=True):
        assert torch.equal(one, other)


class Looks(torch.nn.Module):
    """Feature layers that branch on their data."""

    feature_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if float(x.sum()) > 0.0 else self.layer(-x)


def test_a_run_with_such_a_torso_goes_through(tmp_path: Path) -> None:
    result = train(
        make_config("CartPole-v1", settings(tmp_path / "run")), torso=Looks(), quiet=True
    )
    assert result.summary["exit_reason"] == "done: total_env_steps reached"


def test_a_torso_that_looks_at_its_data_is_run_step_by_step_and_said_once() -> None:
    told: list[str] = []
    spec = spec_of()
    policy = ActorCritic(spec, PolicyConfig(), torso=Looks()).cuda()
    learner = make_learner(
        policy, VTrace(), *[random_batch(spec, 5, 4, seed=i) for i in range(5)],
        graphs=Graphs(torch.device("cuda"), tell=told.append),
    )  # fmt: skip
    for _ in range(5):
        learner.learn_version()
    assert learner.version == 5
    (line,) = told
    assert "cannot be captured" in line


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_recurrent_rows_are_computed_as_on_a_cpu(core: str) -> None:
    torch.manual_seed(1)
    here = Core(PolicyConfig(core=core, core_size=32, core_layers=2), 16)  # type: ignore[arg-type]
    there = on("cuda", here)
    x, starts = torch.randn(20 * 8, 16), torch.rand(20, 8) < 0.1
    state = torch.randn(here.state_size, 8)
    for ours, theirs in zip(
        there(x.cuda(), starts.cuda(), state.cuda()), here(x, starts, state), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)


def waits(folder: Path, versions: int) -> dict[str, int]:
    """Return how often each line waited for the device in a run: torch warns of every time."""
    given = settings(
        folder, placement="inline", total_env_steps=64 * versions, algorithm={"name": "ppo"},
        **{"policy.core": "lstm", "evaluation.every_seconds": 0.0},
    )  # fmt: skip
    torch.cuda.init()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # which warns itself
            train(make_config("CartPole-v1", given), quiet=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = [x for x in told if "synchroniz" in str(x.message)]
    return Counter(f"{Path(x.filename).name}:{x.lineno}" for x in lines)


def test_nothing_waits_for_the_device_but_the_reads_that_are_counted(tmp_path: Path) -> None:
    """What longer training adds to building, warming up, capturing and saving: a step's actions, a version's rows and decisions."""
    short, long = waits(tmp_path / "short", 10), waits(tmp_path / "long", 20)
    more = {line for line, times in long.items() if times >= short[line] + 10}
    allowed = {"devices.py", "streams.py", "updates.py", "learner.py"}
    assert more
    assert {line.split(":")[0] for line in more} <= allowed, {x: long[x] - short[x] for x in more}


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
