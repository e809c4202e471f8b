"""Requests wait until a running run hears them."""

from __future__ import annotations

from pathlib import Path

from gossamer.record.requests import Requests, ask


def test_what_is_asked_waits_until_it_is_heard_however_often_is_looked(tmp_path: Path) -> None:
    """A run looks four times a second, and may hear only after its batch."""
    requests = Requests(tmp_path, lambda: None)
    ask(tmp_path, "evaluate")
    requests.look()
    requests.look()
    ask(tmp_path, "checkpoint")
    requests.look()
    assert requests.hear("evaluate")
    assert requests.hear("checkpoint")
    assert not requests.hear("evaluate"), "it has been heard"
