"""A process with some learners of a run, started by the launcher and told over a channel what to do.

`gossamer.run.placements.child` is where such a process begins.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import socket
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gossamer.build.plan import Plan, resumes_exactly
from gossamer.config import from_dict
from gossamer.envs.registry import read_spec, try_to_repeat
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.shared_memory import BEATS, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.machine import keep_freed_memory, use_threads
from gossamer.record.folder import RunFolder
from gossamer.run import snapshot
from gossamer.run.evaluate import load_weights
from gossamer.run.placements.channel import Channel, pack
from gossamer.run.placements.group import Group, Memory, Sizes, build_learners
from gossamer.run.placements.inline import run_inline
from gossamer.run.placements.orders import Orders
from gossamer.run.placements.threads import run_local
from gossamer.run.rows import Rows
from gossamer.run.stopping import Overdue, Watch
from gossamer.system.devices import use_deterministic_algorithms
from gossamer.system.signs import all_signs

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.roles.actor import Episode

FINAL = 0
"""Number of the snapshot that a process takes when it ends, in place of an order's."""
ROW_SECONDS = 1.0
"""Shortest time between two messages with rows and episodes."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process is told when it begins."""

    config: dict[str, Any]
    plan: dict[str, Any]
    folder: str
    ranks: tuple[int, int]
    """Its first learner, and the one behind its last."""
    process: int
    """Index among the processes."""
    num_processes: int
    blocks: tuple[int, ...]
    """File descriptors of the memory of mailboxes, versions and orders, then of every learner's part of each
    shared replay."""
    mixed_sizes: tuple[int, int]
    policy_sizes: tuple[int, int]
    cores: tuple[int, ...]
    """Where it runs; empty: anywhere."""
    overlaps: bool
    """Acting and learning side by side, which needs a second core."""
    resume: int | None
    """Updates of the checkpoint to continue from."""
    restarts: int
    """How often this process has died."""
    donors: dict[str, list[int]]
    """By rank, when it has died: whose average it begins with."""
    differs: str | None
    """Why environments do not come back, as in their spec; None: it is not known yet."""
    transport: str
    """How gradients travel: "memory", or the backend of a collective."""
    meeting: str
    """File at which the members of a collective find each other."""


class ProcessControl:
    """Whom the launcher's loop asks in a process of its own: orders come from shared memory."""

    def __init__(
        self, config: TrainConfig, group: Group, channel: Channel, orders: Orders, task: Task
    ):
        self._config, self._group, self._channel, self._orders = config, group, channel, orders
        self._process = task.process
        self._rows = Rows(group)
        self._told_at = time.monotonic()
        self._episodes: list[list[Any]] = []
        self._lock = threading.Lock()

    def on_episode(self, episode: Episode, learner: int) -> None:
        """Keep a finished episode until the next message."""
        with self._lock:
            self._episodes.append([learner, dataclasses.asdict(episode)])

    def after_version(self) -> bool:
        """Tell, save and end as ordered."""
        group = self._group
        self._rows.note()
        ended = group.has_learnt(self._config.total_env_steps)
        # In lock-step all have the same count, unless one was replaced.
        ended = ended and not (self._config.topology.staleness == 0 and self._orders.patched)
        order = self._orders.reach(self._process, group.version)
        ended = ended or (order is not None and order[1])
        if ended or order is not None:
            number = FINAL if ended or order is None else order[0]
            self._save(number)
        elif time.monotonic() - self._told_at >= ROW_SECONDS:
            self._tell()
        return ended

    def evaluation_due(self) -> bool:
        """The launcher evaluates."""
        return False

    def interrupted(self) -> bool:
        """The launcher is who gets signals."""
        return False

    def end_now(self) -> bool:
        """Nothing is evaluated here that could ask for it."""
        raise AssertionError

    def _tell(self, *, last: bool = False) -> None:
        self._told_at = time.monotonic()
        with self._lock:
            episodes, self._episodes = self._episodes, []
        rows = self._rows.make(last=last)
        self._channel.send({"kind": "rows", "rows": rows, "episodes": episodes, "last": last})

    def _save(self, number: int) -> None:
        began = time.monotonic()
        tensors, state = snapshot.take(self._group, copies=False)
        descriptor, layout = pack(tensors)
        # Episodes of a trajectory that was waited for belong to the snapshot.
        self._tell(last=number == FINAL)
        message = {"kind": "snapshot", "number": number, "layout": layout, "state": state}
        self._channel.send(message, descriptor)
        os.close(descriptor)
        self._group.first.checkpoint_seconds += time.monotonic() - began


def main(descriptor: int, blocks: tuple[int, ...] | None = None) -> int:
    """Serve the launcher at the other end of a socket; `blocks`: of a task, where their numbers are others here."""
    channel = Channel(socket.socket(fileno=descriptor))
    messages: list[dict[str, Any]] = []
    while not messages and not channel.closed:
        messages = channel.receive()
    if not messages:
        return 1
    threading.Thread(target=_watch, args=(channel,), daemon=True).start()
    try:
        task = Task(**messages[0])
        _serve(channel, task if blocks is None else dataclasses.replace(task, blocks=blocks))
    except BrokenPipeError:
        return 1
    except BaseException as error:  # noqa: BLE001 - told to the launcher, which ends the run
        _tell_failure(channel, error)
        return 1
    return 0


