"""Orders reach everyone at one and the same version; memory travels over a channel."""

from __future__ import annotations

import mmap
import os
import random
import socket
import threading
import time

import pytest
import torch

from gossamer.run.placements.channel import Channel, pack, unpack
from gossamer.run.placements.orders import SharedOrders


@pytest.mark.parametrize("together", [True, False])
def test_everyone_carries_an_order_out_once(together):
    size, orders_given = 4, 8
    memory = mmap.mmap(-1, SharedOrders.nbytes(size))
    lock, versions = threading.Lock(), [0] * size
    carried_out = [[] for _ in range(size)]

    def work(process):
        orders, draw, version = SharedOrders(memory, size), random.Random(process), 0
        while True:
            # in lock-step nobody is more than a version ahead
            while together and version > min(versions):
                time.sleep(1e-5)
            time.sleep(draw.random() * 3e-4)
            version += 1
            with lock:
                versions[process] = version
            order = orders.reach(process, version)
            if order is not None:
                carried_out[process].append((order[0], version))
                if order[1]:
                    with lock:
                        versions[process] = 10**9  # the others are not held up
                    return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(size)]
    for thread in threads:
        thread.start()
    supervisor = SharedOrders(memory, size)
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
    ours, theirs = (Channel(end) for end in socket.socketpair())
    tensors = {
        "a": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "b": torch.arange(5),
        "c": torch.tensor(3.5, dtype=torch.float64),
        "none": torch.zeros(0, 4),
        "d": torch.tensor([True, False]),
    }
    for k in range(3):
        sent = {name: x + k if x.dtype.is_floating_point else x for name, x in tensors.items()}
        descriptor = pack(sent, {"state": [k]})
        sender = threading.Thread(
            target=theirs.send, args=({"k": k, "long": "x" * 300_000}, descriptor)
        )
        sender.start()
        got = []
        while not got:
            got = ours.receive()
        sender.join()
        os.close(descriptor)
        (message,) = got
        assert (message["k"], len(message["long"])) == (k, 300_000)
        back, state = unpack(ours.take_descriptor())
        assert state == {"state": [k]}
        assert back.keys() == tensors.keys()
        for name, x in tensors.items():
            assert torch.equal(back[name], x + k if x.dtype.is_floating_point else x)
            assert back[name].stride() == x.stride() or not x.numel()
    theirs.close()
    assert ours.receive() == []
    assert ours.closed
    ours.close()


def test_nothing_but_tensors_is_made_of_a_packed_block():
    descriptor = pack({"a": torch.zeros(3)}, {})
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    begin = memory.find(b"float32")
    memory[begin : begin + 7] = b"save   "
    with pytest.raises((AssertionError, AttributeError)):
        unpack(descriptor)
