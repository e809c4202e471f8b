"""What batches are made of: columns of the queue and of each replay, the memory they take, the mix itself."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gossamer.envs.seeding import stream_seed
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import free_disk, free_memory
from gossamer.replay.batches import BatchSource
from gossamer.replay.layout import Layout
from gossamer.replay.recent import RecentPolicy
from gossamer.replay.replay import Replay, Share
from gossamer.replay.ring import DeviceRing, Ring, make_block
from gossamer.replay.selectors.base import Selector
from gossamer.replay.settings import QueueSettings
from gossamer.replay.shards import Form, ReplayShards
from gossamer.system import devices
from gossamer.system.cores import num_cores
from gossamer.system.reading import expand
from gossamer.types import Trajectory, as_batch, empty_trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.config import TrainConfig
    from gossamer.links.protocols import TrajectoryQueue
    from gossamer.links.stopping import StopSignal
    from gossamer.policies.actor_critic import ActorCritic

Blocks = Sequence[Sequence[Any]]
"""Memory of every learner's part, by rank, for each shared replay."""
CANDIDATE_COLUMNS = 32
"""Candidates that are measured at a time."""
GPU_FRACTION = 0.25
"""Fraction of a GPU's memory that replays may take without being asked to."""
MEMORY = -1
"""Where disks have numbers."""


@dataclass(frozen=True)
class Shares:
    """How many columns of a batch are whose."""

    online: int
    replayed: tuple[int, ...]
    """Columns from each replay but the queue, in the order of the settings."""

    @property
    def total(self) -> int:
        """Columns of a batch."""
        return self.online + sum(self.replayed)


def kept_replays(config: TrainConfig) -> list[Selector]:
    """Return the settings of all replays but the queue."""
    return [settings for _, settings in _kept(config)]


def _kept(config: TrainConfig) -> list[tuple[int, Selector]]:
    """Return the settings of all replays but the queue, each with its index among the sources of a batch."""
    return [(i, s) for i, s in enumerate(config.replays) if isinstance(s, Selector)]


def share_out(config: TrainConfig, num_envs: int) -> Shares:
    """Return whose the columns of a batch are; refuse shares that are parts of columns."""
    found = _whole_shares(config, num_envs)
    if found is not None:
        return found
    near = [n for n in range(1, 4 * num_envs + 64) if _whole_shares(config, n) is not None]
    near = sorted(near, key=lambda n: abs(n - num_envs))[:3]
    shares = ", ".join(f"{s.name} {s.fraction:g}" for s in config.replays)
    hint = (
        "no number of environments near gives whole ones; use simpler fractions, like 0.5 or 0.875"
    )
    if near:
        sizes = ", ".join(f"{n} (batches of {_columns(config, n)})" for n in sorted(near))
        hint = f"numbers that do: {sizes}: --num-envs {near[0]}"
    raise ConfigError(
        f"replays: {num_envs} environments with fractions {shares} give batches with parts of columns; "
        f"{hint}"
    )


def _columns(config: TrainConfig, num_envs: int) -> int:
    queue = next(s.fraction for s in config.replays if isinstance(s, QueueSettings))
    return round(num_envs / queue)


def _whole_shares(config: TrainConfig, num_envs: int) -> Shares | None:
    queue = next(s.fraction for s in config.replays if isinstance(s, QueueSettings))
    wanted = [num_envs * s.fraction / queue for s in kept_replays(config)]
    shares = Shares(num_envs, tuple(round(x) for x in wanted))
    whole = all(
        # Fractions may have been given to four digits.
        abs(x - n) < min(1.6e-4 * x, 0.4) and n
        for x, n in zip(wanted, shares.replayed, strict=True)
    )
    return shares if whole else None


