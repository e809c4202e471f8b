"""`Peers` without shared memory or sequence numbers: plain lists, for learners that take turns in one thread.

A second implementation of what `gossamer.links.mailboxes` does for processes, so that a mixer is known to need no more than the
protocol. Whoever would have to wait fails: in lock-step on one thread nothing that is waited for could still come.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from gossamer.roles.mixer import vectors


@dataclass
class _State:
    """What a learner shows to all."""

    messages: list
    updates: list = field(default_factory=lambda: [-1, -1])
    posts: int = 0
    combined: int = -1
    joined: int = 0
    left: bool = False
    env_steps: int = 0
    announced: dict = field(default_factory=dict)


class MemoryPeers:
    """One learner's link to the others."""

    def __init__(self, states, rank, sizes):
        self._states, self.rank, self.sizes = states, rank, sizes
        self.num_learners, self.waited_seconds = len(states), 0.0
        self._own = states[rank]

    def messages_of(self, peer):
        return self._states[peer].messages

    @contextlib.contextmanager
    def posting(self, update):
        place = self._own.posts % 2
        yield place
        self._own.updates[place] = update
        self._own.posts += 1

    def posted(self):
        return sorted(update for update in self._own.updates if update >= 0)

    def newest(self, peer, updates):
        return max((x for x in self._states[peer].updates if x >= 0 and x in updates), default=None)

    def read(self, peer, updates, into):
        found = self.newest(peer, updates)
        if found is not None:
            for target, x in zip(
                into, self.messages_of(peer)[self.place_of(peer, found)], strict=True
            ):
                target.copy_(x)
        return found

    def place_of(self, peer, update):
        return self._states[peer].updates.index(update)

    def wait_posted(self, peer, updates):
        found = self.newest(peer, updates)
        assert found is not None or self.has_left(peer, updates.start), "it would wait for ever"
        return found

    def wait_combined(self, peer, update):
        left = self.has_left(peer, update)
        assert left or self._states[peer].combined >= update, "it would wait for ever"

    def set_combined(self, update):
        self._own.combined = update

    def newest_known(self):
        return max(*(x.combined for x in self._states), *self._own.updates)

    def has_left(self, peer, update):
        return self._states[peer].left or update < self._states[peer].joined

    def begin(self, update):
        self._own.combined, self._own.left = update - 1, False

    def join_running_group(self):
        raise AssertionError("learners that take turns begin together")

    def report(self, env_steps):
        self._own.env_steps = env_steps

    def total_env_steps(self):
        return sum(x.env_steps for x in self._states)

    def announce(self, update, env_steps):
        self._own.announced[update] = env_steps

    def wait_announced(self, peer, update):
        return self._states[peer].announced[update]


def memory_peers(num_learners, sizes):
    """Links of learners to each other; a message is float32 and float64 numbers of these sizes."""
    import torch

    states = [
        _State([vectors(sizes, torch.device("cpu")) for _ in range(2)]) for _ in range(num_learners)
    ]
    return [MemoryPeers(states, rank, sizes) for rank in range(num_learners)]
