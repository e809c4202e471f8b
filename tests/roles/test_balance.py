"""Threads without a set lag: acting gives way only where the learner is the bottleneck."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from gossamer.launch.local import _balance
from gossamer.machine import l2_cache_bytes, lower_priority, native_threads

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have no priority of their own"
)


def niceness_after(waits):
    """Nice values of a thread that balances, and of another that stands for a simulator's."""
    found, done = {}, threading.Event()
    started = threading.Event()

    def simulate():
        found["id"] = threading.get_native_id()
        started.set()
        done.wait(10.0)

    def act():
        parts = SimpleNamespace(
            queue=SimpleNamespace(waited_seconds=waits), simulators=frozenset({found["id"]})
        )
        _balance(parts)
        own = threading.get_native_id()
        found["nice"] = [os.getpriority(os.PRIO_PROCESS, tid) for tid in (own, found["id"])]

    simulator = threading.Thread(target=simulate)
    simulator.start()
    assert started.wait(10.0)
    actor = threading.Thread(target=act)
    actor.start()
    actor.join(10.0)
    done.set()
    simulator.join(10.0)
    return found["nice"]


def test_acting_gives_way_to_a_learner_that_it_waits_for():
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness_after({"slot": 1.0, "get": 2.0}) == [usual, usual]
    assert niceness_after({"slot": 2.0, "get": 1.0}) == [max(usual, 10)] * 2


def test_threads_are_known_while_they_live():
    go = threading.Event()
    before = native_threads()
    thread = threading.Thread(target=go.wait, args=(10.0,))
    thread.start()
    new = native_threads() - before
    assert thread.native_id in new
    go.set()
    thread.join()
    lower_priority(new)  # one that has ended is passed over


def test_a_cache_has_a_size_or_is_unknown():
    assert l2_cache_bytes() == 0 or 2**16 <= l2_cache_bytes() <= 2**30
