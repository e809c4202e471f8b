"""A process with some learners of a run, started by the supervisor and told over a channel what to do.

Such a process is begun by `spawn`, and reads its task in `child`.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gossamer.config import from_dict
from gossamer.envs.registry import read_spec, try_to_repeat
from gossamer.errors import ConfigError
from gossamer.links.mailboxes import BEATS, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.machine import has_bf16, keep_freed_memory, use_threads
from gossamer.run import snapshot
from gossamer.run.host_protocol import Done, Failed, Notice, Ready
from gossamer.run.placements.child_protocol import MessagesWritten
from gossamer.run.placements.host_learners import build_learners
from gossamer.run.placements.host_loop import HostLoop
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.loop_overlapped import learn_overlapped
from gossamer.run.placements.orders import SharedOrders
from gossamer.run.placements.remote_actor import RemoteActor
from gossamer.run.stopping import Stop, Watch, Watched, cause_of
from gossamer.system.devices import use_deterministic_algorithms
from gossamer.system.signs_of_life import all_signs
from gossamer.topology.base import FOREVER

if TYPE_CHECKING:
    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.run.host_protocol import Event
    from gossamer.run.placements.channel import Channel
    from gossamer.run.placements.child_protocol import LearnerTask


def work(channel: Channel[Any], task: LearnerTask) -> None:
    """Learn what the supervisor at the other end of the channel asks for; its orders come through shared memory."""
    stop = StopSignal()
    channel.end_with_other_end(lambda _: stop.stop())  # it is only ever asked to end
    if task.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, task.cores)
    # Outside its roles too: torch's pool has a thread for every core of the machine, and would spin here.
    use_threads(1)
    keep_freed_memory()
    config, plan = from_dict(task.config), task.plan
    if plan.device != "cpu":
        _need_gpu(channel, plan, task.machine)
        use_deterministic_algorithms(config.deterministic)
    # The first one is the lock on the run folder, which is open as long as this process lives.
    blocks = [mmap.mmap(fd, 0) for fd in task.blocks[1:]]
    boxes = Mailboxes(blocks[0], config.num_learners, task.sizes.mixed)
    for rank in range(*task.ranks):
        boxes.set_process_leader(rank, task.ranks[0])
    with Watch(config.patience_seconds, _Watched(channel, boxes, task.ranks[0]), Stop()):
        _learn(channel, task, config, blocks, stop)


class _Watched(Watched):
    """This process: it shows the supervisor that it lives, and sends it what is to be said."""

    def __init__(self, channel: Channel[Any], boxes: Mailboxes, rank: int):
        self._channel, self._boxes, self._rank = channel, boxes, rank
        self._held_up = 0

    def say(self, text: str) -> None:
        with suppress(OSError):  # the supervisor is gone
            self._channel.send(Notice(text))

    def look(self) -> None:
        signs = all_signs()
        if (
            self._channel.is_sending
        ):  # to a supervisor that is suspended, or at its caller's, for as long as it likes
            self._held_up += 1
            for sign in signs:
                sign.echoes += 1
        self._boxes.headers[self._rank][BEATS] = sum(sign.own() for sign in signs) + self._held_up


def _need_gpu(channel: Channel[Any], plan: Plan, machine: str) -> None:
    """Refuse to begin without a GPU, and tell if it lacks the plan's arithmetic: it may be another machine's plan."""
    where = f"on {machine}" if machine else "in a learner's process"
    if not torch.cuda.is_available():
        raise ConfigError(
            f"learners are to use a GPU, but torch {torch.__version__} sees none {where}: use --device cpu, or install "
            "torch for CUDA and NVIDIA's driver there"
        )
    if plan.precision == "bf16" and not has_bf16("cuda"):
        name = torch.cuda.get_device_name()
        channel.send(Notice(f"{name} {where} emulates bf16, which is slow: --precision fp32"))


def _learn(
    channel: Channel[Any],
    task: LearnerTask,
    config: TrainConfig,
    blocks: list[mmap.mmap],
    stop: StopSignal,
) -> None:
    spec = read_spec(config.env_id, config.env, config.max_episode_steps, tries=False)
    if task.differs is None:
        spec = try_to_repeat(spec, config.env, config.max_episode_steps)
    else:
        spec = dataclasses.replace(spec, differs=task.differs)
    size, parts_of_replays = config.num_learners, blocks[3:]
    placer = None
    if task.machine and config.cluster.cpus_per_actor:
        placer = partial(RemoteActor, here=task.machine, ask=channel.send)
    # One that takes over draws from streams of its own, also in its first incarnation: its episodes are nobody's from before.
    restarts = max(task.incarnation, 1) if task.donors else 0
    learners = build_learners(
        config,
        spec,
        task.plan,
        range(*task.ranks),
        stop=stop,
        say=lambda text: channel.send(Notice(text)),
        restarts=restarts,
        start=not snapshot.is_repeatable(task.initial, spec),
        memory=blocks[:2],
        shared=[parts_of_replays[i : i + size] for i in range(0, len(parts_of_replays), size)],
        placer=placer,
    )
    assert learners.memory is not None
    boxes = learners.memory.boxes
    learners.exact &= not task.donors
    boxes.by_mail = bool(task.machine)
    if task.machine and config.topology.staleness < FOREVER:
        learners.on_write = lambda: channel.send(MessagesWritten())
    collective = None
    try:
        for parts in learners.parts if task.donors else ():
            learners.take_over(parts, task.donors[parts.learner.rank])
        if task.initial is not None and (differs := snapshot.restore(learners, task.initial)):
            spec = dataclasses.replace(spec, differs=differs)
        if task.transport != "memory":
            from gossamer.links.collective import Collective

            learners.meet()
            collective = Collective(
                task.transport, task.meeting, task.ranks[0], config.num_learners, task.machine
            )
        learners.join(late=bool(task.donors), collective=collective)
        for parts in learners.parts:
            learners.publish(parts)
        versions = (learn_overlapped if task.overlaps else learn_inline)(learners)
        loop = HostLoop(learners, versions, SharedOrders(blocks[2], task.process))
        channel.send(Ready(spec.differs))
        event: Event | None = None
        while not isinstance(event, Done):
            # The last event is that all is told: what comes then is no part of the run, an environment may crash
            # or hang when it is closed.
            for event in loop.step():
                channel.send(event)
    except BaseException as error:
        # Before the others notice: they would tell that this one has left.
        with suppress(OSError):  # the supervisor is gone
            channel.send(Failed.of(cause_of(error), "a learner"))
        raise
    finally:
        for rank in range(*task.ranks):
            boxes.mark_left(rank)
        if collective is not None:
            collective.close()
        learners.close()
