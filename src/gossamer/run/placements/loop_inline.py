"""One role at a time, in lock-step: all learners of this process in turn, or those of a process where nothing overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.machine import threads

if TYPE_CHECKING:
    from collections.abc import Generator

    from gossamer.build.roles import LearnerBundle
    from gossamer.run.placements.host_learners import HostLearners


def learn_inline(learners: HostLearners) -> Generator[None]:
    """Learn a version whenever it is advanced.

    Lag 0 collects trajectory k with version k; lag 1 with version k - 1, as when both overlap. What
    the roles compute, and in which order each sees it, is what threads do, so results are too. All
    learners of this process adapt, then all combine, so every message of theirs is there before it is mixed.
    """
    for parts in learners.parts:
        learners.publish(parts)
    collectors = [_collect(parts) for parts in learners.parts]
    while True:
        for collector in collectors:
            next(collector)
        with threads(1):
            _learn_version(learners)
        for parts in learners.parts:
            learners.publish(parts)
        # Of what lag 1 has in flight a checkpoint holds one trajectory: collected, not yet learnt.
        yield


def _learn_version(learners: HostLearners) -> None:
    """Let every learner learn one batch; those that are through early wait for the others."""
    versions = {parts.learner.rank: parts.learner.version for parts in learners.parts}
    learning = [parts.learner for parts in learners.parts]
    while learning:
        for learner in learning:
            learner.adapt()
        for learner in learning:
            learner.combine()
        learning = [learner for learner in learning if learner.version == versions[learner.rank]]


def _collect(parts: LearnerBundle) -> Generator[None]:
    """Let the actor of one learner collect what its lag allows whenever this is advanced."""
    actor, queue, lag = parts.actor, parts.queue, parts.plan.lag
    lag = 1 if lag is None else lag
    began = parts.learner.version
    collected = began + len(queue.wait_full(0))
    while True:
        while collected <= parts.learner.version + lag:
            slot = queue.slot()
            oldest = max(collected - lag, began)
            version = parts.board.read(oldest, actor.policy.shared_tensors(), exact=True)
            actor.policy.refresh()
            with threads(1):
                actor.collect(slot, version)
            queue.put(slot)
            collected += 1
        yield
