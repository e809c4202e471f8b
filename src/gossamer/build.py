"""TrainConfig -> policy, environments, actor, learner, replay: the only place that translates."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.actor import Actor, Episode
from gossamer.batches import build_mix, share_out
from gossamer.config.check import check_minibatches
from gossamer.envs.registry import make_vec_env
from gossamer.envs.seeding import CHOOSING_RANK
from gossamer.evaluator import Evaluator
from gossamer.learner import Learner
from gossamer.links import Gate, Roles, StopSignal, ThreadBoard, ThreadQueue
from gossamer.machine import (
    in_thread,
    lower_priority,
    native_threads,
    num_cores,
    this_machine,
    threads,
)
from gossamer.micro_batches import MicroBatches, rows_that_fit
from gossamer.mixer import Outbox
from gossamer.policies.actor_critic import ActorCritic
from gossamer.trials import build_trials, envs_per_learner, refuse_tasks, training_tasks
from gossamer.types import ConfigError, empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from gossamer.batches import Blocks
    from gossamer.config import TrainConfig
    from gossamer.evaluator import Source
    from gossamer.machine import Machine
    from gossamer.replay.base import ReplayMix
    from gossamer.signs import Sign
    from gossamer.types import EnvSpec, VecEnv

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """What "auto" became on this machine; saved with checkpoints, as sums depend on it."""

    device: str
    precision: str
    num_envs: int
    lag: int | None
    """None: free."""
    micro_batch_rows: int
    learner_threads: int
    actor_threads: int
    env_threads: int
    env_groups: int
    max_episode_steps: int
    cores: int = 0
    """That it was made for; 0, and "" below: not known, in older checkpoints."""
    hardware: str = ""
    """Model of the processor, or of the GPUs, that computes."""
    torch: str = ""
    """Version."""


def make_plan(config: TrainConfig, spec: EnvSpec, machine: Machine | None = None) -> Plan:
    """Resolve every "auto" for an environment and a machine; None: this one."""
    machine = machine or this_machine()
    device = find_device(config.device, has_gpu=bool(machine.gpus))
    if device == "cuda" and config.deterministic and config.policy.torso == "impala":
        raise ConfigError(
            "deterministic is on, but policy.torso is impala, whose pooling has no deterministic form on a GPU; "
            "use --policy.torso nature, --device cpu, or leave deterministic out"
        )
    if device == "cuda" and config.learner_threads > 1:
        raise ConfigError(
            f"--learner-threads {config.learner_threads}: on a GPU a batch is learnt whole; leave it out, "
            "or use --device cpu"
        )
    if device == "cuda" and config.actor_threads > 1:
        raise ConfigError(
            f"--actor-threads {config.actor_threads}: a GPU computes all actions at once; leave it out, or use "
            "--device cpu"
        )
    pixels = spec.obs_kind == "pixels"
    precision = config.precision
    if precision == "auto":
        # A small MLP gains nothing from bf16 and loses precision.
        precision = "bf16" if pixels and device in machine.bf16 else "fp32"
    lag = config.lag
    if lag == "auto":
        lag = "1" if config.algorithm.corrects else "0"
    num_envs = envs_per_learner(config, spec, device)
    check_minibatches(config, num_envs, vectors=len(spec.obs_shape) == 1)
    refuse_tasks(config, spec, num_envs)
    cores = machine.cores
    # Beside a GPU that acts for one half, cores step the other.
    halves = pixels and (cores >= 8 or device == "cuda")
    groups = min(config.env_groups or (2 if halves else 1), num_envs)
    rows = share_out(config, num_envs).total * (config.unroll_length + 1)
    micro = rows_that_fit(config.policy.torso) if pixels and device == "cpu" else rows
    return Plan(
        device=device,
        precision=precision,
        num_envs=num_envs,
        lag=None if lag == "free" else int(lag),
        micro_batch_rows=config.micro_batch_rows or micro,
        learner_threads=config.learner_threads
        or (_learner_threads(cores, lag) if pixels and device == "cpu" else 1),
        actor_threads=config.actor_threads
        or (_actor_threads(cores, lag) if pixels and device == "cpu" else 1),
        env_threads=config.env_threads or min(cores, num_envs),
        env_groups=groups,
        max_episode_steps=config.max_episode_steps,
        cores=cores,
        hardware=machine.processor if device == "cpu" else ", ".join(machine.gpus),
        torch=machine.torch,
    )


def find_device(asked: str, *, has_gpu: bool) -> str:
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
    return cores if lag == "0" else max(1, cores // 2)


def _actor_threads(cores: int, lag: str) -> int:
    # Without lag nobody learns meanwhile; batches are too small for more than two threads.
    return max(min(cores, 2) if lag == "0" else 1, cores // 8)


def resumes_exactly(config: TrainConfig, spec: EnvSpec, plan: Plan) -> bool:
    """Return whether a run goes on from a checkpoint as if it had never stopped."""
    return not why_not_exact(config, spec, plan)


def why_not_exact(config: TrainConfig, spec: EnvSpec, plan: Plan) -> list[str]:
    """Say what keeps a run from going on from a checkpoint as if it had never stopped."""
    why: list[str] = []
    if plan.lag is None:
        why.append("lag is free")
    if spec.differs:
        why.append(spec.differs)
    if len(config.replays) > 1 and not config.checkpoint_replay:
        why.append("replays are empty, --checkpoint-replay saves what they hold")
    if config.placement != "inline" and config.num_learners > 1:
        if config.topology.staleness != 0:
            why.append("learners do not wait for each other")
        # What others have stored by now depends on who is quicker.
        if any(getattr(settings, "shared", False) for settings in config.replays):
            why.append("processes share a replay")
    return why


def stream_seed(seed: int, rank: int, role: str, restarts: int = 0) -> int:
    """Seed of one role's random stream, well apart from every other's."""
    key = [seed, rank, *role.encode(), *([restarts] if restarts else [])]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def build_policy(
    config: TrainConfig, spec: EnvSpec, torso: torch.nn.Module | None = None, *, rank: int = 0
) -> ActorCritic:
    """Build the network with its initial weights, by default the same for every learner of a run."""
    same = config.same_start or rank == 0
    # One thread: orthogonal initialisation differs in the last bits with their number.
    with threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if same else stream_seed(config.seed, rank, "weights"))
        return ActorCritic(spec, config.policy, value_norm=config.algorithm.value_norm, torso=torso)


def device_of(plan: Plan, rank: int) -> str:
    """Return where a learner computes: learner r on GPU r mod n, of those that its process sees."""
    return plan.device if plan.device != "cuda" else f"cuda:{rank % torch.cuda.device_count()}"


def build_inference_policy(
    policy: ActorCritic, plan: Plan, device: str | torch.device = ""
) -> ActorCritic:
    """Copy a policy for acting, by default where the plan says; its torso is kept in the plan's precision."""
    acting = copy.deepcopy(policy).requires_grad_(False).to(device or plan.device)
    acting.set_precision(PRECISIONS[plan.precision], inference=True)
    return acting


