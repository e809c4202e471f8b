"""TrainConfig -> policy, environments, actor, learner, replay: what settings become (replays: `build.replays`)."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch

from gossamer.build.evaluation_tasks import (
    build_trials,
    training_tasks,
)
from gossamer.build.plan import PRECISIONS, Plan, device_of
from gossamer.build.replays import build_mix
from gossamer.envs.registry import make_vec_env, make_worker_groups
from gossamer.envs.seeding import CHOOSING_RANK, Part, stream_seed
from gossamer.envs.settings import is_native
from gossamer.errors import ConfigError
from gossamer.links.threads import Gate, Roles, ThreadBoard, ThreadQueue
from gossamer.machine import (
    in_thread,
    lower_priority,
    native_threads,
    threads,
)
from gossamer.ops.micro_batches import MicroBatches
from gossamer.policies.actor_critic import ActorCritic
from gossamer.roles.actor import Acting, Actor
from gossamer.roles.evaluator import Evaluator
from gossamer.roles.learner import Learner
from gossamer.roles.mixer import Outbox
from gossamer.roles.policy import Policy
from gossamer.system.graphs import Graphs
from gossamer.system.signs_of_life import made_until
from gossamer.types import empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from gossamer.build.replays import Blocks
    from gossamer.config import TrainConfig
    from gossamer.envs.interface import Interface
    from gossamer.links.stopping import StopSignal
    from gossamer.replay.batches import BatchSource
    from gossamer.roles.acting_group import Episode
    from gossamer.roles.evaluator import Source
    from gossamer.spec import EnvSpec, Obs
    from gossamer.system.signs_of_life import Sign
    from gossamer.types import Trajectory, VecEnv


Kind = TypeVar("Kind", bound=ActorCritic)
MAKING_SECONDS = 20.0
"""Longest wait for environments that are still being made when a run fails, or is stopped."""
LATE_SECONDS = 2.0
"""Longest wait for them when the time for a stop is over."""
TEAM_MARGIN_SECONDS = 10.0
"""More patience with actors in other processes than these have with their environments."""


class Team(Acting, Protocol):
    """Actors in processes of their own."""

    sign: Sign
    """Their signs of life."""
    slots: list[Trajectory]
    """Trajectories that they write, in memory that they share; with a set lag these are the learner's slots."""


def build_policy(
    config: TrainConfig, spec: EnvSpec, torso: torch.nn.Module | None = None, *, rank: int = 0
) -> ActorCritic:
    """Build the network with its initial weights, by default the same for every learner of a run."""
    return _build(ActorCritic, config, spec, torso, rank)


def build_trained_policy(
    config: TrainConfig,
    spec: EnvSpec,
    interface: Interface,
    torso: torch.nn.Module | None = None,
) -> Policy:
    """Build a network that is going to be given its weights, and acts on its environment's own observations."""
    policy = _build(Policy, config, spec, torso, 0)
    policy.interface = interface
    return policy


