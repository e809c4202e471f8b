"""Whether a run fits into memory, and onto the disk: asked before anything is made."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gossamer.build.replays import (
    capacity_of,
    kept_replays,
    layout_of,
    measured_nbytes,
    nbytes_of,
    refuse_replays,
    rings_on_gpu,
    share_out,
    size_in_words,
)
from gossamer.build.roles import build_policy
from gossamer.errors import ConfigError
from gossamer.machine import disk_of, free_disk, free_memory
from gossamer.policies.encoders import refuse_encoders
from gossamer.spec import obs_at
from gossamer.types import empty_trajectory

if TYPE_CHECKING:
    from torch import nn

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.spec import EnvSpec

BYTES_PER_STEP = 64
"""Bytes of one step of a trajectory, beside its observation and action."""
LARGE = 1 << 18
"""Numbers of an observation or an action from which on a network is measured before it is made."""
LARGE_LAYER = 1 << 12
"""Units of a layer likewise."""
TOLD_BYTES = 1 << 30
"""Bytes of a large network and the trajectories together, from which on the user is told of them."""
BYTES_PER_ENV = 20_000
"""Bytes of the smallest simulator."""
BYTES_PER_CONTEXT = 512 << 20
"""GPU memory that a process takes before it holds any tensor."""
SHARED_BYTES = 1 << 20
"""Memory that worker processes share at least."""
BYTES_PER_LEARNER = 300_000
"""Bytes of the objects around a learner."""
BYTES_PER_PROCESS = 160 << 20
"""Bytes of a process for learners or an actor, before it has any."""


def build_shapes(config: TrainConfig, spec: EnvSpec, torso: nn.Module | None = None) -> ActorCritic:
    """Build the network to read its shapes: on torch's meta device, as it may be of any size, but for layers of the user's."""
    with torch.device("meta"):
        return build_policy(config, spec, torso)


def refuse_large(
    config: TrainConfig, spec: EnvSpec, plan: Plan, torso: nn.Module | None = None
) -> list[str]:
    """Refuse trajectories and networks that there is no room for; say how large those are that are large.

    Before either is made, and before an observation is asked for. Encoders that fit no such observation are refused too.
    Arguments as below.
    """
    refuse_encoders(spec, config.policy, torso)
    free, size = free_memory(), config.num_learners
    trajectories = size * plan.num_envs * _bytes_per_env(config, spec, plan)
    has = (
        f"{spec.env_id} has observations of {spec.obs_numbers:,} numbers and actions of "
        f"{spec.action.num_params:,} parameters"
    )
    left = f"; {free / 2**30:.0f} GiB are free: give it smaller spaces"
    if trajectories // plan.num_envs > free:
        each = trajectories / plan.num_envs / 2**30
        raise ConfigError(
            f"{has}; the trajectories of one environment{' of each learner' * (size > 1)} take about "
            f"{each:,.0f} GiB of memory{left}"
        )
    if trajectories > free:
        fits = max(free * plan.num_envs // trajectories, 1)
        raise ConfigError(
            f"num_envs is {plan.num_envs:,}, whose trajectories take about "
            f"{trajectories / 2**30:,.0f} GiB of memory; {free / 2**30:.0f} GiB are free: "
            f"--num-envs {1 << int(math.log2(fits))}"
        )
    parameters, nbytes = _network_size(config, spec, torso)
    if plan.device == "cpu":
        # Policy, a gradient a thread, two averages, two acting copies, two boards, and a checkpoint of three.
        copies = 10 + plan.learner_threads + _outer_copies(config)
        inputs = 8 * plan.learner_threads * plan.micro_batch_rows * spec.obs_numbers
    else:
        copies, inputs = 6 + _outer_copies(config), 0
    network = size * (copies * nbytes + inputs * (parameters > 0))
    text = f"a network of {parameters:,} parameters takes about {network / 2**30:,.1f} GiB with its copies"
    if trajectories + network > free:
        raise ConfigError(
            f"{has}; {text}, and trajectories {trajectories / 2**30:,.1f} GiB{left}, or the policy smaller "
            "layers"
        )
    if torso is not None or config.policy.has_own_code:
        build_policy(config, spec, torso)  # which tries the layers
    if not parameters or trajectories + network < TOLD_BYTES:
        return []
    return [
        f"{text}, trajectories {trajectories / 2**30:,.1f} GiB; {free / 2**30:.0f} GiB are free"
    ]


def _outer_copies(config: TrainConfig) -> int:
    """Return how often the outer step keeps what is as large as the policy."""
    return config.optimizer.has_outer_step + (config.optimizer.outer_momentum > 0.0)


def _bytes_per_env(config: TrainConfig, spec: EnvSpec, plan: Plan) -> int:
    row = spec.obs_nbytes + BYTES_PER_STEP
    row += 8 * math.prod(spec.action.shape) + 4 * spec.action.num_params
    waiting = config.queue.capacity if plan.lag is None else 0
    return (2 + waiting) * (config.unroll_length + 1) * row + BYTES_PER_ENV


def _network_size(config: TrainConfig, spec: EnvSpec, torso: nn.Module | None) -> tuple[int, int]:
    """Return parameters and bytes of a network, without making it; zeros for one of the usual size."""
    policy = config.policy
    inside = [
        *policy.hidden_sizes,
        policy.fc_size,
        policy.core_size,
        policy.join_size,
        policy.tile_size,
    ]
    inside += policy.head_sizes
    for own in policy.encoders.values():
        inside += [*own.hidden_sizes, own.fc_size, own.embedding_size]
    outside = max(spec.obs_numbers, spec.action.num_params)
    if outside < LARGE and max(inside) < LARGE_LAYER:
        return 0, 0
    made = build_shapes(config, spec, torso)
    parameters = sum(x.numel() for x in made.parameters())
    return parameters, sum(x.nbytes for x in made.shared_tensors())


def refuse_what_memory_cannot_hold(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    num_processes: int = 0,
    checkpoint: Checkpoint | None = None,
    torso: nn.Module | None = None,
) -> list[str]:
    """Refuse more learners, in processes or not, environments or replays than there is room for, together.

    Before any is made. Returns how large each replay is, in words, and what else is large.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        num_processes: with learners; 0: this one.
        checkpoint: that will be put back, some of it loaded already.
        torso: the user's own feature layers.
    """
    told = refuse_large(config, spec, plan, torso)
    others = _refuse_many(config, spec, plan, num_processes, torso)
    if len(config.replays) == 1:
        return [*told, *_replays_missed(config)]
    loads = loaded = 0
    if checkpoint is not None:
        loads, loaded = checkpoint.nbytes(loaded=False), checkpoint.nbytes(loaded=True)
    policy = build_policy(config, spec, torso)
    told += refuse_replays(
        config,
        policy,
        num_envs=plan.num_envs,
        device=plan.device,
        others=others,
        loads=loads,
        loaded=loaded,
    )
    if config.checkpoint_replay:
        told.append(_checkpoints_in_words(config, plan, policy, checkpoint))
    return told


def _refuse_many(
    config: TrainConfig, spec: EnvSpec, plan: Plan, num_processes: int, torso: nn.Module | None
) -> int:
    """Return the bytes that learners, environments and actors take; refuse more of them than there is room for."""
    size, free = config.num_learners, free_memory()
    envs = _bytes_per_env(config, spec, plan)
    total = size * plan.num_envs * envs
    if size > 1:
        policy = build_policy(config, spec, torso)
        nbytes = sum(x.nbytes for x in policy.shared_tensors())
        # Policy, gradient, two averages, acting copy, two boards and four messages.
        each = (11 + _outer_copies(config)) * nbytes + plan.num_envs * envs + BYTES_PER_LEARNER
        if size * each > free:
            raise ConfigError(
                f"num_learners is {size}, which take about {size * each / 2**30:.0f} GiB of memory; "
                f"{free / 2**30:.0f} GiB are free: --num-learners {max(free // each, 1)}"
            )
        total = size * each + num_processes * BYTES_PER_PROCESS
        if total > free:
            fits = max((free - size * each) // BYTES_PER_PROCESS, 1)
            raise ConfigError(
                f"{size} learners in {num_processes} processes take about {total / 2**30:.0f} GiB of "
                f"memory; {free / 2**30:.0f} GiB are free; let more of them share a process: "
                f"--learners-per-process {math.ceil(size / fits)}"
            )
    actors = size * plan.actors
    if total + actors * BYTES_PER_PROCESS > free:
        fits = max((free - total) // (BYTES_PER_PROCESS * size), 0)
        raise ConfigError(
            f"{actors} actor processes take about {actors * BYTES_PER_PROCESS / 2**30:.0f} GiB of memory beside the learners; "
            f"{free / 2**30:.0f} GiB are free: --actors-per-learner {fits}"
        )
    return total + actors * BYTES_PER_PROCESS


def _replays_missed(config: TrainConfig) -> list[str]:
    """Say of a run that replays nothing what it has that is for replaying; nothing where it has nothing."""
    name, cost = config.algorithm.name, getattr(config.algorithm, "policy_cloning_cost", 0.0)
    what = f"what {name} is for" * (name in ("laser", "impact"))
    what = what or "what algorithm.policy_cloning_cost is for" * (cost > 0.0)
    what = what or "what checkpoint_replay is for" * config.checkpoint_replay
    how = ": --replay-ratio 3" if config.algorithm.corrects else ""
    return [f"nothing is replayed, which is {what}{how}"] if what else []


def refuse_what_a_gpu_cannot_hold(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    torso: nn.Module | None = None,
    *,
    processes: int = 0,
) -> None:
    """Refuse to learn more rows at a time than the GPU has memory for, before anything is made there.

    Args:
        config: every setting.
        spec: of the environment.
        plan: the machine's part.
        torso: the user's own feature layers.
        processes: of the learners, beside this one; 0: they are in this one.
    """
    if plan.device == "cpu" or config.placement == "cluster":
        return  # the GPUs of a cluster are elsewhere
    free, memory = torch.cuda.mem_get_info()
    # What an earlier run of this process has left, which the next one takes again.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    policy = build_policy(config, spec, torso)
    if torso is None and not config.policy.has_own_code:  # which may branch on its data
        policy.to("meta")  # a device of shapes alone
    columns = share_out(config, plan.num_envs).total
    rows = min(plan.micro_batch_rows, columns * (config.unroll_length + 1))
    each = _learnt_nbytes(config, spec, plan, policy)
    batch = columns * (config.unroll_length + 1) * (spec.obs_nbytes + BYTES_PER_STEP)
    # Policy, gradient, two averages, acting copy, two boards and three messages.
    nbytes = sum(x.nbytes for x in policy.shared_tensors())
    # Trajectories, the batch in its place, and those that replays fill ahead.
    batches = 4 + (config.prefetch_batches + 1 if kept_replays(config) else 0)
    fixed = (10 + _outer_copies(config)) * nbytes + batches * batch
    rings = rings_on_gpu(config, policy, memory=memory)
    replays = sum(rings.values())
    fixed += replays + measured_nbytes(config, policy)
    gpus = max(torch.cuda.device_count(), 1)
    learners, beside = math.ceil(config.num_learners / gpus), math.ceil(processes / gpus)
    kept = learners * fixed + beside * BYTES_PER_CONTEXT
    at_a_time = max(beside, 1)  # learners of a process take turns
    needed = kept + at_a_time * rows * each
    if needed <= free:
        return
    left = (free - kept) // at_a_time
    what = f"{learners} learners and {rows:,}" if learners > 1 else f"{rows:,}"
    where = f" in each of {at_a_time} processes" * (at_a_time > 1)
    told = f"{what} rows learnt at a time{where} take about {size_in_words(needed)} of the GPU's memory, of which "
    if replays and needed - learners * replays <= free:
        largest = max(rings, key=lambda i: rings[i])
        raise ConfigError(
            f"{told}{size_in_words(free)} are free; replays take {size_in_words(learners * replays)}: keep fewer steps, "
            f"or keep them in the host's memory: --replays.{largest}.device cpu"
        )
    if left < each * (config.unroll_length + 1):  # of one column
        if beside > 1 and learners * fixed + BYTES_PER_CONTEXT + rows * each <= free:
            raise ConfigError(
                f"{told}{size_in_words(free)} are free; learners of one process share what it needs: "
                f"--learners-per-process {learners}"
            )
        raise ConfigError(
            f"{told}{size_in_words(free)} are free; fewer environments or a smaller network may fit: "
            f"--num-envs {max(plan.num_envs // 2, 1)}"
        )
    raise ConfigError(f"{told}{size_in_words(free)} are free: --micro-batch-rows {left // each}")


def _learnt_nbytes(config: TrainConfig, spec: EnvSpec, plan: Plan, policy: ActorCritic) -> int:
    """Return about how much memory a row takes while it is learnt: what the backward pass asks for, twice."""
    away, b = policy.device, 4
    slot = empty_trajectory(spec, unroll_length=1, num_columns=b, core_units=policy.core_units)
    x = slot.to(away)
    own = {_place_of(x) for x in (*policy.parameters(), *policy.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        kept[_place_of(saved)] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        held = policy(obs_at(x.obs, slice(1)), x.starts[:1], x.core_state, x.action, x.reward)
    nbytes = sum(saved.nbytes for place, saved in kept.items() if place not in own)
    del held
    return 2 * nbytes // b // (2 if plan.precision == "bf16" else 1)


def _place_of(x: torch.Tensor) -> int:
    """Return what tells the memory of a tensor apart where memory has no addresses."""
    return x.untyped_storage()._cdata  # noqa: SLF001


def _checkpoints_in_words(
    config: TrainConfig, plan: Plan, policy: ActorCritic, checkpoint: Checkpoint | None
) -> str:
    """Tell how large checkpoints with replays get; refuse them if the disk cannot hold them."""
    nbytes, keep = _checkpoint_nbytes(config, plan, policy), config.keep_checkpoints
    folder = Path(config.run_folder or "runs")
    written = 0
    if checkpoint is not None:
        folder = checkpoint.path.parent
        if keep:  # they make room for what comes
            written = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
    number = f"{keep} kept and one being written" if keep else "all kept"
    each = f"up to {size_in_words(nbytes)} each, {number}"
    files = config.num_learners * sum(
        nbytes_of(config, s, policy)
        for s in kept_replays(config)
        if s.path and disk_of(Path(s.path)) == disk_of(folder)
    )
    needed, free = nbytes * (max(keep, 1) + 1), free_disk(folder) + written - files
    if needed <= free:
        return f"checkpoints: {each}"
    fewer = "--keep-checkpoints 1, " if keep != 1 and 2 * nbytes <= free else ""
    raise ConfigError(
        f"checkpoint_replay is on, and checkpoints of {each}, take {size_in_words(needed)} of the "
        f"disk, where {size_in_words(max(free, 0))} are free{' beside replays' if files else ''}: "
        f"{fewer}--checkpoint-replay false, or choose --run-folder on another disk"
    )


def _checkpoint_nbytes(config: TrainConfig, plan: Plan, policy: ActorCritic) -> int:
    """Return how large a checkpoint gets in which replays are saved."""
    unroll, size = config.unroll_length, config.num_learners
    # In the whole run; every second row may reset an environment, and is no env step.
    stored = math.ceil(2 * config.total_env_steps / (size * unroll)) + plan.num_envs
    replays = 0
    for settings in kept_replays(config):
        capacity = capacity_of(settings, unroll)
        replays += layout_of(config, settings, policy).nbytes(min(capacity, stored))
        replays += 16 * capacity * (size if settings.shared else 1)  # how often which was used
    column = (unroll + 1) * (policy.spec.obs_nbytes + BYTES_PER_STEP)
    replayed = sum(share_out(config, plan.num_envs).replayed)
    waiting = (plan.lag or 0) * plan.num_envs + config.prefetch_batches * replayed
    # Learnt, averaged, an optimizer's two averages of gradients, and the outer step's.
    policies = (4 + bool(config.optimizer.outer_momentum)) * sum(
        x.nbytes for x in policy.shared_tensors()
    )
    return size * (replays + waiting * column + policies)


def refuse_full_shared_memory(config: TrainConfig) -> None:
    """Worker processes share memory with the actor: refuse to begin where there is no room for any."""
    if not config.env.workers:
        return
    try:
        multiprocessing.get_context("spawn").RawArray("b", SHARED_BYTES)
    except OSError as error:
        raise ConfigError(
            f"--env.workers {config.env.workers} needs room in shared memory, /dev/shm or the folder TMPDIR "
            f"({error.strerror}); free some, or step the environments without workers: --env.workers 0"
        ) from None
