"""Mailboxes under real processes: no torn reads, nothing stuck when a writer or a peer is killed."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from groups import boxes_for, mailbox, make_mixers
from programs import Program

from gossamer.errors import RunFailed
from gossamer.links.mailboxes import COMBINED, LEFT, SEQUENCE, Mailbox, Mailboxes, make_memory
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.topology.base import FOREVER
from gossamer.topology.gossip import Gossip

PEER = Path(__file__).parents[1] / "support" / "peer_process.py"
ALL = range(-1, FOREVER)


def start(folder, descriptor, what, *arguments):
    """Start a peer; return it and the file of what it says."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        said = Path(file.name)
    words = [f"/proc/{os.getpid()}/fd/{descriptor}", what, *map(str, arguments)]
    return Program(words, folder, dict(os.environ), said, said, PEER), said


def post(box, update, value):
    with box.boxes.posting(box.rank, update) as slot:
        for x in box.boxes.messages[box.rank][slot]:
            x.fill_(value)


def test_the_last_two_messages_are_kept():
    boxes = boxes_for(2, (3, 2))
    one = mailbox(boxes, 1)
    into = (torch.zeros(3), torch.zeros(2, dtype=torch.float64))
    assert boxes.read(1, ALL, into) is None
    for update in (3, 4, 9):
        post(one, update, update)
    assert boxes.newest(1, ALL) == 9
    assert boxes.read(1, range(5), into) == 4
    assert into[0].tolist() == [4.0] * 3
    assert into[1].tolist() == [4.0] * 2
    assert boxes.read(1, range(4), into) is None, "overwritten"
    assert boxes.read(0, ALL, into) is None, "another's mailbox"


def test_a_message_half_written_is_none():
    boxes = boxes_for(1, (3, 0))
    box = mailbox(boxes, 0)
    into = (torch.zeros(3), torch.zeros(0, dtype=torch.float64))
    post(box, 0, 1.0)
    with pytest.raises(KeyError), box.boxes.posting(box.rank, 1):
        raise KeyError  # as if killed
    assert boxes.newest(0, ALL) == 0
    post(box, 1, 2.0)  # whoever takes its place writes over it
    assert boxes.read(0, ALL, into) == 1
    assert into[0].tolist() == [2.0] * 3


def test_no_read_is_torn(tmp_path):
    size = 200_000
    descriptor, memory = make_memory(Mailboxes.nbytes(2, (size, size)))
    boxes = Mailboxes(memory, 2, (size, size))
    writer, _ = start(tmp_path, descriptor, "write", 2, size, 3.0)
    into = (torch.zeros(size), torch.zeros(size, dtype=torch.float64))
    deadline, seen = time.monotonic() + 60.0, []
    while writer.poll() is None and time.monotonic() < deadline:
        update = boxes.read(1, ALL, into)
        if update is None:
            continue
        assert (into[0] == update).all()
        assert (into[1] == update).all()
        seen.append(update)
    assert writer.wait(10) == 0
    os.close(descriptor)
    assert seen == sorted(seen)
    assert len(set(seen)) > 20


def test_a_writer_killed_at_any_moment_leaves_whole_messages(tmp_path):
    size = 300_000
    into = (torch.zeros(size), torch.zeros(0, dtype=torch.float64))
    odd = 0
    for k in range(6):
        descriptor, memory = make_memory(Mailboxes.nbytes(2, (size, 0)))
        boxes = Mailboxes(memory, 2, (size, 0))
        writer, _ = start(tmp_path, descriptor, "write", 2, size, 60.0)
        deadline = time.monotonic() + 30.0
        while boxes.newest(1, ALL) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.003 * k)
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        odd += any(header[SEQUENCE] % 2 for header in boxes.slot_headers[1])
        update = boxes.read(1, ALL, into)
        assert update is not None
        assert (into[0] == update).all()
        post(mailbox(boxes, 1), update + 7, 5.0)
        assert boxes.read(1, ALL, into) == update + 7
        assert (into[0] == 5.0).all()
        os.close(descriptor)
    assert odd, "none was killed while writing: the test shows nothing"


def test_a_directed_ring_of_eight_processes_one_of_them_slow(tmp_path):
    size, rounds = 8, 30
    sizes = (4, 1)
    descriptor, _ = make_memory(Mailboxes.nbytes(size, sizes))
    peers = [
        start(tmp_path, descriptor, "ring", size, rank, rounds, 0.02 if rank == 3 else 0.002)
        for rank in range(size)
    ]
    assert [peer.wait(60.0) for peer, _ in peers] == [0] * size
    os.close(descriptor)
    seen = np.array([json.loads(said.read_text()) for _, said in peers])
    matrix = 0.5 * (np.eye(size) + np.roll(np.eye(size), -1, axis=1))
    theta = np.arange(size, dtype=np.float64)
    for update in range(rounds):
        theta = matrix @ theta
        np.testing.assert_allclose(seen[:, update], theta, atol=1e-5)
    assert np.ptp(theta) < 1.0