def _build(
    kind: type[Kind],
    config: TrainConfig,
    spec: EnvSpec,
    torso: torch.nn.Module | None,
    rank: int,
) -> Kind:
    same = config.same_start or rank == 0
    seed = config.seed if same else stream_seed(config.seed, rank, "weights")
    # One thread: orthogonal initialisation differs in the last bits with their number.
    with threads(1):
        return kind(
            spec,
            config.policy,
            value_norm=config.algorithm.value_norm,
            # A user's object stays as it is: learners of a process, or a second run, would share its weights.
            torso=copy.deepcopy(torso),
            generator=torch.Generator().manual_seed(seed),
        )


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
    only: range | None = None,
) -> tuple[list[VecEnv], list[Obs[NDArray[Any]]]]:
    """Make and start the groups of environments that one actor steps in turn; `only`: those of them.

    Making simulators holds the interpreter's lock, starting their games does not: one group is made while the groups
    before it start. Worker processes have a share of each group. Returns the groups and their first observations; without
    `start`, for a run that will bring its environments back from a checkpoint, those are zeros.
    """
    seed = stream_seed(config.seed, rank, "envs", restarts) if restarts else config.seed
    bounds = list(itertools.pairwise(group_bounds(plan)))
    tasks = training_tasks(config, spec, num_envs=plan.num_envs)
    parts = [
        Part(last - first, rank * plan.num_envs + first, tasks)
        for first, last in (bounds if only is None else bounds[only.start : only.stop])
    ]
    workers = plan.env_workers or config.env.workers
    common: dict[str, Any] = {
        "seed": seed,
        "rank": rank,
        # A thread of a simulator in each of many processes costs less than many in each of a few.
        "num_threads": plan.env_workers or plan.env_threads,
        "settings": replace(config.env, workers=workers),
        "max_episode_steps": plan.max_episode_steps,
        "training": True,
    }
    groups: list[VecEnv] = []
    starting: list[Future[Obs[NDArray[Any]]]] = []
    try:
        if workers and not config.env_id.startswith("envpool:"):
            groups += make_worker_groups(config.env_id, parts, **common)
            starting += [in_thread(partial(_first_obs, envs), "start") for envs in groups if start]
        else:
            for part in parts:
                groups.append(
                    make_vec_env(
                        config.env_id,
                        num_envs=part.num_envs,
                        first_env=part.first_env,
                        tasks=part.tasks,
                        **common,
                    )
                )
                if start and is_native(config.env_id):
                    starting.append(in_thread(partial(_first_obs, groups[-1]), "start"))
        if starting:
            return groups, [first_obs.result() for first_obs in starting]
        if start:
            return groups, [_first_obs(envs) for envs in groups]
    except BaseException:
        wait(starting, timeout=MAKING_SECONDS)  # what is being started cannot be closed
        _close(groups)
        raise
    return groups, [_nothing_observed(spec, envs.num_envs) for envs in groups]


def _nothing_observed(spec: EnvSpec, num_envs: int) -> Obs[NDArray[Any]]:
    return spec.obs_of({x.name: np.zeros((num_envs, *x.shape), x.dtype) for x in spec.leaves})


def _close(groups: Sequence[VecEnv]) -> None:
    with contextlib.ExitStack() as stack:
        for envs in groups:
            stack.callback(envs.close)


def _first_obs(envs: VecEnv) -> Obs[NDArray[Any]]:
    return envs.start(np.zeros(envs.num_envs, dtype=np.int64))


def group_bounds(plan: Plan) -> list[int]:
    """Return the first columns of the groups of environments, and the number of columns."""
    return np.linspace(0, plan.num_envs, plan.env_groups + 1).round().astype(int).tolist()


def actor_seeds(config: TrainConfig, plan: Plan, rank: int, restarts: int = 0) -> list[int]:
    """Return the seeds of the streams from which a learner's groups of environments draw actions."""
    names = ["actor", *(f"actor {group}" for group in range(1, plan.env_groups))]
    return [stream_seed(config.seed, rank, name, restarts) for name in names]


@dataclass
class LearnerBundle:
    """One learner and what serves it, joined by links."""

    plan: Plan
    policy: ActorCritic
    learner: Learner
    actor: Acting
    queue: ThreadQueue
    board: ThreadBoard
    gate: Gate
    stop: StopSignal
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


