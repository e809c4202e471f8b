"""Acting and learning overlap in threads: one learner in this process, the default, or one in a process of its own.

Simulators step in C++ threads without the interpreter lock and torch releases it too, so threads suffice. Trajectories stay
in this process, unless actors have processes of their own (`actor_team`) or learners share a replay.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from gossamer.links.stopping import Stopped
from gossamer.machine import lower_priority, threads, use_threads
from gossamer.system.devices import on_own_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from gossamer.build.roles import LearnerBundle
    from gossamer.links.stopping import StopSignal
    from gossamer.run.placements.host_learners import HostLearners

BALANCE_AFTER = 16
"""Trajectories of an actor without a set lag before it is known which role waits for the other."""
JOIN_SECONDS = 20.0
"""Longest wait for a thread to notice that the run is over."""


def learn_overlapped(learners: HostLearners) -> Generator[None]:
    """Learn a version whenever it is advanced, while an actor's thread collects; closing it ends the actor.

    It ends by itself when the learners were stopped.
    """
    parts = learners.first
    with threads(1):
        learners.publish(parts)
        # On a GPU what acts does not wait for what is being learnt, and goes first: it is little.
        act = on_own_stream(
            parts.policy.device,
            partial(_act, parts, parts.learner.version, len(parts.queue.wait_full(0))),
            first=True,
        )
        acting = start_thread(parts.stop, "actor", act, low=parts.plan.lag is not None)
        learners.acting = acting
        try:
            while True:
                parts.learner.learn_version()
                yield  # without publishing: when the run ends here nobody acts past the last checkpoint
                learners.publish(parts)
        except (Stopped, GeneratorExit):
            pass  # another role failed and said so, time is over, or the run
        finally:
            parts.stop.stop()
            acting.join(JOIN_SECONDS)
        learners.publish(parts)


def _act(parts: LearnerBundle, began: int, waiting: int) -> None:
    """Collect trajectories as the lag allows until stopped.

    Args:
        parts: the learner's.
        began: version the session begins with; there is none older on the board.
        waiting: trajectories that a resumed run had collected and not learnt.
    """
    actor, queue, lag = parts.actor, parts.queue, parts.plan.lag
    collected = began + waiting
    while not parts.stop.stopped:
        slot = queue.slot()
        oldest = began if lag is None else max(collected - lag, began)
        version = parts.board.read(oldest, actor.policy.shared_tensors(), exact=lag is not None)
        actor.policy.refresh()
        with parts.gate.passing():
            actor.collect(slot, version)
            queue.put(slot)
        collected += 1
        if lag is None and collected == began + waiting + BALANCE_AFTER:
            balance(parts)


def balance(parts: LearnerBundle) -> None:
    """Let acting give way where the learner is the bottleneck.

    Without a set lag the roles hold each other back by the queue alone. Where stepping is the
    bottleneck, a learner of higher priority would starve it and then wait.
    """
    if parts.queue.waited_seconds["slot"] > parts.queue.waited_seconds["get"]:
        acting = [threading.get_native_id(), *parts.actor.thread_ids]
        lower_priority([*acting, *parts.simulators])


def start_thread(
    stop: StopSignal, name: str, work: Callable[[], None], *, low: bool
) -> threading.Thread:
    """Start a role's thread, with one of torch's and low priority if asked; its error stops the run."""

    def run() -> None:
        use_threads(1)
        if low:
            lower_priority()
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the run ends; the main thread raises it
            stop.stop(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
