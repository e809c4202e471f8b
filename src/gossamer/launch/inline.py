"""Everything in one thread, in lock-step: tests, debugging, exact reproduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.build import threads

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
    collected = learner.version + len(queue.wait_full(0))

    def collect() -> None:
        nonlocal collected
        slot = queue.slot()
        version = board.read(max(collected - lag, 0), actor.policy.shared_tensors(), exact=True)
        actor.policy.refresh()
        with threads(parts.plan.actor_threads):
            actor.collect(slot, version)
        queue.put(slot)
        collected += 1

    while not control.finished():
        while collected <= learner.version + lag:
            collect()
        with threads(parts.plan.learner_threads):
            metrics = learner.learn_version()
        # Of what lag 1 has in flight a checkpoint holds one trajectory: collected, not yet learnt.
        control.after_version(metrics)
        board.publish(parts.policy.shared_tensors(), learner.version)
        if parts.evaluator is not None and control.evaluation_due():
            parts.evaluator.evaluate_newest()
