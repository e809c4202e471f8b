"""Learners that share mailboxes in one process, and vectors that are mixed without any learning."""

from __future__ import annotations

import mmap

import torch
from core_fakes import CONSTANT, make_learner, random_batch, small_policy, spec_of

from gossamer.links.mailboxes import Mailbox, Mailboxes
from gossamer.links.stopping import StopSignal
from gossamer.roles.mixer import Mixer, message_sizes


def boxes_for(num_learners, sizes):
    return Mailboxes(mmap.mmap(-1, Mailboxes.nbytes(num_learners, sizes)), num_learners, sizes)


def mailbox(boxes, rank, *, stop=None, patience_seconds=5.0):
    return Mailbox(boxes, rank, stop or StopSignal(), patience_seconds=patience_seconds)


def make_group(
    topology,
    size,
    algorithm,
    *,
    spec=None,
    batches=3,
    t=5,
    b=4,
    seed=1,
    optimizer=CONSTANT,
    joins=True,
    graphs=None,
    **settings,
):
    """Learners with batches of their own and the same initial weights; one algorithm, or each its own."""
    algorithms = algorithm if isinstance(algorithm, list) else [algorithm] * size
    learners = [
        make_learner(
            small_policy(spec, **settings),
            algorithms[rank],
            *[random_batch(spec or spec_of(), t, b, seed=10 * rank + i) for i in range(batches)],
            optimizer=optimizer,
            topology=topology,
            rank=rank,
            num_learners=size,
            graphs=graphs,
        )
        for rank in range(size)
    ]
    if joins:
        join_group(learners, seed=seed)
    return learners


def join_group(learners, *, seed=1):
    boxes = boxes_for(len(learners), message_sizes(learners[0].mixed()))
    for rank, learner in enumerate(learners):
        learner.join(mailbox(boxes, rank), seed=seed)


def lock_step(learners, updates):
    for _ in range(updates):
        for learner in learners:
            learner.adapt()
        for learner in learners:
            learner.combine()


def vector_of(policy):
    return torch.cat([x.detach().flatten().double() for x in policy.shared_tensors()])


def make_mixers(topology, thetas, *, seed=1):
    """One mixer for each row of thetas [L, N], and the tensors they mix."""
    tensors = [[torch.tensor(theta, dtype=torch.float32)] for theta in thetas]
    size, sizes = len(tensors), message_sizes(tensors[0])
    boxes = boxes_for(size, sizes)
    mixers = [
        Mixer(topology, mailbox(boxes, rank), held, seed=seed) for rank, held in enumerate(tensors)
    ]
    return mixers, [held[0] for held in tensors]
