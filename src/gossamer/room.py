"""Whether a run fits into memory, and onto the disk: asked before anything is made."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.batches import (
    capacity_of,
    kept_replays,
    layout_of,
    refuse_replays,
    share_out,
    size_in_words,
)
from gossamer.build import build_policy
from gossamer.machine import disk_of, free_disk, free_memory
from gossamer.types import ConfigError

if TYPE_CHECKING:
    from gossamer.build import Plan
    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import Checkpoint
    from gossamer.types import EnvSpec

BYTES_PER_STEP = 64
"""Of a trajectory, beside its observation."""
BYTES_PER_ENV = 20_000
"""Of the smallest simulator."""
BYTES_PER_LEARNER = 300_000
"""Of the objects around one."""
BYTES_PER_PROCESS = 160 << 20
"""Of a process with learners, before it has any."""


def refuse_what_memory_cannot_hold(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    num_processes: int = 0,
    checkpoint: Checkpoint | None = None,
) -> list[str]:
    """Refuse more learners, in processes or not, environments or replays than there is room for, together.

    Before any is made. Returns how large each replay is, in words.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        num_processes: with learners; 0: this one.
        checkpoint: that will be put back, some of it loaded already.
    """
    size, free = config.num_learners, free_memory()
    pixel = 1 if spec.obs_kind == "pixels" else 4
    row = math.prod(spec.obs_shape) * pixel + BYTES_PER_STEP
    waiting = config.queue.capacity if plan.lag is None else 0
    envs = (2 + waiting) * (config.unroll_length + 1) * row + BYTES_PER_ENV
    total = size * plan.num_envs * envs
    if total > free:
        fits = max(free // (size * envs), 1)
        raise ConfigError(
            f"num_envs is {plan.num_envs:,}, whose trajectories take about "
            f"{total / 2**30:,.0f} GiB of memory; {free / 2**30:.0f} GiB are free: "
            f"--num-envs {1 << int(math.log2(fits))}"
        )
    if size > 1:
        policy = build_policy(config, spec)
        nbytes = sum(x.numel() * x.element_size() for x in policy.shared_tensors())
        # Policy, gradient, two averages, acting copy, two boards and four messages.
        each = 11 * nbytes + plan.num_envs * envs + BYTES_PER_LEARNER
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
    if len(config.replays) == 1:
        name, cost = config.algorithm.name, getattr(config.algorithm, "policy_cloning_cost", 0.0)
        what = f"what {name} is for" * (name in ("laser", "impact"))
        what = what or "what algorithm.policy_cloning_cost is for" * (cost > 0.0)
        what = what or "what checkpoint_replay is for" * config.checkpoint_replay
        how = ": --replay-ratio 3" if config.algorithm.corrects else ""
        return [f"nothing is replayed, which is {what}{how}"] if what else []
    loads = loaded = 0
    if checkpoint is not None:
        loads, loaded = checkpoint.nbytes(loaded=False), checkpoint.nbytes(loaded=True)
    policy = build_policy(config, spec)
    told = refuse_replays(
        config,
        spec,
        policy,
        num_envs=plan.num_envs,
        others=total,
        loads=loads,
        loaded=loaded,
    )
    if config.checkpoint_replay:
        told.append(_checkpoints_in_words(config, spec, plan, policy, checkpoint))
    return told


def _checkpoints_in_words(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    policy: ActorCritic,
    checkpoint: Checkpoint | None,
) -> str:
    """Tell how large checkpoints with replays get; refuse them if the disk cannot hold them."""
    nbytes, keep = _checkpoint_nbytes(config, spec, plan, policy), config.keep_checkpoints
    folder = Path(config.run_folder or "runs")
    written = 0
    if checkpoint is not None:
        folder = checkpoint.path.parent
        if keep:  # they make room for what comes
            written = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
    number = f"{keep} kept and one being written" if keep else "all kept"
    each = f"up to {size_in_words(nbytes)} each, {number}"
    files = config.num_learners * sum(
        layout_of(config, spec, s, policy).nbytes(capacity_of(s, config.unroll_length))
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


def _checkpoint_nbytes(config: TrainConfig, spec: EnvSpec, plan: Plan, policy: ActorCritic) -> int:
    """Return how large a checkpoint gets in which replays are saved."""
    unroll, size = config.unroll_length, config.num_learners
    stored = math.ceil(config.total_env_steps / (size * unroll))  # in the whole run
    replays = 0
    for settings in kept_replays(config):
        capacity = capacity_of(settings, unroll)
        replays += layout_of(config, spec, settings, policy).nbytes(min(capacity, stored))
        replays += 16 * capacity * (size if settings.shared else 1)  # how often which was used
    pixel = 1 if spec.obs_kind == "pixels" else 4
    column = (unroll + 1) * (math.prod(spec.obs_shape) * pixel + BYTES_PER_STEP)
    replayed = sum(share_out(config, plan.num_envs).replayed)
    waiting = (plan.lag or 0) * plan.num_envs + config.prefetch_batches * replayed
    # Learnt, averaged, and an optimizer's two averages of gradients.
    policies = 4 * sum(x.nbytes for x in policy.shared_tensors())
    return size * (replays + waiting * column + policies)


def refuse_full_shared_memory(config: TrainConfig) -> None:
    """Worker processes need locks and arrays in shared memory: without room each would just die."""
    if not config.env.workers:
        return
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        raise ConfigError(
            f"--env.workers {config.env.workers} needs room in shared memory, /dev/shm "
            f"({error.strerror}); free some, or step the environments without workers: --env.workers 0"
        ) from None
