"""A peer in a process of its own, started by the tests of mailboxes."""

import json
import mmap
import os
import sys
import time

import torch

from gossamer.links.mailboxes import Mailbox, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.roles.mixer import Mixer
from gossamer.topology.gossip import Gossip


def write(descriptor, learners, size, seconds):
    """Post as fast as possible, as rank 1; every number of a message is its update."""
    nbytes = mmap_size(descriptor)
    sizes = (size, size) if nbytes > Mailboxes.nbytes(learners, (size, 0)) else (size, 0)
    boxes = Mailboxes(mmap.mmap(descriptor, nbytes), learners, sizes)
    box = Mailbox(boxes, 1, StopSignal(), patience_seconds=10.0)
    end, update = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with box.boxes.posting(box.rank, update) as slot:
            for x in boxes.messages[1][slot]:
                x.fill_(update)
        update += 1


def ring(descriptor, learners, rank, rounds, pause):
    """Mix in lock-step and print what came of every round."""
    sizes = (4, 1)
    boxes = Mailboxes(mmap.mmap(descriptor, mmap_size(descriptor)), learners, sizes)
    tensors = [torch.full((4,), float(rank)), torch.full((1,), float(rank), dtype=torch.float64)]
    box = Mailbox(boxes, rank, StopSignal(), patience_seconds=60.0)
    mixer = Mixer(Gossip(max_staleness=0), box, tensors, seed=0)
    seen = []
    for update in range(rounds):
        time.sleep(pause)
        mixer.post(update)
        mixer.mix(update)
        assert (tensors[0] == tensors[0][0]).all()
        seen.append(tensors[1].item())
    boxes.mark_left(rank)
    print(json.dumps(seen))


def mmap_size(descriptor):
    return os.fstat(descriptor).st_size


if __name__ == "__main__":
    torch.set_num_threads(1)
    path, what, *numbers = sys.argv[1:]
    values = [float(x) if "." in x else int(x) for x in numbers]
    {"write": write, "ring": ring}[what](os.open(path, os.O_RDWR), *values)