def test_waits_end_by_message_leaving_stop_or_time():
    boxes = boxes_for(2, (1, 0))
    stop = StopSignal()
    stopped = StopSignal()
    zero, one = mailbox(boxes, 0, stop=stop), mailbox(boxes, 1, stop=stopped)

    def later(act):
        threading.Timer(0.05, act).start()

    later(lambda: post(one, 0, 1.0))
    assert zero.wait_posted(1, range(1)) == 0
    later(lambda: one.set_combined(4))
    zero.wait_combined(1, 4)
    later(lambda: boxes.mark_left(1))
    assert zero.wait_posted(1, range(1, 2)) is None
    zero.wait_combined(1, 99)
    assert zero.waited_seconds > 0.1
    later(stopped.stop)
    with pytest.raises(Stopped):
        one.wait_posted(0, range(1))
    late = mailbox(boxes, 1, patience_seconds=0.1)
    with pytest.raises(
        RunFailed,
        match=r"learner 0 has shown no sign of life for 0 s while the message of update 0 was",
    ):
        late.wait_posted(0, range(1))


def test_counts_are_summed_over_everyone():
    boxes = boxes_for(3, (0, 0))
    for rank in range(3):
        mailbox(boxes, rank).report(10 * rank)
    assert mailbox(boxes, 1).total_env_steps() == 30


class Watched:
    """A header whose words tell when they are read and written."""

    def __init__(self, words, on_read=lambda word: None):
        self.words, self.on_read = words, on_read

    def __getitem__(self, word):
        self.on_read(word)
        return self.words[word]

    def __setitem__(self, word, value):
        self.words[word] = value


class LateSight(Mailboxes):
    """What a processor that reorders may show: no message, until a fence comes after what was read before."""

    def __init__(self, *args):
        super().__init__(*args)
        self.in_sight = self.may_fence = False

    def fence(self):
        self.in_sight = self.in_sight or self.may_fence

    def on_read(self, word):
        self.may_fence = self.may_fence or word == LEFT

    def newest(self, rank, updates):
        return super().newest(rank, updates) if self.in_sight else None


def test_what_was_posted_before_leaving_is_seen_by_whoever_sees_the_leaving(monkeypatch):
    sizes = (1, 0)
    boxes = LateSight(mmap.mmap(-1, Mailboxes.nbytes(2, sizes)), 2, sizes)
    zero, one = mailbox(boxes, 0), mailbox(boxes, 1)
    post(one, 0, 1.0)
    boxes.mark_left(1)
    boxes.headers[1] = Watched(boxes.headers[1], boxes.on_read)
    monkeypatch.setattr("gossamer.links.mailboxes.fence", boxes.fence)
    assert zero.wait_posted(1, range(1)) == 0


def test_whoever_sees_the_leaving_sees_what_was_posted_before(monkeypatch):
    """The other side of it: a message is there before its writer is gone."""
    boxes = boxes_for(1, (1, 0))
    post(mailbox(boxes, 0), 0, 1.0)
    seen = []
    monkeypatch.setattr(
        "gossamer.links.mailboxes.fence", lambda: seen.append(int(boxes.headers[0][LEFT]))
    )
    boxes.mark_left(0)
    assert seen == [0], "a fence comes before the mark"
    assert boxes.headers[0][LEFT] == 1


def test_what_is_read_in_place_has_been_read_before_it_may_be_overwritten(monkeypatch):
    mixers, thetas = make_mixers(Gossip(max_staleness=0), [[1.0], [3.0]])
    for mixer in mixers:
        mixer.post(0)
    seen = []
    boxes = mixers[0].peers.boxes
    monkeypatch.setattr(
        "gossamer.links.mailboxes.fence",
        lambda: seen.append((thetas[0].item(), int(boxes.headers[0][COMBINED]))),
    )
    mixers[0].mix(0)
    assert boxes.headers[0][COMBINED] == 1
    assert (2.0, 0) in seen, "a fence comes after the mixing and before it is told"


def test_whoever_joins_takes_part_from_an_update_that_nobody_has_mixed():
    """A group that is quick goes on meanwhile; one that has come too late tries again, further ahead."""
    boxes = boxes_for(2, (1, 0))
    group, looks = mailbox(boxes, 1), []
    group.set_combined(99)

    def group_goes_on():
        looks.append(group_at())
        assert len(looks) < 50, "it never gets ahead"
        group.set_combined(looks[-1] + 5)

    def group_at():
        return int(boxes.headers[1][COMBINED]) - 1

    joining = Mailbox(boxes, 0, StopSignal(), patience_seconds=5.0, on_write=group_goes_on)
    update = joining.join_running_group([1])
    assert update > group_at() > 99 + 10, "it was not ahead at once"
    assert group.has_left(0, update - 1)
    assert not group.has_left(0, update)


def test_memory_is_a_file_where_the_kernel_has_none_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented"))
    monkeypatch.setattr(os, "memfd_create", missing, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptor, memory = make_memory(5000)
    assert (os.fstat(descriptor).st_size, memory[:]) == (5000, bytes(5000))
    memory.close()
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == []
