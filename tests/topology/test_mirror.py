"""Mailboxes on several machines: letters that are late, held back, repeated or from the dead change nothing but the time."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
import torch
from groups import boxes_for, mailbox, make_mixers
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_for

from gossamer.errors import RunFailed
from gossamer.links.mirror import Incoming, Outgoing
from gossamer.roles.mixer import Mixer, message_sizes
from gossamer.topology.allreduce import AllReduce
from gossamer.topology.base import FOREVER
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip

ALL = range(-1, FOREVER)
SIZES = (3, 1)


class Machine:
    """A copy of everyone's mailboxes, and what the other machines have been sent."""

    def __init__(self, size, sizes, rank, *, every=True, incarnation=0, heard=None):
        self.boxes = boxes_for(size, sizes)
        self.boxes.by_mail = True
        self.incoming = Incoming(self.boxes)
        self.outgoing = {
            other: Outgoing(
                self.boxes,
                [rank],
                heard or {rank},
                every=every,
                incarnation=incarnation,
                readers=[other],
            )
            for other in range(size)
            if other != rank
        }


def machines(size, sizes=SIZES, **more):
    return [Machine(size, sizes, rank, **more) for rank in range(size)]


def carry(found, *, when=lambda: True):
    """Carry everything that is new from each machine to each other one, where `when` says so."""
    for machine in found:
        for other, outgoing in machine.outgoing.items():
            if when() and (letter := outgoing.letter(life=False)) is not None:
                found[other].incoming.deliver(letter)


def post(boxes, rank, update, value):
    with boxes.posting(rank, update) as slot:
        for x in boxes.messages[rank][slot]:
            x.fill_(value)


def posted(boxes):
    return [found.update for found in boxes.posted(0)]


def read(boxes, rank, updates=ALL):
    into = (torch.zeros(SIZES[0]), torch.zeros(SIZES[1], dtype=torch.float64))
    return boxes.read(rank, updates, into), into[0].tolist()


@pytest.mark.parametrize("topology", [Diffusion(), Gossip(max_staleness=0), AllReduce()])
def test_learners_in_lock_step_mix_what_they_mix_in_shared_memory(topology):
    size, updates = 4, 25
    thetas = np.random.default_rng(3).normal(size=(size, 5))
    expected_mixers, expected = make_mixers(topology, thetas)
    for update in range(updates):
        for mixer in expected_mixers:
            mixer.post(update)
        for mixer in expected_mixers:
            mixer.mix(update)
    tensors = [[torch.tensor(theta, dtype=torch.float32)] for theta in thetas]
    found = machines(size, message_sizes(tensors[0]))
    mixers = [
        Mixer(topology, mailbox(machine.boxes, rank), held, seed=1)
        for rank, (machine, held) in enumerate(zip(found, tensors, strict=True))
    ]

    def learn(mixer):
        for update in range(updates):
            mixer.post(update)
            mixer.mix(update)

    threads = [threading.Thread(target=learn, args=(mixer,)) for mixer in mixers]
    for thread in threads:
        thread.start()
    rng, until = random.Random(5), time.monotonic() + 60.0
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < until, "they wait for each other"
        carry(found, when=lambda: rng.random() < 0.5)
    for (got,), want in zip(tensors, expected, strict=True):
        assert torch.equal(got, want)


def test_one_that_joins_is_waited_for_however_late_its_letters_are():
    """The other goes on alone, by hundreds of updates, until it hears that somebody has joined."""
    held = [[torch.tensor([value])] for value in (0.0, 8.0)]
    found = machines(2, message_sizes(held[0]))
    for machine in found:
        machine.boxes.mark_left(1)
    running, joining = (
        Mixer(Diffusion(), mailbox(machine.boxes, rank, patience_seconds=10.0), tensors, seed=1)
        for rank, (machine, tensors) in enumerate(zip(found, held, strict=True))
    )
    failures = []

    def learn(mixer, update=0, *, late=False):
        try:
            if late:
                update = mixer.begin(0, 0, late=True)
            while mixer.messages < 5:
                mixer.post(update)
                mixer.mix(update)
                update += 1
        except RunFailed as error:
            failures.append(error)

    threads = [threading.Thread(target=learn, args=(running,), daemon=True)]
    threads += [threading.Thread(target=learn, args=(joining,), kwargs={"late": True}, daemon=True)]
    threads[0].start()
    wait_for(lambda: running.rounds > 200, "updates of one alone")
    threads[1].start()
    until = time.monotonic() + 60.0
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < until, "they wait for each other"
        time.sleep(0.05)
        carry(found)
    assert not failures
    assert held[0][0].item() == held[1][0].item() == 4.0


def test_a_letter_that_comes_again_changes_nothing():
    one, two = machines(2)
    post(one.boxes, 0, 0, 1.0)
    letter = one.outgoing[1].letter(life=False)
    two.incoming.deliver(letter)
    two.incoming.deliver(letter)
    assert posted(two.boxes) == [0]
    post(one.boxes, 0, 1, 2.0)
    two.incoming.deliver(one.outgoing[1].letter(life=False))
    two.incoming.deliver(letter)
    assert posted(two.boxes) == [0, 1]
    assert read(two.boxes, 0) == (1, [2.0] * 3)
    assert one.outgoing[1].letter(life=False) is None, "there is nothing new"