def capacity_of(settings: Selector, unroll_length: int) -> int:
    """Return how many columns a replay keeps."""
    if settings.capacity is not None:
        return settings.capacity
    return max(settings.capacity_steps // unroll_length, 1)


def layout_of(config: TrainConfig, settings: Selector, policy: ActorCritic) -> Layout:
    """Return what a replay stores of a column."""
    features = policy.feature_size * settings.stores_features
    return Layout(policy.spec, config.unroll_length, policy.core_units, features)


def nbytes_of(config: TrainConfig, settings: Selector, policy: ActorCritic) -> int:
    """Return the bytes of one learner's part of a replay."""
    return layout_of(config, settings, policy).nbytes(capacity_of(settings, config.unroll_length))


def form_of(config: TrainConfig, policy: ActorCritic, *, num_envs: int) -> Form:
    """Return what a learner's mix of replays is like."""
    kept = kept_replays(config)
    sharing = [config.num_learners if s.shared else 1 for s in kept]
    return Form(
        tuple(layout_of(config, s, policy) for s in kept),
        tuple(n * capacity_of(s, config.unroll_length) for n, s in zip(sharing, kept, strict=True)),
        num_columns=sum(share_out(config, num_envs).replayed),
        num_batches=config.prefetch_batches + 1 if kept else 0,
        burn_in=config.replay_burn_in > 0,
    )


def refuse_replays(
    config: TrainConfig,
    policy: ActorCritic,
    *,
    num_envs: int,
    device: str = "cpu",
    others: int = 0,
    loads: int = 0,
    loaded: int = 0,
) -> list[str]:
    """Refuse replays that are too small for a batch or too large for memory; say how large they are.

    Args:
        config: of the run.
        policy: like every learner's.
        num_envs: of a learner.
        device: cpu, or cuda where learners have GPUs.
        others: bytes that learners and environments take beside them.
        loads: bytes of a checkpoint that are in memory for a while, before copies for others are made.
        loaded: bytes of these that are there already.
    """
    shares, told, room = share_out(config, num_envs), list[str](), list[_Room]()
    memory = 0
    if device != "cpu" and config.placement != "cluster":  # the GPUs of a cluster are elsewhere
        memory = devices.memory_of(torch.device(device))
    each = f" for each of {config.num_learners} learners" if config.num_learners > 1 else ""
    on_gpu = replays_on_gpu(config, policy, memory=memory)
    for (index, settings), there in zip(_kept(config), on_gpu, strict=True):
        _refuse_replay(config, policy, index, settings, device=device, columns=shares.total)
        capacity = capacity_of(settings, config.unroll_length)
        nbytes = nbytes_of(config, settings, policy) * config.num_learners
        room.append(_Room(index, settings, capacity, nbytes, there))
        alike = [one.settings.name for one in room].count(settings.name)
        number = f"_{alike}" if alike > 1 else ""
        how = f" ({words})" if (words := settings.strategy_in_words) else ""
        told.append(
            f"replay {settings.name}{number}{how}: {capacity:,} columns of {config.unroll_length} rows{each}, "
            f"{size_in_words(nbytes)}{' in all' if each else ''}"
            f"{f' in {settings.path}' if settings.path else ''}"
            f"{' in the memory of GPUs' if there else ''}"
        )
    begins = _replaying_begins(config, shares)
    if room and begins * config.num_learners >= config.total_env_steps:
        told.append(
            f"little or nothing will be replayed: replaying begins after {begins * config.num_learners:,} "
            f"rows, and the run ends after {config.total_env_steps:,} env steps"
        )
    copies = sum(one.nbytes for one in room) if config.checkpoint_replay else 0
    if config.num_learners > 1 and config.placement != "inline":
        # Processes may end, and tell what they hold, while the last checkpoint is written.
        copies *= 2
    beside = max(copies, loads) - loaded + others
    if device == "cpu":  # else they are on the GPU
        batches = (config.prefetch_batches + 1) * shares.total * _column_nbytes(config, policy)
        beside += (batches + measured_nbytes(config, policy)) * config.num_learners
    room = [one for one in room if not one.on_gpu]
    _refuse_no_room(config, room, shares, copies=copies, beside=beside)
    return told


def _refuse_replay(
    config: TrainConfig,
    policy: ActorCritic,
    index: int,
    settings: Selector,
    *,
    device: str,
    columns: int,
) -> None:
    """Refuse a replay that cannot be where it is asked for, has nothing to compare, or holds no batch of so many columns."""
    hidden = [*policy.torso.parameters(), *policy.core.parameters()]
    if settings.measures and not hidden:
        raise ConfigError(
            f"replays.{index} is {settings.name}, which compares features, and a policy without hidden "
            "layers has none: --policy.hidden-sizes 64 64, or the kind uniform"
        )
    if settings.device == "cuda":
        _refuse_on_gpu(config, index, settings, device)
    if (capacity := capacity_of(settings, config.unroll_length)) < columns:
        given = "capacity_steps" if settings.capacity is None else "capacity"
        raise ConfigError(
            f"replays.{index}.{given} makes room for {capacity:,} columns, and a batch has "
            f"{columns:,}: {_typed(config, index, settings, columns)}"
        )


def _refuse_no_room(
    config: TrainConfig, room: Sequence[_Room], shares: Shares, *, copies: int, beside: int
) -> None:
    """Refuse replays for which there is no room in memory, or on a disk.

    Args:
        config: of the run.
        room: that they take there.
        shares: of a batch.
        copies: bytes of memory for copies of what they hold.
        beside: bytes of memory that all else takes, such copies included.
    """
    disks = {one.settings.path: _disk(one) for one in room}
    for disk in dict.fromkeys([MEMORY, *disks.values()]):
        own = [one for one in room if disks[one.settings.path] == disk]
        path = "" if disk == MEMORY else own[0].settings.path
        nbytes = sum(one.nbytes for one in own)
        needed, free = nbytes + (0 if path else beside), free_bytes(path)
        if needed <= free:
            continue
        where = f"in {path}" if path else "of memory"
        if not path and copies and needed - copies <= free:
            raise ConfigError(
                f"checkpoint_replay is on, and copies of what replays hold take {copies / 1e9:.1f} GB of "
                f"memory; {free / 1e9:.1f} GB are free: --checkpoint-replay false, or keep fewer steps"
            )
        sizes = (
            f"replays{'' if path else ' and what learns from them'} take {needed / 1e9:.1f} GB {where}, and "
            f"{free / 1e9:.1f} GB are free"
        )
        least = sum(one.nbytes * shares.total / one.columns for one in own)  # of one batch each
        if not path and least + beside > 0.9 * free:
            raise ConfigError(
                f"{sizes}; smaller replays would not fit either: --num-envs {max(shares.online // 2, 1)}"
            )
        largest = max(own or room, key=lambda one: one.nbytes)
        left = 0.9 * free - (needed - largest.nbytes)
        fits = max(int(left / largest.nbytes * largest.columns), shares.total)
        raise ConfigError(
            f"{sizes}; keep fewer steps, or keep them elsewhere (path): "
            f"{_typed(config, largest.entry, largest.settings, fits)}"
        )


def _refuse_on_gpu(config: TrainConfig, index: int, settings: Selector, device: str) -> None:
    name, instead = f"replays.{index}.device", f"--replays.{index}.device cpu"
    if device == "cpu":
        raise ConfigError(f"{name} is cuda, but the learner computes on a CPU; use {instead}")
    if settings.path:
        raise ConfigError(
            f"{name} is cuda, but replays.{index}.path keeps the replay in a file; leave out one of them"
        )
    if settings.shared and config.num_learners > 1:
        raise ConfigError(
            f"{name} is cuda, but replays.{index}.shared lets every learner read it, which takes the host's memory; use "
            f"{instead}, or --replays.{index}.shared false"
        )


def _replaying_begins(config: TrainConfig, shares: Shares) -> int:
    """Return the rows that a learner has to store before a batch can hold replayed columns."""
    steps = shares.online * config.unroll_length
    stored = [0]
    for n, settings in zip(shares.replayed, kept_replays(config), strict=True):
        own = -(-n // config.num_learners) if settings.shared else n  # there are others' too
        stored += [-(-own // shares.online), -(-settings.learn_start // steps)]
    # A batch is picked when the one `prefetch_batches` before it has been stored.
    return (max(stored) + max(config.prefetch_batches - 1, 0)) * steps


def size_in_words(nbytes: int) -> str:
    """Return a size in GB, or in MB where it is small."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**8 else f"{nbytes / 1e6:.1f} MB"


class _Room(NamedTuple):
    """Memory, or room on a disk, that a replay takes."""

    entry: int
    """Index of the replay among the sources of a batch."""
    settings: Selector
    columns: int
    nbytes: int
    on_gpu: bool
    """Whether it is the GPU's, which is looked at with all else that is there."""


def _num_snapshots(config: TrainConfig) -> int:
    """Return how many versions of a policy candidates may be measured with at a time.

    A batch is picked with the newest version, and waited for `prefetch_batches` versions later, when all
    that was asked for before is done.
    """
    return config.prefetch_batches + 2


def _typed(config: TrainConfig, index: int, settings: Selector, columns: int) -> str:
    """Return what to type so that a replay has room for so many columns."""
    if settings.capacity is not None:
        return f"--replays.{index}.capacity {columns}"
    return f"--replays.{index}.capacity-steps {columns * config.unroll_length}"


def free_bytes(path: str) -> int:
    """Return the bytes free in memory, or on the disk that a folder is on."""
    return free_disk(Path(path)) if path else free_memory()


def _disk(room: _Room) -> int:
    """Return the number of the disk that the folder of a replay, which must be there, is on."""
    index, path = room.entry, room.settings.path
    if not path:
        return MEMORY
    folder = expand(path)
    if folder.is_file():
        raise ConfigError(f"replays.{index}.path is {path!r}, which is a file; choose a folder")
    if not folder.is_dir():
        raise ConfigError(
            f"replays.{index}.path is {path!r}, which is no folder; make it first: mkdir -p {path}"
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder.stat().st_dev
    except OSError as error:
        raise ConfigError(
            f"replays.{index}.path is {path!r}, where no file can be made ({error.strerror}); choose "
            f"another folder: --replays.{index}.path FOLDER"
        ) from None


def shared_blocks(config: TrainConfig, policy: ActorCritic) -> list[tuple[int, str]]:
    """Return bytes and path of one learner's part of each shared replay; empty for one learner."""
    if config.num_learners == 1:
        return []
    return [(nbytes_of(config, s, policy), s.path) for s in kept_replays(config) if s.shared]


def build_mix(
    config: TrainConfig,
    queue: TrajectoryQueue,
    policy: ActorCritic,
    *,
    num_envs: int,
    inference: Callable[[], ActorCritic],
    stop: StopSignal,
    rank: int = 0,
    restarts: int = 0,
    shared: Blocks = (),
) -> BatchSource:
    """Build what a learner takes its batches from.

    Args:
        config: of this learner.
        queue: of its online trajectories.
        policy: what it learns.
        num_envs: columns of a trajectory.
        inference: makes a copy of the policy to run over candidates.
        stop: ends every wait.
        rank: of the learner.
        restarts: after so many deaths its random streams are new ones.
        shared: of each shared replay, the blocks of all learners.
    """
    kept = _kept(config)
    if not kept:
        return BatchSource(queue, saved=config.checkpoint_replay)
    shares, device = share_out(config, num_envs), policy.device

    def trajectory(num_columns: int) -> Trajectory:
        return empty_trajectory(
            policy.spec,
            unroll_length=config.unroll_length,
            num_columns=num_columns,
            core_units=policy.core_units,
            device=device,
        )

    made: list[Share] = []
    others = iter(shared)
    on_gpu = replays_on_gpu(config, policy, memory=devices.memory_of(device))
    for i, ((index, settings), columns) in enumerate(zip(kept, shares.replayed, strict=True)):
        capacity = capacity_of(settings, config.unroll_length)
        layout = layout_of(config, settings, policy)
        rings: list[Ring | DeviceRing] = []
        if settings.shared and shared:
            rings += [Ring(layout, capacity, block) for block in next(others)]
        elif on_gpu[i]:
            rings += _ring_on_gpu(layout, settings, capacity, device, index=index)
        if not rings:
            block = make_block(layout.nbytes(capacity), settings.path)
            rings.append(Ring(layout, capacity, block))
        shards = ReplayShards(rings, rank if len(rings) > 1 else 0)
        candidates = trajectory(CANDIDATE_COLUMNS) if settings.measures else None
        replay = Replay(
            shards,
            settings,
            candidates=candidates,
            seed=stream_seed(config.seed, rank, f"replay {i}", restarts),
            updates_per_batch=config.algorithm.updates_per_batch,
        )
        made.append(Share(replay, columns))
    ahead = config.prefetch_batches
    recent = None
    if any(settings.measures for _, settings in kept):
        recent = RecentPolicy(inference(), policy.shared_tensors(), _num_snapshots(config))
    buffers = [
        as_batch(trajectory(shares.total), burn_in=config.replay_burn_in) for _ in range(ahead + 1)
    ]
    return BatchSource(
        queue,
        made,
        buffers,
        policy=recent,
        burn_in=config.replay_burn_in,
        saved=config.checkpoint_replay,
        # Beside the learner, if there is room beside it.
        threaded=config.placement != "inline" and ahead > 0 and num_cores() > 1,
        stop=stop,
        patience_seconds=config.patience_seconds,
        device=device,
    )


def _ring_on_gpu(
    layout: Layout, settings: Selector, capacity: int, device: torch.device, *, index: int
) -> list[DeviceRing]:
    """Return a ring on the GPU; none where it has no room for one that nobody has asked to be there.

    Raises:
        RunFailed: it has no room.
    """
    try:
        return [DeviceRing(layout, capacity, device)]
    except torch.cuda.OutOfMemoryError:
        if settings.device == "auto":
            return []
        raise RunFailed(
            f"replays.{index} takes {size_in_words(layout.nbytes(capacity))} of the GPU's memory, which has no room for "
            f"it; keep fewer steps, or keep them in the host's memory: --replays.{index}.device cpu"
        ) from None


def replays_on_gpu(config: TrainConfig, policy: ActorCritic, *, memory: int) -> list[bool]:
    """Return which of a learner's replays its GPU keeps, in their order: those that are asked for, and what fits.

    Args:
        config: of the run.
        policy: like every learner's.
        memory: bytes that a GPU has, whoever uses them; 0: there is none, or this is not known.
    """
    room = GPU_FRACTION * memory / learners_of_a_gpu(config)
    kept: list[bool] = []
    for settings in kept_replays(config):
        nbytes = nbytes_of(config, settings, policy)
        alone = not settings.path and not (settings.shared and config.num_learners > 1)
        fits = settings.device == "auto" and alone and nbytes <= room
        kept.append(settings.device == "cuda" or fits)
        room -= nbytes * kept[-1]
    return kept


def learners_of_a_gpu(config: TrainConfig) -> int:
    """Return how many learners share a GPU, at most."""
    if config.placement == "cluster":
        return max(round(1 / (config.cluster.gpus_per_learner or 1)), 1)
    return math.ceil(config.num_learners / max(torch.cuda.device_count(), 1))


def rings_on_gpu(config: TrainConfig, policy: ActorCritic, *, memory: int) -> dict[int, int]:
    """Return the bytes of a learner's replays that are on its GPU, by their index among the sources of a batch."""
    on_gpu = replays_on_gpu(config, policy, memory=memory)
    kept = zip(_kept(config), on_gpu, strict=True)
    return {i: nbytes_of(config, settings, policy) for (i, settings), there in kept if there}


def measured_nbytes(config: TrainConfig, policy: ActorCritic) -> int:
    """Return the bytes of a learner's candidates, and of the policies that they are run through."""
    measuring = [settings for settings in kept_replays(config) if settings.measures]
    if not measuring:
        return 0
    policies = (1 + _num_snapshots(config)) * sum(x.nbytes for x in policy.shared_tensors())
    return policies + CANDIDATE_COLUMNS * len(measuring) * _column_nbytes(config, policy)


def _column_nbytes(config: TrainConfig, policy: ActorCritic) -> int:
    """Return the bytes of a column's observations."""
    return (config.unroll_length + 1) * policy.spec.obs_nbytes
