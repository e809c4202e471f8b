"""One role at a time, in lock-step: tests, debugging, exact reproduction."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from gossamer.evaluator import Interrupted
from gossamer.machine import threads

if TYPE_CHECKING:
    from gossamer.build import Parts
    from gossamer.launch.control import Control


def run_inline(parts: Parts, control: Control) -> None:
    """Train until control says stop.

    Lag 0 collects trajectory k with version k; lag 1 with version k - 1, as when both overlap. What
    the roles compute, and in which order each sees it, is what threads do, so results are too.
    """
    actor, learner, board, queue = parts.actor, parts.learner, parts.board, parts.queue
    lag = 1 if parts.plan.lag is None else parts.plan.lag
    board.publish(parts.policy.shared_tensors(), learner.version)
    began = learner.version
    collected = began + len(queue.wait_full(0))

    def collect() -> None:
        nonlocal collected
        slot = queue.slot()
        oldest = max(collected - lag, began)
        version = board.read(oldest, actor.policy.shared_tensors(), exact=True)
        actor.policy.refresh()
        with threads(parts.plan.actor_threads):
            actor.collect(slot, version)
        queue.put(slot)
        collected += 1

    over = False
    while not over:
        while collected <= learner.version + lag:
            collect()
        with threads(1):
            metrics = learner.learn_version()
        # Of what lag 1 has in flight a checkpoint holds one trajectory: collected, not yet learnt.
        over = control.after_version(metrics)
        board.publish(parts.policy.shared_tensors(), learner.version)
        if parts.evaluator is not None and not over and control.evaluation_due():
            with suppress(Interrupted):  # a signal: the next version is the last
                parts.evaluator.evaluate_newest(stop=control.interrupted)
