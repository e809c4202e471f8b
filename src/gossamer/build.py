"""TrainConfig -> policy, environments, actor, learner, replay: the only place that translates."""

from __future__ import annotations

import contextlib
import copy
import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.actor import Actor, Episode
from gossamer.batches import build_mix, share_out
from gossamer.config.check import check_minibatches
from gossamer.envs.registry import make_vec_env
from gossamer.evaluator import Evaluator
from gossamer.learner import Learner
from gossamer.links import Gate, StopSignal, ThreadBoard, ThreadQueue
from gossamer.machine import has_bf16, lower_priority, native_threads, num_cores, threads
from gossamer.micro_batches import MicroBatches, rows_that_fit
from gossamer.policies.actor_critic import ActorCritic
from gossamer.trials import build_trials, envs_per_learner, refuse_tasks, training_tasks
from gossamer.types import ConfigError, empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gossamer.batches import Blocks
    from gossamer.config import TrainConfig
    from gossamer.evaluator import Evaluation
    from gossamer.replay.base import ReplayMix
    from gossamer.types import EnvSpec, VecEnv

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
LINK_TIMEOUT_SECONDS = 300.0
"""Longest wait for another role before the run is given up as stuck."""


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


def make_plan(config: TrainConfig, spec: EnvSpec, cores: int = 0) -> Plan:
    """Resolve every "auto" for an environment and so many cores of this machine; 0: all."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: this machine or this build of torch has none; use --device cpu"
        )
    if device == "cuda" and config.learner_threads > 1:
        raise ConfigError(
            f"--learner-threads {config.learner_threads}: on a GPU a batch is learnt whole; leave it out, "
            "or use --device cpu"
        )
    pixels = spec.obs_kind == "pixels"
    precision = config.precision
    if precision == "auto":
        # A small MLP gains nothing from bf16 and loses precision.
        precision = "bf16" if pixels and has_bf16(device) else "fp32"
    lag = config.lag
    if lag == "auto":
        lag = "1" if config.algorithm.corrects else "0"
    num_envs = envs_per_learner(config, spec)
    check_minibatches(config, num_envs)
    refuse_tasks(config, spec)
    cores = cores or num_cores()
    groups = min(config.env_groups or (2 if pixels and cores >= 8 else 1), num_envs)
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
        actor_threads=config.actor_threads or (_actor_threads(cores, lag) if pixels else 1),
        env_threads=config.env_threads or min(cores, num_envs),
        env_groups=groups,
        max_episode_steps=config.max_episode_steps,
    )


def _learner_threads(cores: int, lag: str) -> int:
    # Without lag nobody acts meanwhile.
    return cores if lag == "0" else max(1, cores // 2)


def _actor_threads(cores: int, lag: str) -> int:
    # Without lag nobody learns meanwhile; batches are too small for more than two threads.
    return max(min(cores, 2) if lag == "0" else 1, cores // 8)


def resumes_exactly(config: TrainConfig, spec: EnvSpec, plan: Plan) -> bool:
    """Return whether a run goes on from a checkpoint as if it had never stopped."""
    replays = len(config.replays) == 1 or config.checkpoint_replay
    if config.placement != "inline" and config.num_learners > 1:
        # What others have stored by now depends on who is quicker.
        replays = replays and not any(getattr(s, "shared", False) for s in config.replays)
    return plan.lag is not None and spec.exact_resume and replays


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
    steps_per_version: int
    """Env steps of one batch."""
    simulators: frozenset[int] = frozenset()
    """Ids of the threads that were started with the environments."""
    checkpoint_seconds: float = 0.0
    """Learner's time spent on checkpoints."""

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
    with ThreadPoolExecutor(1) as pool:
        before = native_threads()
        making = pool.submit(
            build_env_groups, config, spec, plan, rank=rank, restarts=restarts, start=start
        )
        parts = _join_parts(
            config, spec, plan, stop, rank, on_episode, torso, restarts, making, shared
        )
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
            pinned=plan.device == "cuda",
        )
        for _ in range(2 + waiting)
    ]
    queue = ThreadQueue(slots, stop, timeout_seconds=LINK_TIMEOUT_SECONDS)
    board = ThreadBoard(policy.shared_tensors(), stop, timeout_seconds=LINK_TIMEOUT_SECONDS)
    replay = build_replay(
        config, plan, policy, queue, stop, rank=rank, restarts=restarts, shared=shared
    )
    learner = build_learner(config, plan, policy, replay, rank=rank, restarts=restarts)
    groups, first_obs = making.result()
    actor = Actor(
        groups,
        acting,
        first_obs=first_obs,
        unroll_length=config.unroll_length,
        seed=stream_seed(config.seed, rank, "actor", restarts),
        on_episode=on_episode,
    )
    return Parts(
        spec, plan, policy, learner, actor, queue, board,
        Gate(stop, timeout_seconds=LINK_TIMEOUT_SECONDS), stop,
        steps_per_version=plan.num_envs * config.unroll_length,
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
        pinned=plan.device == "cuda",
        timeout_seconds=LINK_TIMEOUT_SECONDS,
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
    )


def build_evaluator(
    config: TrainConfig,
    plan: Plan,
    policy: ActorCritic,
    read: Callable[[list[torch.Tensor]], int],
    stop: StopSignal,
    on_evaluation: Callable[[Evaluation, int, list[torch.Tensor]], None],
) -> Evaluator | None:
    """Build the evaluator of policies like this one that `read` brings; None where none is wanted."""
    if not config.evaluation.every_seconds:
        return None
    return Evaluator(
        build_inference_policy(policy, plan),
        policy.shared_tensors(),
        build_trials(config, policy.spec, num_envs=plan.num_envs),
        read,
        stop,
        greedy=config.evaluation.greedy,
        every_seconds=config.evaluation.every_seconds,
        max_time_fraction=config.evaluation.max_time_fraction,
        on_evaluation=on_evaluation,
    )


def plan_from(saved: dict[str, Any], fresh: Plan, given: set[str]) -> Plan:
    """Keep a saved run's plan, except for what was asked for anew."""
    names = {f.name for f in fields(Plan)}
    kept = {k: v for k, v in saved.items() if k in names and k not in given}
    if fresh.device != kept.get("device", fresh.device):
        # The machine has changed; its own choices are all that can work.
        return fresh
    return replace(fresh, **kept)
