"""Connections between machines: whole messages, callers who know the word, and ends that are gone."""

from __future__ import annotations

import socket
import threading

import pytest

from gossamer.links.wire import Listener, Wire


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


def test_messages_arrive_whole_with_what_is_behind_them() -> None:
    one, other = connected()
    first, second = bytes(range(256)) * 5_000, b"end"
    sends = threading.Thread(target=lambda: one.send({"kind": "a"}, [first, second]))
    sends.start()
    message = other.receive()
    assert message == {"kind": "a", "nbytes": len(first) + len(second)}
    got = bytearray(message["nbytes"])
    other.read(got)
    sends.join()
    assert bytes(got) == first + second
    one.close()
    with pytest.raises(OSError, match="closed"):
        other.receive()
    other.close()


def test_who_does_not_know_the_token_is_not_let_in() -> None:
    listener = Listener("127.0.0.1")
    wanted, found = [True], list[Wire | None]()
    waiting = threading.Thread(target=lambda: found.append(listener.accept(lambda: wanted[0])))
    waiting.start()
    for said in (b'{"token": "guess"}', b'"guess"', b"[]", b"{", b'{"tok": 1}'):
        with socket.create_connection(listener.address[:2], timeout=10) as stranger:
            stranger.sendall(len(said).to_bytes(4, "little") + said)
            assert stranger.recv(1) == b""  # it is hung up on
    with socket.create_connection(listener.address[:2], timeout=10) as stranger:
        stranger.sendall(b"\xff\xff\xff\xff")  # four gigabytes are announced
        assert stranger.recv(1) == b""
    assert found == []
    known = Wire.call(listener.address)
    waiting.join(10)
    assert len(found) == 1
    assert found[0] is not None
    for end in (known, found[0]):
        end.close()


def test_waiting_for_a_call_ends_when_none_is_wanted() -> None:
    assert Listener("127.0.0.1").accept(lambda: False) is None