def build_env_groups(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    *,
    rank: int = 0,
    restarts: int = 0,
    start: bool = True,
) -> tuple[list[VecEnv], list[NDArray[Any]]]:
    """Make and start the groups of environments that one actor steps in turn.

    Returns the groups and their first observations; without `start`, for a run that will bring its
    environments back from a checkpoint, those are zeros.
    """
    if plan.lag is not None and config.placement != "inline":
        lower_priority()  # of this thread, and so of the simulators' threads it starts
    seed = stream_seed(config.seed, rank, "envs", restarts) if restarts else config.seed
    groups: list[VecEnv] = []
    bounds = np.linspace(0, plan.num_envs, plan.env_groups + 1).round().astype(int).tolist()
    for first, last in itertools.pairwise(bounds):
        groups.append(
            make_vec_env(
                config.env_id,
                num_envs=last - first,
                seed=seed,
                rank=rank,
                first_env=rank * plan.num_envs + first,
                num_threads=plan.env_threads,
                settings=config.env,
                max_episode_steps=plan.max_episode_steps,
                training=True,
                tasks=training_tasks(config, spec, rank, first, num_envs=plan.num_envs),
            )
        )
    if start:
        return groups, [envs.start(np.zeros(envs.num_envs, dtype=np.int64)) for envs in groups]
    dtype = np.uint8 if spec.obs_kind == "pixels" else np.float32
    return groups, [np.zeros((envs.num_envs, *spec.obs_shape), dtype=dtype) for envs in groups]


@dataclass
class Parts:
    """One learner and what serves it, joined by links."""

    spec: EnvSpec
    plan: Plan
    policy: ActorCritic
    learner: Learner
    actor: Actor
    queue: ThreadQueue
    board: ThreadBoard
    gate: Gate
    stop: StopSignal
    unroll_length: int
    """T of its trajectories."""
    simulators: frozenset[int] = frozenset()
    """Ids of the threads that were started with the environments."""
    checkpoint_seconds: float = 0.0
    """Learner's time spent on checkpoints."""

    @cached_property
    def outbox(self) -> Outbox:
        """Takes the policy to the memory that all learners share."""
        return Outbox(self.policy.shared_tensors())

    def close(self) -> None:
        """Free what outlives threads."""
        with contextlib.closing(self.actor):  # whatever the learner's thread may have to tell
            self.learner.close()


def build_parts(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    *,
    stop: StopSignal,
    rank: int,
    on_episode: Callable[[Episode], None],
    torso: torch.nn.Module | None = None,
    restarts: int = 0,
    start: bool = True,
    shared: Blocks = (),
) -> Parts:
    """Build one learner and what serves it; `start` as in `build_env_groups`, `shared` as in `build_mix`.

    After `restarts` deaths its random streams and episodes are new ones.
    """
    # Starting simulators takes seconds and leaves the interpreter free: build the rest meanwhile.
    before = native_threads()
    making = in_thread(
        partial(build_env_groups, config, spec, plan, rank=rank, restarts=restarts, start=start),
        "environments",
    )
    parts = _join_parts(config, spec, plan, stop, rank, on_episode, torso, restarts, making, shared)
    parts.simulators = native_threads() - before
    return parts