def build_bundle(
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
    team: Callable[[ActorCritic], Team] | None = None,
) -> LearnerBundle:
    """Build one learner and what serves it; `start` as in `build_env_groups`, `shared` as in `build_mix`.

    After `restarts` deaths its random streams and episodes are new ones. `team` makes, by the policy, actors in processes
    of their own, where those are wanted.
    """
    if team is not None and torso is not None:
        raise ConfigError(
            "a torso of your own cannot be handed to actor processes as an object; name it as module:Class, or use "
            "--actors-per-learner 0"
        )
    before = native_threads()

    def make_envs() -> tuple[list[VecEnv], list[Obs[NDArray[Any]]]]:
        if plan.lag is not None and config.placement != "inline":
            lower_priority()  # of this thread, and so of the simulators' threads it starts
        with made_until(lambda: stop.stopped):
            return build_env_groups(config, spec, plan, rank=rank, restarts=restarts, start=start)

    # Starting simulators takes seconds and leaves the interpreter free: build the rest meanwhile.
    making = in_thread(make_envs, "environments") if team is None else None
    actors: Team | None = None
    try:
        policy = build_policy(config, spec, torso, rank=rank).to(device_of(plan, rank))
        actors = team(policy) if team is not None else None
        policy.set_precision(PRECISIONS[plan.precision])
        # Actors in other processes know more about what they wait for: they give up first.
        margin = TEAM_MARGIN_SECONDS if actors is not None and config.patience_seconds else 0.0
        roles = Roles(config.patience_seconds + margin)
        queue = ThreadQueue(_slots(config, spec, plan, policy, actors), stop, roles)
        board = ThreadBoard(policy.shared_tensors(), stop, roles)
        inference = partial(build_inference_policy, policy, plan, policy.device)
        replay = build_mix(
            config, queue, policy, num_envs=plan.num_envs, inference=inference, stop=stop,
            rank=rank, restarts=restarts, shared=shared,
        )  # fmt: skip
        roles.learning.parts.append(replay.sign)
        sign = roles.learning
        learner = build_learner(
            config, plan, policy, replay, rank=rank, restarts=restarts, sign=sign, stop=stop
        )
        actor: Acting
        if actors is not None:
            roles.acting.parts.append(actors.sign)
            actor = actors
        else:
            assert making is not None
            acting = inference()
            groups, first_obs = making.result()
            roles.acting.parts += [envs.sign for envs in groups]
            actor = Actor(
                groups,
                acting,
                first_obs=first_obs,
                unroll_length=config.unroll_length,
                seeds=actor_seeds(config, plan, rank, restarts),
                on_episode=on_episode,
                stop=stop,
                num_threads=plan.actor_threads,
                graphs=Graphs(policy.device),
            )
    except BaseException as error:
        # Workers and simulators may be processes, which would outlive what they are for.
        stop.stop()
        if actors is not None:
            with contextlib.suppress(BaseException):
                actors.close()
        if making is not None:
            patience = MAKING_SECONDS if isinstance(error, Exception) else LATE_SECONDS
            if isinstance(error, KeyboardInterrupt):
                patience = min(MAKING_SECONDS, config.stop_within_seconds)
            with contextlib.suppress(BaseException):
                _close(making.result(patience)[0])
        raise
    simulators = native_threads() - before if making is not None else frozenset[int]()
    gate = Gate(stop, roles)
    return LearnerBundle(plan, policy, learner, actor, queue, board, gate, stop, simulators)


def _slots(
    config: TrainConfig, spec: EnvSpec, plan: Plan, policy: ActorCritic, team: Team | None
) -> list[Trajectory]:
    """Return the trajectories that travel between a learner and its actor, or its actors."""
    if team is not None and plan.lag is not None:
        return team.slots
    # One slot being learnt, one being written, and what may wait between them.
    waiting = config.queue.capacity if plan.lag is None else 0
    return [
        empty_trajectory(
            spec,
            unroll_length=config.unroll_length,
            num_columns=plan.num_envs,
            core_units=policy.core_units,
            # Trajectories stay on the GPU that acted.
            pinned=plan.device != "cpu" and team is not None,
            device=None if team is not None else policy.device,
        )
        for _ in range(2 + waiting)
    ]


def build_learner(
    config: TrainConfig,
    plan: Plan,
    policy: ActorCritic,
    replay: BatchSource,
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
        graphs=Graphs(policy.device),
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
