"""Orders reach everyone at one and the same version; memory travels over a channel."""

from __future__ import annotations

import mmap
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from fake_placement import PLAN
from waiting import wait_for

from gossamer.errors import RunFailed
from gossamer.run.checkpoint_contents import LearnerState
from gossamer.run.host_protocol import Notice, Snapshot
from gossamer.run.placements.channel import Channel
from gossamer.run.placements.child_protocol import ActorReady, ActorState
from gossamer.run.placements.orders import SharedOrders
from gossamer.system.messages import pack


@pytest.mark.parametrize("together", [True, False])
def test_everyone_carries_an_order_out_once(together):
    size, orders_given = 4, 8
    memory = mmap.mmap(-1, SharedOrders.nbytes(size))
    lock, versions = threading.Lock(), [0] * size
    carried_out = [[] for _ in range(size)]

    def work(process):
        orders, draw, version = SharedOrders(memory, process), random.Random(process), 0
        while True:
            # in lock-step nobody is more than a version ahead
            while together and version > min(versions):
                time.sleep(1e-5)
            time.sleep(draw.random() * 3e-4)
            version += 1
            with lock:
                versions[process] = version
            order = orders.reach(version)
            if order is not None:
                carried_out[process].append((order[0], version))
                if order[1]:
                    with lock:
                        versions[process] = 10**9  # the others are not held up
                    return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(size)]
    for thread in threads:
        thread.start()
    supervisor = SharedOrders(memory)
    for number in range(1, orders_given + 1):
        assert supervisor.announce(ends=number == orders_given, together=together) == number
        if number == orders_given:
            break
        give_up = time.monotonic() + 60.0
        while not all(len(done) == number for done in carried_out):
            assert time.monotonic() < give_up
            time.sleep(1e-4)
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()
    if together:
        assert all(done == carried_out[0] for done in carried_out)
    assert [number for number, _ in carried_out[0]] == list(range(1, orders_given + 1))


def test_messages_and_memory_cross_a_channel():
    ours, theirs = (Channel(end, ActorState | Notice) for end in socket.socketpair())
    tensors = {
        "a": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "b": torch.arange(5),
        "none": torch.zeros(0, 4),
    }
    for k in range(3):
        sent = {name: x + k for name, x in tensors.items()}

        def send(sent=sent):
            theirs.send(Notice("x" * 300_000))
            theirs.send(ActorState(sent))

        sender = threading.Thread(target=send)
        sender.start()
        got = []
        while len(got) < 2:
            got += ours.receive()
        sender.join()
        notice, state = got
        assert len(notice.text) == 300_000
        assert state.tensors.keys() == sent.keys()
        for name, x in sent.items():
            assert torch.equal(state.tensors[name], x)
    theirs.close()
    assert ours.receive() == []
    assert ours.closed
    ours.close()


def frame(message, **changed):
    """The bytes of a message, with another length of its head or memory."""
    packed = pack(message)
    lengths = {"head": len(packed.head), "nbytes": packed.nbytes, **changed}
    return struct.pack("<QQ", lengths["head"], lengths["nbytes"]) + packed.head


def test_memory_that_came_with_half_a_message_is_given_back():
    ours, theirs = (Channel(end, ActorState) for end in socket.socketpair())
    before = psutil.Process().num_fds()
    whole = frame(ActorState({"a": torch.zeros(3)}))
    with Path(os.devnull).open() as held:
        socket.send_fds(theirs.end, [whole[: len(whole) // 2]], [held.fileno()])
        theirs.close()
        while not ours.closed:
            assert ours.receive() == []
    ours.close()
    assert psutil.Process().num_fds() == before - 2


@pytest.mark.parametrize(
    "sent",
    [
        frame(ActorState({"a": torch.zeros(3)})),  # whose memory the system has left out
        frame(Notice("for somebody else")),
        b"\0" * 16,
        struct.pack("<QQ", 4, 0) + b"null",
    ],
)
def test_what_cannot_be_read_is_told(sent):
    ours, theirs = (Channel(end, ActorState | ActorReady) for end in socket.socketpair())
    theirs.end.sendall(sent)
    with pytest.raises(RunFailed, match="a message of another process cannot be read"):
        ours.receive()
    for end in (ours, theirs):
        end.close()


def test_a_long_head_waits_for_nobody():
    """A checkpoint's state may have hundreds of kilobytes, and its reader may still be importing."""
    ours, theirs = (Channel(end, Snapshot) for end in socket.socketpair())
    counts = {"update": 1, "version": 1, "env_steps": 9, "own_env_steps": 9}
    numbers = {f"learner.replay.{i}": i for i in range(20_000)}
    learner = LearnerState(**counts, numbers=numbers, tensors={"a": torch.arange(3)})
    theirs.end.settimeout(5.0)
    theirs.send(Snapshot(1, {0: learner}, PLAN, exact=True))
    (found,) = ours.receive()
    assert found.learners[0].numbers == numbers
    assert found.learners[0].tensors["a"].tolist() == [0, 1, 2]
    for end in (ours, theirs):
        end.close()


def test_a_message_without_memory_for_it_does_not_pass_for_one_that_nobody_reads(monkeypatch):
    def fails(nbytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("gossamer.run.placements.channel.make_memory", fails)
    ours, theirs = (Channel(end, ActorState) for end in socket.socketpair())
    with pytest.raises(RunFailed, match=r"no memory for a message of \d+ bytes"):
        theirs.send(ActorState({"a": torch.zeros(3)}))
    for end in (ours, theirs):
        end.close()


def test_whoever_sends_to_an_end_that_does_not_read_is_seen_to_send():
    """As a learner to a supervisor that is suspended: it is not stuck."""
    ours, theirs = (Channel(end, Notice) for end in socket.socketpair())
    assert not theirs.is_sending
    count = 50

    def send():
        for _ in range(count):
            theirs.send(Notice("x" * 30_000))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    wait_for(lambda: theirs.is_sending, "the first message")
    sender.join(0.2)
    assert sender.is_alive()
    assert theirs.is_sending
    got = []
    while len(got) < count:
        got += ours.receive()
    sender.join(20.0)
    assert not theirs.is_sending
    ours.close()
    theirs.close()
