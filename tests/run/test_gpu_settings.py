"""What a run on a GPU is set up as, and refused for, told by a machine that has none."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from gossamer import evaluate
from gossamer.algorithms.a2c import A2C
from gossamer.build.plan import device_of, make_plan, on_cpu
from gossamer.build.preflight import refuse_what_a_gpu_cannot_hold
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.links.threads import Roles, ThreadQueue
from gossamer.machine import Machine
from gossamer.ops.micro_batches import MicroBatches
from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.settings import PolicyConfig
from gossamer.replay.batches import BatchSource
from gossamer.roles.learner import Learner
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.run.checkpoint_contents import RecorderState, RunState
from gossamer.run.placements.out_of_process import OutOfProcess
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.resume import resumes_exactly, why_not_exact
from gossamer.run.resumed_settings import for_this_machine
from gossamer.run.train import train
from gossamer.tools.bench import limit_of
from gossamer.types import empty_trajectory

MACHINE = Machine(2, "a processor", ("a GPU",), ("cpu", "cuda"), "2.13.0")
LAPTOP = Machine(2, "a processor", (), ("cpu",), "2.13.0")


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU; calling it sets how many bytes are free there."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def free(nbytes):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (int(nbytes), 80 << 30))

    return free


def planned(env_id="PongNoFrameskip-v4", *, machine=MACHINE, **settings):
    config = make_config(env_id, settings)
    spec = read_spec(env_id, config.env, 0, tries=False)
    return config, spec, make_plan(config, spec, machine)


def test_a_cluster_on_which_no_gpus_are_asked_for_computes_without():
    _, _, plan = planned("CartPole-v1", placement="cluster")
    assert (plan.device, plan.hardware) == ("cpu", "a processor")
    with pytest.raises(ConfigError, match=r"--cluster\.gpus-per-learner 1"):
        planned("CartPole-v1", placement="cluster", device="cuda")
    asked = {"cluster.gpus_per_learner": 0.5, "placement": "cluster"}
    assert planned("CartPole-v1", **asked)[2].device == "cuda"


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_gpus_of_a_cluster_are_used_from_a_machine_that_has_none(device):
    settings = {"cluster.gpus_per_learner": 1.0, "placement": "cluster", "device": device}
    config, spec, plan = planned(machine=LAPTOP, **settings)
    assert (plan.device, plan.precision, plan.hardware) == ("cuda", "bf16", "")
    refuse_what_a_gpu_cannot_hold(config, spec, plan)  # it cannot be looked at from here
    assert planned(machine=LAPTOP, **{**settings, "device": "cpu"})[2].device == "cpu"
    with pytest.raises(ConfigError, match="this machine or this build of torch has none"):
        make_plan(dataclasses.replace(config, placement="local", device="cuda"), spec, LAPTOP)


def test_many_games_beside_a_gpu_are_made_in_worker_processes(monkeypatch):
    monkeypatch.setattr("gossamer.build.plan.main_is_ours", lambda: True)

    def workers(cores, env_id="PongNoFrameskip-v4", **settings):
        given = {"algorithm": "vtrace", "device": "cuda", **settings}
        _, _, plan = planned(env_id, machine=dataclasses.replace(MACHINE, cores=cores), **given)
        assert plan.num_envs % plan.env_groups == 0
        return plan.num_envs, plan.env_groups, plan.env_workers

    assert workers(16) == (128, 2, 16)
    assert workers(8) == (128, 2, 8)
    assert workers(1)[2] == 0, "cores would be wanting"
    assert workers(24, num_envs=88)[2] == 22, "a divisor of a group"
    assert workers(16, num_envs=32)[2] == 16, "one game of a group each"
    assert workers(8, num_envs=62)[2] == 0, "a worker alone gains nothing"
    assert workers(16, env_threads=5)[2] == 4, "no more than the threads that are asked for"
    assert workers(16, env_threads=1)[2] == 0
    for fewer in (
        {"num_envs": 16},
        {"placement": "inline"},
        {"actors_per_learner": 2},
        {"env.workers": 0},
        {"env.workers": 2},
        {"env_id": "CartPole-v1", "num_envs": 64},
    ):
        assert workers(16, **fewer)[2] == 0, fewer
    laptop = dataclasses.replace(LAPTOP, cores=16)
    plan = planned(algorithm="vtrace", machine=laptop)[2]
    assert plan.env_workers == 0, "learners make their own"
    monkeypatch.setattr("gossamer.build.plan.free_memory", lambda: 6 << 30)
    assert workers(16)[2] == 8, "sixteen processes take half of it"
    monkeypatch.setattr("gossamer.build.plan.free_memory", lambda: 512 << 20)
    assert workers(16)[2] == 0
    monkeypatch.setattr("gossamer.build.plan.free_memory", lambda: 64 << 30)
    assert workers(16)[2] == 16
    monkeypatch.setattr("gossamer.build.plan.main_is_ours", lambda: False)
    assert workers(16)[2] == 0, "a process that is started would run the user's script again"


MAIN = "from gossamer.system.importing import main_is_ours; print(main_is_ours())"


def test_a_command_is_told_from_a_script_of_the_users(tmp_path):
    def says(*words):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    script, command = tmp_path / "train.py", tmp_path / "gossamer"
    for file in (script, command):
        file.write_text(MAIN)
    assert says(str(script)) == "False"
    assert says("-c", MAIN) == "False"
    assert says(str(command)) == "True"
    named = tmp_path / "gossamer.smoke.py"
    named.write_text(MAIN)
    assert says(str(named)) == "False"
    module = "import sys, types; m = sys.modules['__main__']; m.__spec__ = types.SimpleNamespace(name='gossamer.__main__'); "
    assert says("-c", module + MAIN) == "True"


def test_actors_with_cores_of_their_own_use_them_and_leave_the_learner_its_own():
    def threads(**settings):
        given = {"placement": "cluster", "lag": "1", "num_envs": 64, **settings}
        _, _, plan = planned(machine=dataclasses.replace(MACHINE, cores=4), **given)
        return plan.learner_threads, plan.actor_threads, plan.env_threads

    assert threads() == (2, 1, 4)
    assert threads(actors_per_learner=2) == (4, 1, 2), "a core each"
    assert threads(**{"actors_per_learner": 2, "cluster.cpus_per_actor": 3}) == (4, 2, 6)
    assert threads(**{"actors_per_learner": 2, "cluster.cpus_per_actor": 0}) == (2, 1, 4), (
        "beside it"
    )
    on_gpu = {"cluster.gpus_per_learner": 1.0, "cluster.cpus_per_actor": 16}
    assert threads(actors_per_learner=2, **on_gpu) == (1, 2, 32), "on CPUs"
    assert threads(actors_per_learner=2, actor_threads=3, **on_gpu)[1] == 3


def test_replays_that_leave_no_room_to_learn_are_told(gpu):
    settings = {"algorithm": "laser", "device": "cuda", "num_envs": 16, "unroll_length": 16, "policy.last_filters": 64, "replays": [
        {"name": "queue", "fraction": 0.5},
        {"name": "uniform", "fraction": 0.5, "capacity_steps": 400_000, "device": "cuda"},
    ]}  # fmt: skip
    config, spec, plan = planned(**settings)
    gpu(3 << 30)
    with pytest.raises(
        ConfigError,
        match=r"3.22 GB are free; replays take 3.54 GB: .*--replays.1.device cpu$",
    ):
        refuse_what_a_gpu_cannot_hold(config, spec, plan)
    gpu(8 << 30)
    refuse_what_a_gpu_cannot_hold(config, spec, plan)
    on_host = dataclasses.replace(config.replays[1], device="cpu")
    gpu(3 << 30)
    config = dataclasses.replace(config, replays=(config.replays[0], on_host))
    refuse_what_a_gpu_cannot_hold(config, spec, plan)


def test_a_replay_on_a_gpu_is_resumed_on_a_machine_without():
    sources = [
        {"name": "queue", "fraction": 0.5},
        {"name": "uniform", "fraction": 0.5, "device": "cuda"},
    ]
    config = make_config("CartPole-v1", {"algorithm": "laser", "replays": sources})

    def kept(machine, *given):
        return for_this_machine(config, machine, set(given), planned()[2]).replays[1].device

    assert kept(LAPTOP) == "auto"
    assert kept(LAPTOP, "replays.1.capacity_steps") == "auto"
    assert kept(LAPTOP, "replays.1.device") == "cuda"
    assert kept(LAPTOP, "replays") == "cuda"
    assert kept(MACHINE) == "cuda"


def test_the_evaluator_computes_where_it_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = {"placement": "cluster", "cluster.gpus_per_learner": 1.0, "precision": "bf16"}
    config, spec, plan = planned("CartPole-v1", **asked)
    placement = OutOfProcess(config, spec, plan, layout_of(config), tried=True)
    placement.memory = SimpleNamespace(versions=SimpleNamespace(read_next=None))
    evaluator = placement.make_evaluator()
    assert evaluator is not None
    assert {x.device.type for x in evaluator.policy.parameters()} == {"cpu"}


def test_defaults_are_sized_for_a_gpu():
    config, _, plan = planned()
    assert (plan.device, plan.precision, plan.env_groups, plan.learner_threads) == (
        "cuda",
        "bf16",
        2,
        1,
    )
    assert plan.num_envs == config.num_envs == 16, "which PPO's other settings go with"
    assert plan.micro_batch_rows == plan.num_envs * (config.unroll_length + 1)
    assert planned(algorithm="vtrace", device="cuda")[2].num_envs == 128
    assert planned(algorithm="vtrace", device="cpu")[2].num_envs == 16
    on_cpu = planned(device="cpu")[2]
    assert (on_cpu.device, on_cpu.env_groups) == ("cpu", 1)
    assert planned(num_envs=8, env_groups=1)[2].num_envs == 8
    assert plan.actor_threads == 1
    with pytest.raises(ConfigError, match="--actor-threads 2: a GPU computes all actions at once"):
        planned(actor_threads=2)


class Reached(Exception):
    """A run has come this far."""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_deterministic_algorithms_are_set_before_anything_is_made(monkeypatch, device):
    def reached(name):
        def raises(*_):
            raise Reached(name)

        return raises

    def plan_of(config, spec, machine=None):
        return dataclasses.replace(make_plan(config, spec, machine), device=device)

    monkeypatch.setattr("gossamer.run.prepare.make_plan", plan_of)
    monkeypatch.setattr(
        "gossamer.run.prepare.use_deterministic_algorithms", lambda on: reached(on)()
    )
    name = "gossamer.run.prepare.refuse_what_memory_cannot_hold"
    monkeypatch.setattr(name, reached("not set"))
    for asked in (True, False):
        expected = str(asked) if device == "cuda" else "not set"
        with pytest.raises(Reached, match=f"^{expected}$"):
            train(make_config("CartPole-v1", {"deterministic": asked}), quiet=True)


def test_deterministic_algorithms_hold_for_the_whole_process():
    code = "import os, torch; from gossamer.system.devices import use_deterministic_algorithms as use; use(True);"
    code += "print(torch.are_deterministic_algorithms_enabled(), os.environ['CUBLAS_WORKSPACE_CONFIG']);"
    code += "use(False); print(torch.are_deterministic_algorithms_enabled())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True :4096:8\nFalse\n"


def test_exactness_is_claimed_only_where_sums_have_an_order():
    def why(before=None, **settings):
        config, spec, plan = planned(lag="1", **settings)
        assert resumes_exactly(config, spec, plan), "environments come back all the same"
        saved = RunState([], plan, exact=True, recorder=RecorderState([], 0, 0.0, (0, 0.0)))
        return why_not_exact(config, spec, plan, saved, before)

    assert why() == ["a GPU sums in no fixed order without --deterministic"]
    assert why(deterministic=True) == []
    assert why(device="cpu") == []
    acted = {"actors_per_learner": 0}
    assert why(acted, device="cpu", actors_per_learner=2) == []
    told = ["actions are computed on CPUs now"]
    assert why(acted, deterministic=True, actors_per_learner=2) == told


def test_what_cannot_be_deterministic_is_refused():
    with pytest.raises(ConfigError, match=r"--policy\.torso nature"):
        planned(**{"deterministic": True, "policy.torso": "impala"})
    with pytest.raises(ConfigError, match=r"--policy\.encoders\.image nature"):
        planned(**{"deterministic": True, "policy.encoders.image": "impala"})
    planned(**{"deterministic": True, "policy.torso": "impala", "device": "cpu"})
    with pytest.raises(ConfigError, match="--lag 1"):
        planned(deterministic=True, lag="free")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "settings", [{}, {"policy.torso": "impala", "policy.core": "lstm"}], ids=str
)
def test_what_the_device_cannot_hold_is_refused_with_rows_that_fit(gpu, settings, precision):
    settings = {"num_envs": 512, "unroll_length": 128, "precision": precision, **settings}
    config, spec, plan = planned(**settings)
    gpu(600 << 30)
    refuse_what_a_gpu_cannot_hold(config, spec, plan)
    gpu(10 << 30)
    with pytest.raises(ConfigError, match="of the GPU's memory") as told:
        refuse_what_a_gpu_cannot_hold(config, spec, plan)
    found = re.search(r"--micro-batch-rows (\d+)$", str(told.value))
    assert found is not None, told.value
    assert 129 <= int(found[1]) < plan.micro_batch_rows
    refuse_what_a_gpu_cannot_hold(*planned(**settings, micro_batch_rows=int(found[1])))
    with pytest.raises(ConfigError, match="learnt at a time in each of 3 processes"):
        refuse_what_a_gpu_cannot_hold(
            *planned(**settings, micro_batch_rows=int(found[1])), processes=3
        )
    gpu(1 << 20)
    with pytest.raises(ConfigError, match="--num-envs 256"):
        refuse_what_a_gpu_cannot_hold(config, spec, plan)
    # What processes take by themselves is more than there is.
    many = planned(num_envs=4, unroll_length=4, num_learners=48)
    gpu(20 << 30)
    with pytest.raises(ConfigError, match=r"--learners-per-process 48$"):
        refuse_what_a_gpu_cannot_hold(*many, processes=48)
    refuse_what_a_gpu_cannot_hold(config, spec, dataclasses.replace(plan, device="cpu"))


class Looks(torch.nn.Module):
    """Feature layers that branch on their data."""

    feature_size = 4

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0.0 else self.layer(-x)


def test_layers_that_look_at_their_data_are_measured_too(gpu):
    settings = planned("CartPole-v1")
    gpu(10 << 30)
    refuse_what_a_gpu_cannot_hold(*settings, Looks())
    gpu(1 << 10)
    with pytest.raises(ConfigError, match="of the GPU's memory"):
        refuse_what_a_gpu_cannot_hold(*settings, Looks())


@dataclasses.dataclass(frozen=True)
class Greedy(A2C):
    """Takes more memory than there is."""

    def loss(self, policy, batch, state):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_memory_that_is_too_small_after_all_is_told_with_what_to_type():
    spec = read_spec("CartPole-v1", make_config("CartPole-v1").env, 0, tries=False)
    slot = empty_trajectory(spec, unroll_length=7, num_columns=4, core_units=0)
    queue = ThreadQueue([slot], StopSignal(), Roles(1.0))
    queue.put(queue.slot())
    learner = Learner(ActorCritic(spec, PolicyConfig()), Greedy(), OptimizerConfig(), BatchSource(queue),
                      micro_batches=MicroBatches(32), total_env_steps=100, seed=1)  # fmt: skip
    with pytest.raises(RunFailed, match=r"32 rows at a time .*2\.00 GiB.* --micro-batch-rows 16"):
        learner.learn_version()


def test_evaluation_asks_for_a_device_that_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="use --device cpu"):
        evaluate("nothing", device="cuda")
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        evaluate("nothing", device="tpu")


def test_the_limit_of_a_gpu_is_what_it_does_beside_stepping():
    rates = {"stepping": 60_000.0, "inference": 200_000.0, "learning": 50_000.0}
    assert limit_of(rates, on_gpu=True) == pytest.approx(40_000.0)
    assert limit_of({**rates, "stepping": 30_000.0}, on_gpu=True) == 30_000.0
    assert limit_of(rates, on_gpu=False) == pytest.approx(24_000.0)


def test_learners_are_shared_out_among_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    plan = planned()[2]
    assert [device_of(plan, rank) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of(dataclasses.replace(plan, device="cpu"), 1) == "cpu"


@pytest.mark.parametrize(("has", "precision"), [(True, "bf16"), (False, "fp32")])
def test_actors_on_cpus_have_the_precision_that_those_compute_in(monkeypatch, has, precision):
    """Emulated, bfloat16 is slower than float32."""
    monkeypatch.setattr("gossamer.build.plan.has_bf16", lambda device: has)
    plan = planned()[2]
    assert on_cpu(plan) == dataclasses.replace(plan, device="cpu", precision=precision)


def test_memory_that_an_earlier_run_of_the_process_has_left_is_taken_again(gpu, monkeypatch):
    settings = planned(num_envs=512, unroll_length=128)
    gpu(10 << 30)
    for reserved, allocated, fits in ((0, 0, False), (600, 0, True), (600, 600, False)):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda x=reserved: x << 30)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda x=allocated: x << 30)
        told = contextlib.nullcontext() if fits else pytest.raises(ConfigError, match="are free")
        with told:
            refuse_what_a_gpu_cannot_hold(*settings)