def _tell_failure(channel: Channel, error: BaseException) -> None:
    if isinstance(error, Overdue):
        error = error.failure or error
    kind = type(error).__name__ if isinstance(error, ConfigError | RunFailed) else ""
    lines = traceback.format_exception(error)
    with suppress(OSError):  # the launcher is gone
        channel.send(
            {"kind": "failed", "type": kind, "text": str(error), "traceback": "".join(lines)}
        )


def _serve(channel: Channel, task: Task) -> None:
    if task.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, task.cores)
    # Outside its roles too: torch's pool has a thread for every core of the machine, and would spin here.
    use_threads(1)
    keep_freed_memory()
    config, plan = from_dict(task.config), Plan(**task.plan)
    if plan.device != "cpu":
        use_deterministic_algorithms(config.deterministic)
    folder = RunFolder(task.folder)
    folder.join()
    mixed, policy = task.mixed_sizes, task.policy_sizes
    sizes = Sizes((mixed[0], mixed[1]), (policy[0], policy[1]))
    blocks = [mmap.mmap(fd, os.fstat(fd).st_size) for fd in task.blocks]
    boxes = Mailboxes(blocks[0], config.num_learners, sizes.mixed)
    for rank in range(*task.ranks):
        boxes.live_in(rank, task.ranks[0])

    def show_life() -> None:
        boxes.headers[task.ranks[0]][BEATS] = sum(sign.own() for sign in all_signs())

    def say(text: str) -> None:
        with suppress(OSError):  # the launcher is gone
            channel.send({"kind": "notice", "text": text})

    with Watch(config.patience_seconds, say, on_look=show_life):
        _learn(channel, task, config, plan, folder, blocks, sizes)


def _learn(
    channel: Channel,
    task: Task,
    config: TrainConfig,
    plan: Plan,
    folder: RunFolder,
    blocks: list[mmap.mmap],
    sizes: Sizes,
) -> None:
    spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=False)
    if task.differs is None:
        spec = try_to_repeat(spec, config.env, config.max_episode_steps)
    else:
        spec = dataclasses.replace(spec, differs=task.differs)
    fresh = task.resume is None or task.restarts > 0
    mine = snapshot.names_of(range(*task.ranks), replays=config.checkpoint_replay)
    checkpoint = None if fresh else folder.checkpoints().load(task.resume or 0, mine)
    control: ProcessControl
    exact = checkpoint is not None and snapshot.comes_back(checkpoint, spec)
    stop = StopSignal()
    size, parts_of_replays = config.num_learners, blocks[3:]
    parts = build_learners(
        config,
        spec,
        plan,
        range(*task.ranks),
        stop,
        on_episode=lambda episode, learner: control.on_episode(episode, learner),
        restarts=task.restarts,
        start=not exact,
        shared=[parts_of_replays[i : i + size] for i in range(0, len(parts_of_replays), size)],
    )
    memory = Memory(blocks[:2], config, sizes, parts[0].policy.shared_tensors())
    # A new process's episodes are of streams that a later session would not know.
    exact = resumes_exactly(config, spec, plan) and not task.restarts
    group = Group(parts, stop, None, memory, exact, config.seed, config.patience_seconds)
    collective = None
    try:
        if task.restarts:
            for part in parts:
                group.inherit(part, task.donors[str(part.learner.rank)])
        elif checkpoint is not None:
            if not snapshot.put_back(group, checkpoint):
                spec = dataclasses.replace(spec, differs=snapshot.NOT_BACK)
        elif config.init_from:
            source = RunFolder.open(config.init_from)
            load_weights([part.policy for part in parts], source, "last")
            for part in parts:
                part.learner.replay.fill_first()
        orders = Orders(blocks[2], task.num_processes)
        if task.transport != "memory":
            from gossamer.links.collective import Collective

            group.meet()
            collective = Collective(
                task.transport, task.meeting, task.ranks[0], config.num_learners
            )
        group.join(late=task.restarts > 0, collective=collective)
        for part in parts:
            group.publish(part)
        control = ProcessControl(config, group, channel, orders, task)
        channel.send({"kind": "ready", "differs": spec.differs})
        (run_local if task.overlaps else run_inline)(group, control)
        # What comes now is no part of the run: an environment may crash or hang when it is closed.
        channel.send({"kind": "done"})
    except BaseException as error:
        # Before the others notice: they would tell that this one has left.
        _tell_failure(channel, error)
        raise
    finally:
        for rank in range(*task.ranks):
            memory.boxes.mark_left(rank)
        if collective is not None:
            collective.close()
        group.close()


def _watch(channel: Channel) -> None:
    """End this process when the launcher's end of the channel closes, without writing anything."""
    while not channel.closed:
        channel.receive()
    os._exit(1)
