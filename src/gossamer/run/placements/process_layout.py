"""Which learners share a process, on which cores and which GPU it runs, and how gradients travel between processes."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING

from gossamer.errors import ConfigError
from gossamer.system.cores import can_pin, cpus_by_core, num_cores

if TYPE_CHECKING:
    from gossamer.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which learners share a process, and where it runs."""

    ranks: tuple[range, ...]
    share: int
    """Cores for each process; on a cluster for each host that has as many learners as the first."""
    cores: tuple[tuple[int, ...], ...]
    """Their hardware threads, by process; empty: any, where the system does not let us choose."""
    overlaps: bool
    """Each process has one learner, and acting has a core beside it."""
    on_cluster: bool = False

    def __str__(self) -> str:
        several = len(self.ranks) > 1
        if self.on_cluster:
            return f"{len(self.ranks)} host{'s' * several} of a Ray cluster"
        return f"{len(self.ranks)} process{'es' * several}"


def layout_of(config: TrainConfig) -> Layout | None:
    """Share learners out over processes and cores; None: they run in this process.

    A process for each, until there are more than two a core: then starting them would cost more than
    it brings. Those that are alone on their core take turns at acting and learning. On a cluster a host for each.
    """
    size, total = config.num_learners, num_cores()
    on_cluster = config.placement == "cluster"
    if (size == 1 and not on_cluster) or config.placement == "inline":
        return None
    per = config.learners_per_process or int(on_cluster)
    if not per:
        per = 1 if size <= 2 * total else math.ceil(size / total)
    ranks = tuple(range(first, min(first + per, size)) for first in range(0, size, per))
    alone = len(ranks[0]) == 1
    if on_cluster:
        share = len(ranks[0]) * (config.cluster.cpus_per_learner or max(total // size, 1))
        # Actors may have cores of their own, on any machine.
        remote = config.actors_per_learner and config.cluster.cpus_per_actor
        overlaps = alone and (share > 1 or bool(remote))
        return Layout(ranks, share, ((),) * len(ranks), overlaps, on_cluster=True)
    share = max(total // len(ranks), 1)
    known = cpus_by_core() if can_pin() else []
    # Where some cores would have more processes than others, the system does better; and of a quota, which is worth
    # fewer cores than there are, other containers may use the rest.
    even = len(known) == total and (len(ranks) <= total or len(ranks) % total == 0)
    cores = tuple(
        tuple(cpu for j in range(share) for cpu in known[(i * share + j) % total]) if even else ()
        for i in range(len(ranks))
    )
    return Layout(ranks, share, cores, overlaps=alone and share > 1)


def gpu_of(rank: int) -> str:
    """Return which of this machine's GPUs the process of a learner sees, as CUDA_VISIBLE_DEVICES names it."""
    import torch

    visible, count = os.environ.get("CUDA_VISIBLE_DEVICES", ""), torch.cuda.device_count()
    # Behind a name of no GPU, such as -1, none is seen.
    gpus = visible.split(",")[:count] if visible else list(map(str, range(count)))
    return gpus[rank % len(gpus)] if gpus else ""


def transport_of(config: TrainConfig, layout: Layout, device: str) -> str:
    """Return how gradients travel between processes: "memory", "nccl" or "gloo".

    Raises:
        ConfigError: what was asked for cannot be.
    """
    asked = getattr(config.topology, "transport", "memory")
    if asked == "memory" or (asked == "auto" and device != "cuda"):
        return "memory"
    import torch

    from gossamer.links.collective import can_use

    per = len(layout.ranks[0])
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    if layout.on_cluster:  # GPUs are on other machines, which this one knows only by their number
        one_each = per == 1 and config.cluster.gpus_per_learner >= 1 and device == "cuda"
        if asked == "nccl" and not one_each:
            raise ConfigError(
                "topology.transport is nccl, for which each learner needs a GPU: --cluster.gpus-per-learner 1 with "
                "--learners-per-process 1, or --topology.transport memory"
            )
    else:
        one_each = per == 1 and gpus >= config.num_learners and can_use("nccl")
    if asked == "auto":
        return "nccl" if one_each else "memory"
    if per > 1:
        raise ConfigError(
            f"topology.transport is {asked}, for which each learner needs a process: "
            "--learners-per-process 1, or --topology.transport memory"
        )
    if asked == "nccl" and not one_each:
        raise ConfigError(
            f"topology.transport is nccl, for which each of the {config.num_learners} learners needs a GPU; "
            f"there are {gpus}: --topology.transport memory"
        )
    return asked
