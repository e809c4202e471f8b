"""Letters between machines: what arrives is what was sent, over connections that end and begin again."""

from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from waiting import wait_for

from gossamer.links.mailboxes import BEATS, Mailboxes
from gossamer.links.mirror import Incoming, Letter, Outgoing, Post
from gossamer.links.wire import Listener, Wire
from gossamer.run.placements.cluster import agent_connections
from gossamer.run.placements.cluster.agent_connections import Correspondent, Letterbox

SIZES = (5, 3)


def boxes(num_learners: int = 2, sizes: tuple[int, int] = SIZES) -> Mailboxes:
    return Mailboxes(mmap.mmap(-1, Mailboxes.nbytes(num_learners, sizes)), num_learners, sizes)


def wires() -> tuple[Wire, Wire]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return Wire(one), Wire(other)


def post(of: Mailboxes, rank: int, update: int) -> None:
    with of.posting(rank, update, notes=(update + 1, update + 2)) as slot:
        for x in of.messages[rank][slot]:
            x.fill_(float(update))


@contextmanager
def corresponds(
    here: Mailboxes, box: Letterbox, *, paced: bool = True, **how: Any
) -> Iterator[Correspondent]:
    """Write to a letterbox what learner 0 posts."""
    mail = Outgoing(here, [0], [0], every=not paced, incarnation=0)
    writes = Correspondent(box.address, mail, paced=paced, **how)
    try:
        yield writes
    finally:
        writes.close()
        box.close()


def wait_until_there(there: Mailboxes, update: int) -> None:
    wait_for(lambda: there.newest(0, range(1 << 62)) == update, "a letter")


def test_a_letter_arrives_as_it_was_sent():
    one, other = wires()
    words = len(boxes().headers[0])
    singles = np.arange(5, dtype=np.float32)
    bare = np.empty(0, np.float32), np.empty(0, np.float64)
    posts = (
        Post(1, 7, (8, 9), singles, np.array([0.1, np.nan, -np.inf])),
        Post(3, 1 << 40, (0, -1), *bare),
    )
    headers = np.stack([np.arange(words), -np.arange(words)])
    sent = Letter(4, posts, (1, 3), headers, (1 << 62) - 1, 12)
    for letter in (sent, Letter(0)):
        one.send(letter)
        found = other.receive(Letter)
        assert found.incarnation == letter.incarnation
        assert (found.sender, found.number) == (letter.sender, letter.number)
        assert found.ranks == letter.ranks
        np.testing.assert_array_equal(found.headers, letter.headers)
        assert len(found.posts) == len(letter.posts)
        for mine, yours in zip(letter.posts, found.posts, strict=True):
            assert mine[:3] == yours[:3]
            np.testing.assert_array_equal(mine.singles, yours.singles)
            np.testing.assert_array_equal(mine.doubles, yours.doubles)
    one.close()
    other.close()


@pytest.mark.parametrize(
    "bad",
    [
        Letter(0, (Post(7, 1, (0, 0), np.zeros(5, np.float32), np.zeros(3)),)),
        Letter(0, (Post(0, 1, (0, 0), np.zeros(50, np.float32), np.zeros(3)),)),
        Letter(0, (Post(0, 1, (0, 0), np.zeros(2, np.float32), np.zeros(3)),)),
        Letter(0, (Post(0, 1, (0, 0), np.zeros(5), np.zeros(3)),)),
        Letter(0, (), (7,), np.zeros((1, len(boxes().headers[0])), np.int64)),
        Letter(0, (), (0,), np.zeros((1, 1), np.int64)),
        Letter(0, (), (0, 1), np.zeros((1, len(boxes().headers[0])), np.int64)),
    ],
)
def test_a_letter_that_fits_no_mailbox_ends_its_connection_and_no_other(bad: Letter):
    there = boxes()
    box = Letterbox("127.0.0.1", Incoming(there).deliver)
    stranger = Wire.call(box.address)
    stranger.send(bad)
    with pytest.raises(OSError, match="closed"):
        stranger.receive(Letter)
    stranger.close()
    here = boxes()
    post(here, 0, 0)
    with corresponds(here, box, paced=False):
        wait_until_there(there, 0)


@pytest.mark.parametrize("paced", [False, True])
def test_what_a_learner_writes_is_there_soon_and_again_after_a_connection_was_lost(paced):
    here, there = boxes(), boxes()
    arrived = Incoming(there)
    lost = threading.Event()

    def deliver(letter: Letter) -> None:
        if lost.is_set():
            lost.clear()
            raise OSError("the network has lost it")
        arrived.deliver(letter)

    with corresponds(here, Letterbox("127.0.0.1", deliver), paced=paced) as writes:
        post(here, 0, 0)
        wait_until_there(there, 0)
        lost.set()  # the next letter is not taken, and its connection closed
        post(here, 0, 1)

        def lives_and_has_written() -> bool:
            here.headers[0][BEATS] += 1  # so that there is something to write
            return there.newest(0, range(1 << 62)) == 1

        wait_for(lives_and_has_written, "a letter")
        into = torch.empty(5), torch.empty(3, dtype=torch.float64)
        assert there.read(0, range(1 << 62), into) == 1
        assert into[0].tolist() == [1.0] * 5
        found = there.find(0, range(1, 2))
        assert found is not None
        assert found.notes == (2, 3)
        assert writes.sent_bytes >= 2 * (4 * 5 + 8 * 3)


def test_whoever_does_not_know_the_token_delivers_nothing():
    delivered: list[Letter] = []
    box = Letterbox("127.0.0.1", delivered.append)
    stranger = Wire.call(box.address._replace(token="guess"))

    def write() -> None:
        for _ in range(200):
            stranger.send(Letter(0, (), (0,), np.zeros((1, 4), np.int64)))
            time.sleep(0.01)

    with pytest.raises(OSError, match=r"[Pp]ipe|reset|closed"):
        write()
    stranger.close()
    assert delivered == []
    box.close()


def test_a_link_that_stalls_is_not_followed_by_a_long_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent_connections, "MAX_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(agent_connections, "MAIL_SHARE", 1e-4)
    here, listener = boxes(1, (8 << 20, 0)), Listener("127.0.0.1")
    mail = Outgoing(here, [0], [0], every=False, incarnation=0)
    post(here, 0, 0)
    writes = Correspondent(listener.address, mail, paced=True)
    wire = listener.accept(lambda: True)
    assert wire is not None
    try:
        # The link stalls, while more is on its way than it holds; the pause of its share alone would take an hour.
        assert not threading.Event().wait(0.3)
        assert wire.receive(Letter).posts
        here.headers[0][BEATS] += 1
        told = Letter(0)
        while not told.ranks or told.headers[0][BEATS] != 1:
            told = wire.receive(Letter)
    finally:
        writes.close()
        wire.close()


def test_the_time_to_connect_is_no_time_that_letters_take(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent_connections, "MAX_PAUSE_SECONDS", 600.0)
    call = Wire.call

    def slowly(address: Any) -> Wire:
        threading.Event().wait(2.0)
        return call(address)

    monkeypatch.setattr(Wire, "call", slowly)
    here, there = boxes(), boxes()
    post(here, 0, 0)
    with corresponds(here, Letterbox("127.0.0.1", Incoming(there).deliver)):
        wait_until_there(there, 0)
        post(here, 0, 1)
        wait_until_there(there, 1)


def test_a_machine_that_cannot_be_reached_is_told_once_and_when_it_can_be_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(agent_connections, "TOLD_SECONDS", 0.2)
    monkeypatch.setattr(agent_connections, "LOST_SECONDS", 0.02)
    call, cut, calls = Wire.call, threading.Event(), list[Any]()
    cut.set()

    def calls_if_not_cut(address: Any) -> Wire:
        calls.append(address)
        if cut.is_set():
            raise TimeoutError("timed out")
        return call(address)

    monkeypatch.setattr(Wire, "call", calls_if_not_cut)
    here, there, said = boxes(), boxes(), list[str]()
    box = Letterbox("127.0.0.1", Incoming(there).deliver)
    with corresponds(here, box, say=said.append):
        wait_for(lambda: said, "a letter")
        before = len(calls)
        wait_for(lambda: len(calls) > before + 20, "a letter")
        (told,) = said
        assert "letters to 127.0.0.1 do not arrive" in told
        assert "(timed out)" in told
        cut.clear()
        post(here, 0, 0)
        wait_for(lambda: len(said) == 2, "a letter")
        assert said[1] == "letters to 127.0.0.1 arrive again"
        wait_until_there(there, 0)
