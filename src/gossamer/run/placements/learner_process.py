"""A process with some learners of a run, started by the supervisor and told over a channel what to do.

Such a process is a copy of the fork server, or begins in `gossamer.run.placements.child`; `child_roles` reads its task.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gossamer.build.auto import Plan, resumes_exactly
from gossamer.config import from_dict
from gossamer.envs.registry import read_spec, try_to_repeat
from gossamer.errors import ConfigError
from gossamer.links.mailboxes import BEATS, JOIN_AHEAD_BY_MAIL, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.machine import has_bf16, keep_freed_memory, use_threads
from gossamer.record.checkpoint import Checkpoint
from gossamer.run import snapshot
from gossamer.run.host_protocol import ActorProcesses, Done, Notice, ProgressReport, Snapshot
from gossamer.run.placements.channel import pack, tell_failure
from gossamer.run.placements.host_learners import HostLearners, build_learners
from gossamer.run.placements.host_loop import HostLoop
from gossamer.run.placements.learners_memory import Memory, Sizes
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.loop_overlapped import learn_overlapped
from gossamer.run.placements.orders import SharedOrders
from gossamer.run.placements.process_host import Task
from gossamer.run.placements.remote_actor import Elsewhere
from gossamer.run.placements.takeover import take_over
from gossamer.run.stopping import Overdue, Watch
from gossamer.system.devices import use_deterministic_algorithms
from gossamer.system.signs import all_signs
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.config import TrainConfig
    from gossamer.run.host_protocol import Event
    from gossamer.run.placements.channel import Channel


def work(
    channel: Channel,
    told: dict[str, Any],
    begin: tuple[dict[str, Tensor], dict[str, Any]] | None,
    rest: list[dict[str, Any]],
) -> None:
    """Learn what the supervisor at the other end of the channel asks for.

    Args:
        channel: to the supervisor.
        told: a `Task`, as plain data.
        begin: tensors and state of what the learners begin with.
        rest: nothing; the supervisor's orders come through shared memory.
    """
    assert not rest
    threading.Thread(target=_watch, args=(channel,), daemon=True).start()
    task, checkpoint = Task(**told), None
    if begin is not None:
        tensors, state = begin
        checkpoint = Checkpoint(state["updates"], tensors, state["state"], Path(task.begin_name))
    _serve(channel, task, checkpoint)


def _serve(channel: Channel, task: Task, checkpoint: Checkpoint | None) -> None:
    if task.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, task.cores)
    # Outside its roles too: torch's pool has a thread for every core of the machine, and would spin here.
    use_threads(1)
    keep_freed_memory()
    config, plan = from_dict(task.config), Plan(**task.plan)
    if plan.device != "cpu":
        _need_gpu(channel, plan, task.machine)
        use_deterministic_algorithms(config.deterministic)
    mixed, policy = task.mixed_sizes, task.policy_sizes
    sizes = Sizes((mixed[0], mixed[1]), (policy[0], policy[1]))
    # The first one is the lock on the run folder, which is open as long as this process lives.
    blocks = [mmap.mmap(fd, os.fstat(fd).st_size) for fd in task.blocks[1:]]
    boxes = Mailboxes(blocks[0], config.num_learners, sizes.mixed)
    for rank in range(*task.ranks):
        boxes.live_in(rank, task.ranks[0])

    def show_life() -> None:
        boxes.headers[task.ranks[0]][BEATS] = sum(sign.own() for sign in all_signs())

    def say(text: str) -> None:
        with suppress(OSError):  # the supervisor is gone
            channel.send({"kind": "notice", "text": text})

    with Watch(config.patience_seconds, say, on_look=show_life):
        _learn(channel, task, config, plan, checkpoint, blocks, sizes)


def _need_gpu(channel: Channel, plan: Plan, machine: str) -> None:
    """Refuse to begin without a GPU, and tell if it lacks the plan's arithmetic: it may be another machine's plan."""
    where = f"on {machine}" if machine else "in a learner's process"
    if not torch.cuda.is_available():
        raise ConfigError(
            f"learners are to use a GPU, but torch {torch.__version__} sees none {where}: use --device cpu, or install "
            "torch for CUDA and NVIDIA's driver there"
        )
    if plan.precision == "bf16" and not has_bf16("cuda"):
        text = (
            f"{torch.cuda.get_device_name()} {where} emulates bf16, which is slow: --precision fp32"
        )
        channel.send({"kind": "notice", "text": text})


def _learn(
    channel: Channel,
    task: Task,
    config: TrainConfig,
    plan: Plan,
    checkpoint: Checkpoint | None,
    blocks: list[mmap.mmap],
    sizes: Sizes,
) -> None:
    spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=False)
    if task.differs is None:
        spec = try_to_repeat(spec, config.env, config.max_episode_steps)
    else:
        spec = dataclasses.replace(spec, differs=task.differs)
    size, parts_of_replays = config.num_learners, blocks[3:]
    loop: HostLoop
    elsewhere = None
    if task.machine and config.cluster.cpus_per_actor:
        elsewhere = Elsewhere(
            task.machine, lambda actor: channel.send({"kind": "place actor", "task": actor})
        )
    parts = build_learners(
        config,
        spec,
        plan,
        range(*task.ranks),
        StopSignal(),
        on_episode=lambda episode, learner: loop.on_episode(episode, learner),
        restarts=task.restarts,
        say=lambda text: channel.send({"kind": "notice", "text": text}),
        elsewhere=elsewhere,
        start=not snapshot.comes_back(checkpoint, spec),
        shared=[parts_of_replays[i : i + size] for i in range(0, len(parts_of_replays), size)],
    )
    memory = Memory(blocks[:2], config, sizes, parts[0].policy.shared_tensors())
    if task.machine:
        memory.boxes.join_ahead = JOIN_AHEAD_BY_MAIL
    # A new process's episodes are of streams that a later session would not know.
    exact = resumes_exactly(config, spec, plan) and not task.restarts
    learners = HostLearners(
        parts, parts[0].stop, memory, exact, config.seed, config.patience_seconds
    )
    if task.machine and config.topology.staleness < FOREVER:
        learners.on_write = lambda: channel.send({"kind": "mail"})
    collective = None
    try:
        for part in parts if task.restarts else ():
            take_over(memory, part, task.donors[str(part.learner.rank)])
        if checkpoint is not None and not snapshot.begin_with(learners, checkpoint):
            spec = dataclasses.replace(spec, differs=snapshot.NOT_BACK)
        if task.transport != "memory":
            from gossamer.links.collective import Collective, interface_of

            learners.meet()
            interface = interface_of(task.machine) if task.machine else ""
            collective = Collective(
                task.transport, task.meeting, task.ranks[0], config.num_learners, interface
            )
        learners.join(late=task.restarts > 0, collective=collective)
        for part in parts:
            learners.publish(part)
        versions = (learn_overlapped if task.overlaps else learn_inline)(learners)
        orders = SharedOrders(blocks[2], task.num_processes)
        loop = HostLoop(config, learners, versions, orders, host=task.process)
        channel.send({"kind": "ready", "differs": spec.differs})
        event: Event | None = None
        while not isinstance(event, Done):
            # The last event is that all is told: what comes then is no part of the run, an environment may crash
            # or hang when it is closed.
            for event in loop.step():
                began = time.monotonic()
                _send(channel, event)
                if isinstance(event, Snapshot):
                    learners.first.checkpoint_seconds += time.monotonic() - began
    except BaseException as error:
        # Before the others notice: they would tell that this one has left.
        tell_failure(channel.send, error.failure or error if isinstance(error, Overdue) else error)
        raise
    finally:
        for rank in range(*task.ranks):
            memory.boxes.mark_left(rank)
        if collective is not None:
            collective.close()
        learners.close()


def _send(channel: Channel, event: Event) -> None:
    if isinstance(event, ProgressReport):
        episodes = [[rank, dataclasses.asdict(episode)] for rank, episode in event.episodes]
        channel.send({"kind": "told", "rows": event.rows, "episodes": episodes, "last": event.last})
    elif isinstance(event, Snapshot):
        began = time.monotonic()
        descriptor = pack(event.tensors, event.state)
        took = event.seconds + time.monotonic() - began
        channel.send({"kind": "snapshot", "number": event.number, "seconds": took}, descriptor)
        os.close(descriptor)
    elif isinstance(event, ActorProcesses):
        channel.send({"kind": "actors", "rows": event.rows})
    elif isinstance(event, Notice):
        channel.send({"kind": "notice", "text": event.text})
    elif isinstance(event, Done):
        channel.send({"kind": "done"})


def _watch(channel: Channel) -> None:
    """End this process when the supervisor's end of the channel closes, without writing anything."""
    while not channel.closed:
        channel.receive()
    os._exit(1)
