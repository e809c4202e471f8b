"""Threads without a set lag: acting gives way only where the learner is the bottleneck."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from gossamer.machine import l2_cache_bytes, lower_priority, native_threads
from gossamer.run.placements.loop_overlapped import balance

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have no priority of their own"
)


def niceness_after(waits):
    """Nice values of a thread that balances, and of others that stand for a simulator's and inference's."""
    found, done = {}, threading.Event()
    started = threading.Barrier(3)

    def wait(role):
        found[role] = threading.get_native_id()
        started.wait(10.0)
        done.wait(10.0)

    def act():
        parts = SimpleNamespace(
            queue=SimpleNamespace(waited_seconds=waits),
            simulators=frozenset({found["simulator"]}),
            actor=SimpleNamespace(thread_ids=[found["inference"]]),
        )
        balance(parts)
        own = threading.get_native_id()
        everyone = (own, found["simulator"], found["inference"])
        found["nice"] = [os.getpriority(os.PRIO_PROCESS, tid) for tid in everyone]

    others = [threading.Thread(target=wait, args=(x,)) for x in ("simulator", "inference")]
    for other in others:
        other.start()
    started.wait(10.0)
    actor = threading.Thread(target=act)
    actor.start()
    actor.join(10.0)
    done.set()
    for other in others:
        other.join(10.0)
    return found["nice"]


def test_acting_gives_way_to_a_learner_that_it_waits_for():
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness_after({"slot": 1.0, "get": 2.0}) == [usual] * 3
    assert niceness_after({"slot": 2.0, "get": 1.0}) == [max(usual, 10)] * 3


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


def test_a_cache_has_a_size_or_is_unknown(tmp_path):
    assert l2_cache_bytes(tmp_path) == 0
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cache"
    for index, (level, size) in enumerate(
        [("1", "48K"), ("1", "32K"), ("2", "2048K"), ("3", "33M")]
    ):
        (folder / f"index{index}").mkdir(parents=True)
        (folder / f"index{index}" / "level").write_text(f"{level}\n")
        (folder / f"index{index}" / "size").write_text(f"{size}\n")
    assert l2_cache_bytes(tmp_path) == 2 << 20
    (folder / "index2" / "size").write_text("many\n")
    assert l2_cache_bytes(tmp_path) == 0
