"""One machine, the default: acting, learning and evaluation overlap in threads of one process.

Simulators step in C++ threads without the interpreter lock and torch releases it too, so threads
suffice and trajectories never cross a process.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from gossamer.links import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.build import Parts
    from gossamer.launch.control import Control

JOIN_SECONDS = 20.0
"""Longest wait for a thread to notice that the run is over."""


def run_local(parts: Parts, control: Control) -> None:
    """Train until control says stop; the first error of any role is raised here."""
    learner, board = parts.learner, parts.board
    set_threads(parts.plan.learner_threads)
    board.publish(parts.policy.shared_tensors(), learner.version)
    parts.gate.set()
    started = [_start(parts, "actor", lambda: _act(parts), parts.plan.actor_threads)]
    if parts.evaluator is not None:
        started.append(_start(parts, "evaluator", parts.evaluator.run, 1))
    try:
        while not control.finished():
            control.after_version(learner.learn_version())
            board.publish(parts.policy.shared_tensors(), learner.version)
    except Stopped:
        pass  # some other role failed and said so below
    finally:
        parts.stop.stop()
        for thread in started:
            thread.join(JOIN_SECONDS)
    if parts.stop.error is not None:
        raise parts.stop.error


def _act(parts: Parts) -> None:
    """Collect trajectories as the lag allows, until stopped."""
    actor, queue, lag = parts.actor, parts.queue, parts.plan.lag
    collected = parts.learner.version + len(queue.wait_full(0))
    while True:
        slot = queue.slot()
        oldest = 0 if lag is None else max(collected - lag, 0)
        version = parts.board.read(oldest, actor.policy.shared_tensors(), exact=lag is not None)
        actor.policy.refresh()
        while not parts.gate.wait(0.2):
            if parts.stop.stopped:
                return
        with parts.collecting:
            actor.collect(slot, version)
            queue.put(slot)
        collected += 1


def _start(parts: Parts, name: str, work: Callable[[], None], num_threads: int) -> threading.Thread:
    def run() -> None:
        set_threads(num_threads)
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:  # the run ends; the main thread raises it
            parts.stop.stop(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def set_threads(count: int) -> None:
    """Give this thread a number of torch threads; without the question the answer would not stick."""
    torch.get_num_threads()
    torch.set_num_threads(count)
