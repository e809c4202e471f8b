"""Which learners share a process, where it runs, how it is started, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import num_cores
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.template import MAX_DESCRIPTORS, Copy, template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.config import TrainConfig
    from gossamer.run.placements.group import PolicyBoards
    from gossamer.run.placements.learner_process import Task
    from gossamer.system.signs import Patience, Wait


JOIN_SECONDS = 20.0
"""Longest wait for a process that was killed."""
CLOSE_SECONDS = 5.0
"""Longest wait for processes that are done and close their environments."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which learners share a process, and where it runs."""

    ranks: tuple[range, ...]
    share: int
    """Cores for each process."""
    cores: tuple[tuple[int, ...], ...]
    """Which, by process; empty: any, where the system does not let us choose."""

    @property
    def overlaps(self) -> bool:
        """Whether each process has one learner and a core for acting beside it."""
        return len(self.ranks[0]) == 1 and self.share > 1

    def __str__(self) -> str:
        return f"{len(self.ranks)} process{'es' * (len(self.ranks) > 1)}"


def layout_of(config: TrainConfig) -> Layout:
    """Share learners out over processes and cores.

    A process for each, until there are more than two a core: then starting them would cost more than
    it brings. Those that are alone on their core take turns at acting and learning.
    """
    size, total = config.num_learners, num_cores()
    per = config.learners_per_process
    if not per:
        per = 1 if size <= 2 * total else math.ceil(size / total)
    ranks = tuple(range(first, min(first + per, size)) for first in range(0, size, per))
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    share = max(total // len(ranks), 1)
    # Where some cores would have more processes than others, the system does better.
    even = known and (len(ranks) <= total or len(ranks) % total == 0)
    cores = tuple(
        tuple(known[(i * share + j) % len(known)] for j in range(share)) if even else ()
        for i in range(len(ranks))
    )
    return Layout(ranks, share, cores)


def transport_of(config: TrainConfig, device: str) -> str:
    """Return how gradients travel between processes: "memory", "nccl" or "gloo".

    Raises:
        ConfigError: what was asked for cannot be.
    """
    asked = getattr(config.topology, "transport", "memory")
    if asked == "memory" or (asked == "auto" and device != "cuda"):
        return "memory"
    import torch

    from gossamer.links.collective import can_use

    per = len(layout_of(config).ranks[0])
    gpus = torch.cuda.device_count() if device == "cuda" else 0
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


@dataclasses.dataclass
class Process:
    """One process, while it lives."""

    popen: subprocess.Popen[bytes] | Copy
    channel: Channel
    began_version: int
    life: Wait
    """The launcher's, for its next sign of life."""
    started: float
    done: bool = False
    held: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Messages that came after its part of a checkpoint for which others are still missing."""


def start_process(task: Task, *, version: int, device: str, patience: Patience) -> Process:
    """Start a process for a task; `version` is what its first learner had reached before."""
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(x or str(Path.cwd()) for x in sys.path)  # "" is the present folder
    environment = {**os.environ, "PYTHONPATH": path}
    if device == "cuda" and task.ranks[1] - task.ranks[0] == 1:
        # It needs no memory on the others' GPUs then; several learners choose among all.
        environment["CUDA_VISIBLE_DEVICES"] = _gpu_of(task.ranks[0])
    with theirs:
        popen = _copy(theirs, task, environment) or subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "gossamer.run.placements.child",
                str(theirs.fileno()),
                str(os.getpid()),
            ],
            pass_fds=(theirs.fileno(), *task.blocks),
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher
        )
    channel = Channel(ours)
    with suppress(OSError):  # it is dead already, which those who look after it will see
        channel.send(dataclasses.asdict(task))
    ours.setblocking(False)
    return Process(popen, channel, version, patience.wait(""), time.monotonic())


def _copy(end: socket.socket, task: Task, environment: dict[str, str]) -> Copy | None:
    made = template() if len(task.blocks) <= MAX_DESCRIPTORS else None
    return None if made is None else made.copy(end, task.blocks, environment)


def end_processes(processes: Sequence[Process]) -> None:
    """Wait a little for those that are done to close what they hold, kill what still runs, wait until all are gone."""
    until = time.monotonic() + CLOSE_SECONDS
    for process in processes:
        if process.done:
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(until - time.monotonic(), 0.0))
    for process in processes:
        process.channel.close()
        if process.popen.poll() is None:
            process.popen.kill()
    for process in processes:
        process.popen.wait(JOIN_SECONDS)


def _gpu_of(rank: int) -> str:
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    return gpus[rank % len(gpus)]


def rows_of(layout: Layout, pids: list[int], restarts: list[int]) -> list[dict[str, Any]]:
    """Return what processes.json says of the launcher, which is this process, and of every learner's."""
    rows: list[dict[str, Any]] = [
        {"role": "launcher", "rank": None, "pid": os.getpid(), "restarts": 0}
    ]
    for ranks, pid, died in zip(layout.ranks, pids, restarts, strict=True):
        rows += [{"role": "learner", "rank": x, "pid": pid, "restarts": died} for x in ranks]
    return rows


def donors_of(config: TrainConfig, gone: range, versions: PolicyBoards) -> dict[str, list[int]]:
    """Return, for each learner of a process that died, whose average it begins with again.

    Of those whom it ever hears; of all others, or of itself alone, if none of them is there.
    """
    topology, size = config.topology, config.num_learners
    alive = [rank for rank in range(size) if rank not in gone and versions.newest(rank) >= 0]
    others = alive if topology.talks else []
    turns = topology.turns(size, config.seed)
    return {
        str(rank): [x for x in alive if any(x in weights[rank] for weights in turns)]
        or others
        or [rank]
        for rank in gone
    }


def failure_of(message: dict[str, Any]) -> BaseException:
    """Return the error that ends the run because of what a process has told."""
    kinds: dict[str, type[Exception]] = {"ConfigError": ConfigError, "RunFailed": RunFailed}
    if message["type"]:
        return kinds[message["type"]](message["text"])
    headline = message["traceback"].strip().splitlines()[-1]
    return RunFailed(f"a learner failed: {headline}\n{message['traceback']}")
