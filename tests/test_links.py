"""The links among threads: order, back-pressure, time limits, stopping, exact versions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gossamer.errors import RunFailed
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.links.threads import Gate, Roles, ThreadBoard, ThreadQueue
from gossamer.spec import ActionSpec, EnvSpec, one_leaf
from gossamer.types import empty_trajectory

SPEC = EnvSpec("Fake-v0", one_leaf("vector", (2,)), ActionSpec("categorical", (2,)), "fake", 10)


def make_queue(count, *, patience_seconds=20.0):
    stop = StopSignal()
    slots = [
        empty_trajectory(SPEC, unroll_length=1, num_columns=1, core_units=0) for _ in range(count)
    ]
    return ThreadQueue(slots, stop, Roles(patience_seconds)), stop


def make_board(*, patience_seconds=20.0):
    stop = StopSignal()
    like = [torch.zeros(3), torch.zeros((), dtype=torch.float64)]
    return ThreadBoard(like, stop, Roles(patience_seconds)), stop, like


def filled(version):
    return [torch.full((3,), float(version)), torch.tensor(version / 4, dtype=torch.float64)]


def test_trajectories_arrive_in_order_and_none_is_lost():
    queue, _ = make_queue(2)
    count = 200

    def act():
        for i in range(count):
            slot = queue.slot()
            slot.version.fill_(i)
            queue.put(slot)

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        for i in range(count):
            got = queue.get()
            assert got.version.item() == i
            queue.release(got)
        acting.result()
    assert queue.wait_full(0) == []


def test_slots_travel_by_reference_and_are_not_shared():
    queue, _ = make_queue(2)
    one, two = queue.slot(), queue.slot()
    assert one is not two
    queue.put(two)
    queue.put(one)
    assert queue.get() is two
    assert queue.get() is one


def test_a_full_queue_holds_the_actor_back():
    queue, _ = make_queue(2)
    third = threading.Event()

    def act():
        for _ in range(2):
            queue.put(queue.slot())
        queue.slot()
        third.set()

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        queue.wait_full(2)
        got = queue.get()
        assert not third.wait(0.05), "a slot that is being learnt from is not free"
        queue.release(got)
        acting.result(timeout=20)
    assert queue.waited_seconds["slot"] > 0.04


def test_looking_leaves_trajectories_queued():
    queue, _ = make_queue(2)
    put = [queue.slot(), queue.slot()]
    for slot in put:
        queue.put(slot)
    seen = queue.wait_full(2)
    assert [a is b for a, b in zip(seen, put, strict=True)] == [True, True]
    assert queue.get() is put[0]


@pytest.mark.parametrize(("name", "told"), [("slot", "the learner has"), ("get", "the actor has")])
def test_waiting_for_ever_ends_the_run(name, told):
    queue, _ = make_queue(0, patience_seconds=0.05)
    with pytest.raises(RunFailed, match=told):
        getattr(queue, name)()
    with pytest.raises(RunFailed, match="a trajectory was waited for; the run is given up"):
        queue.wait_full(1)


def test_stop_wakes_every_waiting_call():
    queue, stop = make_queue(0)
    board, board_stop, like = make_board()
    calls = [
        queue.slot,
        queue.get,
        lambda: queue.wait_full(1),
        lambda: board.read(0, like, exact=False),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        waiting = [pool.submit(call) for call in calls]
        assert not any(x.done() for x in waiting)
        stop.stop()
        board_stop.stop()
        for x in waiting:
            assert isinstance(x.exception(timeout=5), Stopped)


def test_what_is_there_is_given_even_after_a_stop():
    queue, stop = make_queue(1)
    stop.stop()
    queue.put(queue.slot())
    queue.release(queue.get())


def test_stop_signal_keeps_the_first_error():
    stop = StopSignal()
    assert not stop.stopped
    assert not stop.wait(0.0)
    stop.stop()
    assert stop.stopped
    assert stop.error is None
    first = ValueError("first")
    stop.stop(first)
    stop.stop(KeyError("second"))
    assert stop.error is first
    assert stop.wait(10.0)


def test_the_board_gives_the_newest_or_exactly_what_was_asked():
    board, _, _ = make_board()
    assert board.newest == -1
    for version in range(4):
        board.publish(filled(version), version)
    assert board.newest == 3
    for asked, exact, expected in [(0, False, 3), (3, False, 3), (3, True, 3), (2, True, 2)]:
        into = [torch.zeros(3), torch.zeros((), dtype=torch.float64)]
        assert board.read(asked, into, exact=exact) == expected
        assert [x.tolist() for x in into] == [x.tolist() for x in filled(expected)]
    with pytest.raises(AssertionError):
        board.read(1, into, exact=True)


def test_the_board_copies_both_ways():
    board, _, _ = make_board()
    params = filled(0)
    board.publish(params, 0)
    params[0].fill_(9.0)
    into = filled(5)
    board.read(0, into, exact=True)
    into[0].fill_(7.0)
    again = filled(5)
    board.read(0, again, exact=True)
    assert again[0].tolist() == [0.0] * 3


def test_a_reader_waits_for_its_version_and_reads_it_whole():
    board, _, _ = make_board()
    count = 150
    learnt = threading.Semaphore(1)  # lag 1: the writer is at most one version ahead

    def learn():
        for version in range(count):
            assert learnt.acquire(timeout=20)
            board.publish(filled(version), version)

    with ThreadPoolExecutor(1) as pool:
        learning = pool.submit(learn)
        for version in range(count):
            into = [torch.zeros(3), torch.zeros((), dtype=torch.float64)]
            assert board.read(version, into, exact=True) == version
            assert [x.tolist() for x in into] == [x.tolist() for x in filled(version)]
            learnt.release()
        learning.result()


def test_a_board_that_stays_silent_ends_the_run():
    board, _, like = make_board(patience_seconds=0.05)
    board.publish(filled(0), 0)
    with pytest.raises(RunFailed, match="version 1 of the parameters"):
        board.read(1, like, exact=False)


def make_gate(*, patience_seconds=20.0):
    stop = StopSignal()
    return Gate(stop, Roles(patience_seconds)), stop


def test_who_holds_a_gate_keeps_the_actor_between_two_trajectories():
    gate, _ = make_gate()
    acting, held, log = threading.Event(), threading.Event(), []

    def act():
        for i in range(3):
            with gate.passing():
                log.append(f"begins {i}")
                acting.set()
                if i == 0:
                    assert held.wait(20.0)
                log.append(f"ends {i}")

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(act)
        assert acting.wait(20.0)
        held.set()
        with gate.held():
            assert log[-1].startswith("ends")
            acting.clear()
            assert not acting.wait(0.1)
        done.result()
    assert log == [f"{what} {i}" for i in range(3) for what in ("begins", "ends")]


def test_an_actor_that_hangs_is_not_waited_for_for_ever():
    gate, _ = make_gate(patience_seconds=0.3)
    silent = pytest.raises(RunFailed, match="the actor has shown no sign of life")
    with gate.passing(), silent, gate.held():
        pass
    patient, stop = make_gate(patience_seconds=60.0)
    with patient.passing():
        stop.stop()
        with pytest.raises(Stopped), patient.held():
            pass
    with gate.passing():  # nobody holds it any more
        pass
