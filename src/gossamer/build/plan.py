"""What "auto" becomes: the numbers that depend on the environment and the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from msgspec import Meta

from gossamer.build.evaluation_tasks import (
    envs_per_learner,
    refuse_tasks,
)
from gossamer.build.replays import share_out
from gossamer.config.check import check_minibatches
from gossamer.config.cores import actors_for, row_for
from gossamer.envs.settings import is_atari
from gossamer.envs.workers import share_size
from gossamer.errors import ConfigError
from gossamer.machine import free_memory, has_bf16, this_machine
from gossamer.ops.micro_batches import rows_that_fit
from gossamer.policies.settings import LIKE
from gossamer.system.importing import main_is_ours
from gossamer.system.ranges import CountToMillion, UpToBillion, Whole

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.machine import Machine
    from gossamer.spec import EnvSpec


MANY_GAMES = 32
"""Atari games from which on it pays to make them in processes side by side."""
WORKER_BYTES = 200 << 20
"""Memory of a worker process and its games, or of an actor process."""
Device = Literal["cpu", "cuda", "meta"]
"""Where a learner computes; meta: on no device at all, as where a GPU is imitated."""
PRECISIONS: dict[Literal["fp32", "bf16"], torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True)
class Plan:
    """What "auto" became on this machine; saved with checkpoints, as sums depend on it."""

    device: Device
    precision: Literal["fp32", "bf16"]
    num_envs: CountToMillion
    lag: Annotated[int, Meta(ge=0, le=1)] | None
    """None: free."""
    micro_batch_rows: Annotated[int, Meta(ge=1, le=10**9)]
    learner_threads: Annotated[int, Meta(ge=1, le=1024)]
    actor_threads: Annotated[int, Meta(ge=1, le=1024)]
    env_threads: CountToMillion
    env_groups: Annotated[int, Meta(ge=1, le=1024)]
    max_episode_steps: UpToBillion
    cores: Whole = 0
    """Cores that the plan was made for; 0, and "" below: not known, in older checkpoints."""
    hardware: Annotated[str, Meta(max_length=1000)] = ""
    """Model of the processor, or of the GPUs, that computes."""
    torch: Annotated[str, Meta(max_length=1000)] = ""
    """Version."""
    env_workers: Whole = 0
    """Worker processes that step the environments, chosen here; 0: none, or `env.workers` says."""
    actors: Whole = 0
    """Actor processes of each learner, chosen here or asked for; 0: none, also in older checkpoints."""


def _torsos(config: TrainConfig, spec: EnvSpec) -> set[str]:
    """Return the kinds of layers that images go through; there are none where all images are left out."""
    torso = config.policy.torso
    images = (config.policy.encoder_of(x.name) for x in spec.leaves if x.kind == "pixels")
    named = ("auto" if own is None else own.name for own in images)
    return {torso if x == "auto" else x for x in named if x != "none" and not x.startswith(LIKE)}


def make_plan(config: TrainConfig, spec: EnvSpec, machine: Machine | None = None) -> Plan:
    """Resolve every "auto" for an environment and a machine; None: this one."""
    machine = learners_machine(config, machine or this_machine())
    device = _device_for(config, machine)
    pixels = spec.has_pixels
    precision = config.precision
    if precision == "auto":
        # A small MLP gains nothing from bf16 and loses precision.
        convolves = bool(_torsos(config, spec))
        precision = "bf16" if convolves and device in machine.bf16 else "fp32"
    lag = config.known_lag
    num_envs = envs_per_learner(config, spec, device)
    check_minibatches(config, num_envs, vectors=not spec.has_pixels)
    refuse_tasks(config, spec, num_envs)
    cores, row = machine.cores, row_for(machine.cores)
    # A hyper-thread fills the time that an emulator waits for memory, but takes it from who computes on the same core.
    stepping = row.env_threads if device == "cpu" and lag != "0" else machine.cpus or cores
    # Workers that were asked for may divide all environments, and no halves of them.
    whole = config.env.workers and num_envs % (2 * config.env.workers)
    # Beside a GPU that acts for one half, cores step the other.
    halves = pixels and not whole and (row.env_groups > 1 or device == "cuda")
    # What is asked for divides environments; what is chosen here changes no run's numbers.
    actors = config.actors_per_learner or 0
    refuse_actors(config, num_envs)
    # Actors with cores of their own on a cluster, where nobody learns beside them, nor they beside the learner.
    each = config.cluster.cpus_per_actor if config.placement == "cluster" and actors else 0
    beside = "0" if each else lag
    groups = min(config.env_groups or actors or (2 if halves else 1), num_envs)
    if config.env.workers and not config.env_id.startswith("envpool:"):
        for size in {num_envs // groups, -(-num_envs // groups)}:
            share_size(size, config.env.workers)
    rows = share_out(config, num_envs).total * (config.unroll_length + 1)
    micro = rows
    if pixels and device == "cpu":
        micro = min(map(rows_that_fit, _torsos(config, spec) or {config.policy.torso}))
    cpu_pixels = pixels and device == "cpu"
    learning = config.learner_threads or (_learner_threads(cores, beside) if cpu_pixels else 1)
    acting = _actor_threads(each or cores, beside) if pixels and (each or cpu_pixels) else 1
    if actors and not each and cores > 2:  # they share what the learner leaves
        acting = max(min(acting, (cores if lag == "0" else cores - learning) // actors), 1)
    return Plan(
        device=device,
        precision=precision,
        num_envs=num_envs,
        lag=None if lag == "free" else int(lag),
        micro_batch_rows=config.micro_batch_rows or micro,
        learner_threads=learning,
        actor_threads=config.actor_threads or acting,
        env_threads=config.env_threads or min(actors * each or stepping, num_envs),
        env_groups=groups,
        max_episode_steps=config.max_episode_steps,
        cores=cores,
        hardware=machine.processor if device == "cpu" else ", ".join(machine.gpus),
        torch=machine.torch,
        env_workers=count_env_workers(config, num_envs, groups, cores) if device == "cuda" else 0,
        actors=count_actors(config, machine),
    )


def _device_for(config: TrainConfig, machine: Machine) -> Device:
    """Return where learners compute; refuse a GPU that is not there, and settings with which none can compute."""
    if config.device == "cuda" and config.placement == "cluster" and not machine.gpus:
        raise ConfigError(
            "--device cuda: cluster.gpus_per_learner is 0, so that learners on the cluster have no GPU; use "
            "--cluster.gpus-per-learner 1, or --device cpu"
        )
    if find_device(config.device, has_gpu=bool(machine.gpus)) == "cpu":
        return "cpu"
    pooling = [
        f"policy.encoders.{x}" for x, own in config.policy.encoders.items() if own.name == "impala"
    ]
    if config.policy.torso == "impala":
        pooling.insert(0, "policy.torso")
    if config.deterministic and pooling:
        raise ConfigError(
            f"deterministic is on, but {pooling[0]} is impala, whose pooling has no deterministic form on a GPU; "
            f"use --{pooling[0]} nature, --device cpu, or leave deterministic out"
        )
    if config.learner_threads > 1:
        raise ConfigError(
            f"--learner-threads {config.learner_threads}: on a GPU a batch is learnt whole; leave it out, "
            "or use --device cpu"
        )
    if config.actor_threads > 1 and not config.actors_per_learner:
        raise ConfigError(
            f"--actor-threads {config.actor_threads}: a GPU computes all actions at once; leave it out, or use "
            "--device cpu"
        )
    return "cuda"


def count_actors(config: TrainConfig, machine: Machine) -> int:
    """Return how many actor processes each learner has; fewer than would be quicker if memory is short and nobody asks."""
    actors = actors_for(config, machine.cores, gpu=bool(machine.gpus))
    if config.actors_per_learner is not None:
        return actors
    # Twice the memory, as a run needs some too.
    return actors * (free_memory() >= 2 * config.num_learners * WORKER_BYTES)


def count_env_workers(config: TrainConfig, num_envs: int, groups: int, cores: int) -> int:
    """Return how many processes make and step each group of environments beside a GPU where nothing is asked for.

    Making an Atari game takes a tenth of a second, in which no other one is made in the same process. Since processes go
    at their own pace, one that steps a single game of each group is worth it too (docs/results/gpu.md). There are no more
    of them than threads are asked for.
    """
    asked = config.env.workers is not None or config.placement == "inline"
    if asked or config.actors_per_learner or not is_atari(config.env_id):
        return 0
    if num_envs < MANY_GAMES or num_envs % groups or not main_is_ours():
        return 0
    learners = 1 if config.placement == "cluster" else config.num_learners
    size = num_envs // groups
    # Twice the memory, as a run needs some too.
    fitting = int(free_memory() // (2 * learners * WORKER_BYTES))
    most = min(cores // max(config.learners_per_process, 1), fitting, config.env_threads or cores)
    return max((n for n in range(2, min(most, size) + 1) if size % n == 0), default=0)


def learners_machine(config: TrainConfig, machine: Machine) -> Machine:
    """Return what learners compute with, as far as it can be told on the machine that starts the run.

    On a cluster they have the GPUs that are asked for, of models that only their machines know; they are taken to
    compute in bfloat16, as all since NVIDIA's Ampere do.
    """
    if config.placement != "cluster":
        return machine
    if not config.cluster.gpus_per_learner:
        return replace(machine, gpus=(), bf16=tuple(x for x in machine.bf16 if x != "cuda"))
    if machine.gpus:
        return machine
    return replace(machine, gpus=("",), bf16=(*machine.bf16, "cuda"))


def on_cpu(plan: Plan) -> Plan:
    """Return a plan for a process that computes on its CPU, whatever learners do."""
    if plan.device == "cpu":
        return plan
    return replace(plan, device="cpu", precision=plan.precision if has_bf16("cpu") else "fp32")


def refuse_actors(config: TrainConfig, num_envs: int) -> None:
    """Refuse actor processes among which the environments cannot be shared out."""
    actors, groups = config.actors_per_learner or 0, min(config.env_groups, num_envs)
    if actors > num_envs:
        raise ConfigError(
            f"actors_per_learner is {actors}, but a learner has {num_envs} environments, and each actor needs one: "
            f"--actors-per-learner {num_envs}, or --num-envs {actors}"
        )
    if actors and groups % actors:
        raise ConfigError(
            f"env_groups is {groups}{' at most' * (groups < config.env_groups)}, which {actors} actors cannot share equally: --env-groups {actors}, or leave it out"
        )
    if actors and config.lag == "free" and num_envs % actors:
        raise ConfigError(
            f"num_envs is {num_envs}, which {actors} actors cannot share equally at lag free: --num-envs "
            f"{-(-num_envs // actors) * actors}, or --lag 1"
        )


def find_device(asked: str, *, has_gpu: bool) -> Device:
    """Return what "auto" is on a machine, "cuda" or "cpu".

    Raises:
        ConfigError: what was asked for is not there.
    """
    if asked not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {asked!r}; it must be auto, cpu or cuda")
    if asked == "cuda" and not has_gpu:
        raise ConfigError(
            "--device cuda: this machine or this build of torch has none; use --device cpu"
        )
    if asked == "auto":
        return "cuda" if has_gpu else "cpu"
    return asked


def _learner_threads(cores: int, lag: str) -> int:
    # Without lag nobody acts meanwhile.
    return cores if lag == "0" else row_for(cores).learner_threads


def _actor_threads(cores: int, lag: str) -> int:
    # Without lag nobody learns meanwhile; batches are too small for more than two threads.
    return max(min(cores, 2) if lag == "0" else 1, row_for(cores).actor_threads)


def device_of(plan: Plan, rank: int) -> str:
    """Return where a learner computes: learner r on GPU r mod n, of those that its process sees."""
    return plan.device if plan.device != "cuda" else f"cuda:{rank % torch.cuda.device_count()}"
