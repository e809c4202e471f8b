"""Connections between machines: whole messages, callers who know the word, and ends that are gone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
import torch
from torch import Tensor

from gossamer.links import wire
from gossamer.links.wire import Listener, Wire
from gossamer.system.messages import Message


class Said(Message, frozen=True):
    text: str
    tensors: tuple[Tensor, ...] = ()


def connected() -> tuple[Wire, Wire]:
    listener = Listener("127.0.0.1")
    found: list[Wire | None] = []
    waiting = threading.Thread(target=lambda: found.append(listener.accept(lambda: True)))
    waiting.start()
    caller = Wire.call(listener.address)
    waiting.join(10)
    (called,) = found
    assert called is not None
    return caller, called


def test_messages_arrive_whole_with_their_tensors() -> None:
    one, other = connected()
    told = torch.arange(1_280_000, dtype=torch.uint8), torch.tensor([0.5, 1.5], dtype=torch.float64)
    sends = threading.Thread(target=lambda: one.send(Said("a", told)))
    sends.start()
    found = other.receive(Said)
    sends.join()
    assert found.text == "a"
    assert all(map(torch.equal, found.tensors, told))
    one.send(Said("b"))
    assert other.receive(Said).text == "b"
    one.close()
    with pytest.raises(OSError, match="closed"):
        other.receive(Said)
    other.close()


STRANGERS = (b"x" * 32, "\u00e9".encode() * 16, b"\xff" * 32, b"\0" * 40, b"[" * 100_000)
"""First words of those who do not know the token, and try to break the one that listens."""


def hung_up(end: socket.socket, said: bytes) -> bool:
    """Whether the other end closes a connection after some words, with or without having read them all."""
    try:
        end.sendall(said)
        return end.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


def test_who_does_not_know_the_token_is_not_let_in() -> None:
    listener = Listener("127.0.0.1")
    wanted, found = [True], list[Wire | None]()
    waiting = threading.Thread(target=lambda: found.append(listener.accept(lambda: wanted[0])))
    waiting.start()
    token = listener.address.token.encode()
    for said in (*STRANGERS, token[:-1] + b"x", b"x" + token):
        with socket.create_connection(listener.address[:2], timeout=10) as stranger:
            assert hung_up(stranger, said)
    with socket.create_connection(listener.address[:2], timeout=10) as stranger:
        stranger.sendall(token[:-1])
        stranger.shutdown(socket.SHUT_WR)  # a part of it, and no more
        assert stranger.recv(1) == b""
    assert found == []
    known = Wire.call(listener.address)
    waiting.join(10)
    assert len(found) == 1
    assert found[0] is not None
    for end in (known, found[0]):
        end.close()


def test_a_caller_who_speaks_slowly_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HELLO_SECONDS", 0.2)
    listener = Listener("127.0.0.1")
    found: list[Wire | None] = []
    waiting = threading.Thread(target=lambda: found.append(listener.accept(lambda: True)))
    done = threading.Event()

    def drip(stranger: socket.socket) -> None:
        try:
            while not done.wait(0.05):
                stranger.sendall(b" ")
        except OSError:
            pass  # it was hung up on

    with socket.create_connection(listener.address[:2], timeout=10) as stranger:
        drips = threading.Thread(target=drip, args=(stranger,))
        drips.start()
        waiting.start()
        known = Wire.call(listener.address)
        waiting.join(5)
        done.set()
        drips.join()
    assert len(found) == 1, "it still listens to the slow one"
    assert found[0] is not None
    # Only the first message has to be there in that time.
    later = threading.Timer(0.3, lambda: known.send(Said("late")))
    later.start()
    assert found[0].receive(Said).text == "late"
    later.join()
    for end in (known, found[0]):
        end.close()


def test_callers_who_say_nothing_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HELLO_SECONDS", 300.0)
    monkeypatch.setattr(wire, "MAX_HELLOS", 5)
    listener = Listener("127.0.0.1")
    found: list[Wire | None] = []
    waiting = threading.Thread(target=lambda: found.append(listener.accept(lambda: True)))
    waiting.start()
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(listener.address[:2], timeout=10))
            for _ in range(8)
        ]
        assert silent[0].recv(1) == b"", "of too many the first is hung up on"
        known = Wire.call(listener.address)
        waiting.join(10)
        assert len(found) == 1
        assert found[0] is not None
        assert silent[-1].recv(1) == b"", "nobody is kept when none is wanted any more"
    for end in (known, found[0]):
        end.close()


def test_a_call_that_cannot_be_taken_does_not_end_the_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [ConnectionAbortedError("it has hung up"), OSError(24, "Too many open files")]
    accept = socket.socket.accept

    def fails_at_first(end: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(end)

    monkeypatch.setattr(socket.socket, "accept", fails_at_first)
    monkeypatch.setattr(wire, "LOOK_SECONDS", 0.01)
    one, other = connected()
    assert errors == []
    for end in (one, other):
        end.close()


def test_waiting_for_a_call_ends_when_none_is_wanted() -> None:
    assert Listener("127.0.0.1").accept(lambda: False) is None


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_small_messages_that_do_not_arrive_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before they fill the memory that the system keeps for what is on its way."""
    monkeypatch.setattr(wire, "SILENT_SECONDS", 0.5)
    with socket.socket() as listener, socket.socket() as caller:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        caller.connect(listener.getsockname())
        deaf, _ = listener.accept()
        one = Wire(caller)
        with deaf:
            one.send(Said("a", (torch.zeros(100_000, dtype=torch.uint8),)))

            def send_some() -> None:  # 5 KB
                for _ in range(100):
                    one.send(Said("b"))
                    time.sleep(0.1)

            with pytest.raises(OSError, match="timed out"):
                send_some()


def test_a_message_that_is_announced_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_HEAD_BYTES", 1000)
    one, other = connected()
    one.send(Said("x" * 2000))
    with pytest.raises(OSError, match=r"a message of \d+ bytes is announced"):
        other.receive(Said)
    for end in (one, other):
        end.close()