def test_who_is_not_in_lock_step_is_sent_the_newest_alone():
    one, two = machines(2, every=False)
    for update in range(3):
        post(one.boxes, 0, update, update)
    letter = one.outgoing[1].letter(life=False)
    assert [x.update for x in letter.posts] == [2]
    two.incoming.deliver(letter)
    assert read(two.boxes, 0) == (2, [2.0] * 3)


def test_messages_go_to_those_who_hear_them_and_headers_to_all():
    one, two = machines(2, heard={7})
    post(one.boxes, 0, 4, 1.0)
    mailbox(one.boxes, 0).report(99)
    carry([one, two])
    assert posted(two.boxes) == []
    assert two.boxes.env_steps(0) == 99


def test_signs_of_life_alone_are_told_when_asked_for():
    one, _ = machines(2)
    one.outgoing[1].letter(life=True)
    one.boxes.headers[0][16] += 1
    assert one.outgoing[1].letter(life=False) is None
    letter = one.outgoing[1].letter(life=True)
    assert letter is not None
    assert letter.posts == ()


def test_the_dead_do_not_come_back_by_a_late_letter():
    one, two = machines(2)
    peers = mailbox(one.boxes, 0)
    peers.begin(0)
    carry([one, two])
    assert not mailbox(two.boxes, 1).has_left(0, 5)
    post(one.boxes, 0, 0, 1.0)
    late = one.outgoing[1].letter(life=False)
    two.incoming.leave([0], 1)
    peers.report(5)
    later = one.outgoing[1].letter(life=False)
    for letter in (late, later):
        two.incoming.deliver(letter)
        assert mailbox(two.boxes, 1).has_left(0, 5)
    assert posted(two.boxes) == []
    again = Machine(2, SIZES, 0, incarnation=1)
    mailbox(again.boxes, 0).begin(3)
    carry([again, two])
    assert not mailbox(two.boxes, 1).has_left(0, 5)


def test_a_letter_that_another_has_overtaken_takes_nothing_back():
    """A connection breaks while its last letter is being taken; what comes over the next one is there first."""
    one, two = machines(2)
    own, seen = mailbox(one.boxes, 0), mailbox(two.boxes, 1)
    own.begin(0)
    post(one.boxes, 0, 0, 1.0)
    own.announce(0, 10)
    late = one.outgoing[1].letter(life=True)
    one.outgoing[1].forget()
    own.set_combined(0)
    own.report(20)
    own.announce(1, 30)
    own.announce(2, 40)
    one.boxes.mark_left(0)
    two.incoming.deliver(one.outgoing[1].letter(life=True))
    before = two.boxes.headers[0].copy()
    two.incoming.deliver(late)
    np.testing.assert_array_equal(two.boxes.headers[0], before)
    assert seen.newest_combined() == 0
    assert seen.has_left(0, 1)
    assert seen.wait_announced(0, 2) == 40
    assert read(two.boxes, 0) == (0, [1.0] * 3)


def test_another_sender_counts_its_letters_anew():
    one, two = machines(2)
    own = mailbox(one.boxes, 0)
    for env_steps in (10, 20, 30):
        own.report(env_steps)
        carry([one, two])
    own.report(40)
    anew = Outgoing(one.boxes, [0], {0}, every=True, incarnation=0)
    two.incoming.deliver(anew.letter(life=False))
    assert two.boxes.env_steps(0) == 40


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["post", "combine", "announce", "carry"]), max_size=40))
def test_what_a_header_tells_of_is_there(acts):
    """A copy says that a learner has left, or has mixed, only where all that it posted before is there too."""
    one, two = machines(2)
    own = mailbox(one.boxes, 0)
    update, told = 0, []
    for act in acts:
        if act == "post":
            update += 1
            post(one.boxes, 0, update, update)
        elif act == "combine":
            own.set_combined(update)
        elif act == "announce":
            own.announce(update, 10 * update)
            told.append(update)
        else:
            carry([one, two])
            assert posted(two.boxes) == posted(one.boxes)
        header = two.boxes.headers[0]
        newest = two.boxes.newest(0, ALL)
        assert int(header[1]) - 1 <= (0 if newest is None else newest)
    carry([one, two])
    for version in told[-2:]:
        if told.count(version) == 1:
            assert mailbox(two.boxes, 1).wait_announced(0, version) == 10 * version


def test_letters_are_never_torn():
    """A writer that is quicker than letters are read: every one holds numbers of one message."""
    sizes = (20_000, 0)
    one, two = machines(2, sizes, every=False)
    stop = threading.Event()

    def write():
        update = 0
        while not stop.is_set():
            update += 1
            post(one.boxes, 0, update, update)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            letter = one.outgoing[1].letter(life=False)
            for found in letter.posts if letter is not None else ():
                assert np.unique(found.singles).tolist() == [found.update]
            if letter is not None:
                two.incoming.deliver(letter)
    finally:
        stop.set()
        thread.join()