def _join_parts(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    stop: StopSignal,
    rank: int,
    on_episode: Callable[[Episode], None],
    torso: torch.nn.Module | None,
    restarts: int,
    making: Future[tuple[list[VecEnv], list[NDArray[Any]]]],
    shared: Blocks,
) -> Parts:
    policy = build_policy(config, spec, torso, rank=rank).to(device_of(plan, rank))
    acting = build_inference_policy(policy, plan, policy.obs_scale.device)
    policy.set_precision(PRECISIONS[plan.precision])
    if config.compile and plan.device == "cuda":
        acting.compile(mode="reduce-overhead")
    # One slot being learnt, one being written, and what may wait between them.
    waiting = config.queue.capacity if plan.lag is None else 0
    slots = [
        empty_trajectory(
            spec,
            unroll_length=config.unroll_length,
            num_columns=plan.num_envs,
            core_units=policy.core_units,
            pinned=plan.device != "cpu",
        )
        for _ in range(2 + waiting)
    ]
    roles = Roles(config.patience_seconds)
    queue = ThreadQueue(slots, stop, roles)
    board = ThreadBoard(policy.shared_tensors(), stop, roles)
    replay = build_replay(
        config, plan, policy, queue, stop, rank=rank, restarts=restarts, shared=shared
    )
    roles.learning.parts.append(replay.sign)
    learner = build_learner(
        config, plan, policy, replay, rank=rank, restarts=restarts, sign=roles.learning, stop=stop
    )
    groups, first_obs = making.result()
    roles.acting.parts += [envs.sign for envs in groups]
    actor = Actor(
        groups,
        acting,
        first_obs=first_obs,
        unroll_length=config.unroll_length,
        seed=stream_seed(config.seed, rank, "actor", restarts),
        on_episode=on_episode,
        stop=stop,
        num_threads=plan.actor_threads,
    )
    return Parts(
        spec, plan, policy, learner, actor, queue, board,
        Gate(stop, roles), stop,
        unroll_length=config.unroll_length,
    )  # fmt: skip


def build_replay(
    config: TrainConfig,
    plan: Plan,
    policy: ActorCritic,
    queue: ThreadQueue,
    stop: StopSignal,
    *,
    rank: int = 0,
    restarts: int = 0,
    shared: Blocks = (),
) -> ReplayMix:
    """Build what a learner's batches come from: the queue, and replays beside it."""
    return build_mix(
        config,
        queue,
        policy,
        num_envs=plan.num_envs,
        inference=lambda: build_inference_policy(policy, plan, policy.obs_scale.device),
        seed=lambda i: stream_seed(config.seed, rank, f"replay {i}", restarts),
        # Beside the learner, if there is room beside it.
        threaded=config.placement != "inline" and config.prefetch_batches > 0 and num_cores() > 1,
        stop=stop,
        pinned=plan.device != "cpu",
        patience_seconds=config.patience_seconds,
        rank=rank,
        shared=shared,
    )


def build_learner(
    config: TrainConfig,
    plan: Plan,
    policy: ActorCritic,
    replay: ReplayMix,
    *,
    rank: int = 0,
    restarts: int = 0,
    sign: Sign | None = None,
    stop: StopSignal | None = None,
) -> Learner:
    """Build a learner of such batches."""
    config = config.of_learner(rank)
    return Learner(
        policy,
        config.algorithm,
        config.optimizer,
        replay,
        topology=config.topology,
        rank=rank,
        num_learners=config.num_learners,
        micro_batches=MicroBatches(plan.micro_batch_rows, plan.learner_threads),
        total_env_steps=config.total_env_steps,
        seed=stream_seed(config.seed, rank, "learner", restarts),
        sign=sign,
        stop=stop,
    )


def build_evaluator(
    config: TrainConfig,
    plan: Plan,
    policy: ActorCritic,
    read: Callable[[list[torch.Tensor]], Source],
    stop: StopSignal,
) -> Evaluator | None:
    """Build the evaluator of policies like this one that `read` brings; None where none is wanted."""
    settings = config.evaluation
    if not settings.every_seconds:
        return None
    return Evaluator(
        build_inference_policy(policy, plan),
        policy.shared_tensors(),
        build_trials(config, policy.spec, num_envs=plan.num_envs, rank=CHOOSING_RANK),
        read,
        stop,
        greedy=settings.greedy,
        seed=config.seed,
        every_seconds=settings.every_seconds,
        max_time_fraction=settings.max_time_fraction,
        confirm_episodes=settings.confirm_episodes,
        # Environments in processes of their own take no processor time of ours.
        clock=time.monotonic if config.env.workers else None,
    )
