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

from gossamer.build.evaluation_tasks import (
    build_trials,
    training_tasks,
)
from gossamer.build.plan import PRECISIONS, Plan, device_of, stream_seed
from gossamer.build.replays import build_mix
from gossamer.envs.registry import make_vec_env
from gossamer.envs.seeding import CHOOSING_RANK
from gossamer.links.threads import Gate, Roles, ThreadBoard, ThreadQueue
from gossamer.machine import (
    in_thread,
    lower_priority,
    native_threads,
    num_cores,
    threads,
)
from gossamer.ops.micro_batches import MicroBatches
from gossamer.policies.actor_critic import ActorCritic
from gossamer.roles.actor import Actor, Episode
from gossamer.roles.evaluator import Evaluator
from gossamer.roles.learner import Learner
from gossamer.roles.mixer import Outbox
from gossamer.types import empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from gossamer.build.replays import Blocks
    from gossamer.config import TrainConfig
    from gossamer.links.stopping import StopSignal
    from gossamer.replay.base import ReplayMix
    from gossamer.roles.evaluator import Source
    from gossamer.system.signs import Sign
    from gossamer.types import EnvSpec, VecEnv


def build_policy(
    config: TrainConfig, spec: EnvSpec, torso: torch.nn.Module | None = None, *, rank: int = 0
) -> ActorCritic:
    """Build the network with its initial weights, by default the same for every learner of a run."""
    same = config.same_start or rank == 0
    # One thread: orthogonal initialisation differs in the last bits with their number.
    with threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if same else stream_seed(config.seed, rank, "weights"))
        return ActorCritic(spec, config.policy, value_norm=config.algorithm.value_norm, torso=torso)


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
