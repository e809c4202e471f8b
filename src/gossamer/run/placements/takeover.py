"""A learner that replaces one that has died: it begins with its donors' average policy, and counts on from where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.build.roles import LearnerBundle
    from gossamer.run.placements.learners_memory import Memory


def take_over(memory: Memory, parts: LearnerBundle, donors: Sequence[int]) -> None:
    """Give a new learner the average policy of its donors and the env steps of the dead one.

    Its version goes on from the newest of the dead one and its donors; its optimizer is new.

    Args:
        memory: through which all learners mix.
        parts: the new learner, under the dead one's rank, and what serves it.
        donors: ranks of those that it ever hears and that live; all others, or itself alone, if there are none.
    """
    learner, versions, boxes = parts.learner, memory.versions, memory.boxes
    versions.average(parts.policy.shared_tensors(), donors)
    parts.policy.refresh()
    own = boxes.env_steps(learner.rank)
    everyone = sum(map(boxes.env_steps, range(boxes.num_learners)))
    learner.take_over(
        update=max(map(versions.updates, (*donors, learner.rank))),
        # Later than what the dead one showed, of which the newest is what all look at.
        version=max(*map(versions.newest, donors), versions.newest(learner.rank) + 1),
        own_env_steps=own,
        env_steps=everyone if learner.topology.talks else own * boxes.num_learners,
    )
    parts.actor.env_steps = own
    learner.replay.take_over(inserted=own // parts.unroll_length, draws=learner.version)
