"""How a run ended, as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from gossamer.record.exits import Exit, exit_of, state_of

EXITS = {
    "done: total_env_steps reached": Exit("done", "total_env_steps"),
    "done: stop_at_return reached": Exit("done", "stop_at_return"),
    "done: stop_after_seconds reached": Exit("done", "stop_after_seconds"),
    "stopped by SIGTERM": Exit("stopped", "SIGTERM"),
    "stopped by request": Exit("stopped", "request"),
    "failed: ValueError: stopped: 3 errors": Exit("failed", "ValueError: stopped: 3 errors"),
}


@pytest.mark.parametrize(("sentence", "ended"), EXITS.items())
def test_an_exit_is_read_as_it_was_written(sentence: str, ended: Exit) -> None:
    assert str(ended) == sentence
    told = {"exit_reason": "a sentence that nothing reads", "exit": asdict(ended)}
    assert exit_of(told) == ended
    assert state_of(told, running=False) == ended.kind
    assert state_of(told, running=True) == "running"


@pytest.mark.parametrize(("sentence", "ended"), EXITS.items())
def test_a_summary_from_before_there_were_exits_is_converted(sentence: str, ended: Exit) -> None:
    assert exit_of({"exit_reason": sentence}) == ended


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"exit": None},
        {"exit": None, "exit_reason": "done: total_env_steps reached"},
        {"exit": "done"},
        {"exit": {"kind": "gone", "cause": "wind"}},
        {"exit": {"kind": ["done"], "cause": "total_env_steps"}},
        {"exit": {"kind": "done"}},
        {"exit_reason": ""},
        {"exit_reason": 3},
        {"exit_reason": "somehow"},
    ],
)
def test_whoever_wrote_no_exit_was_killed(told: dict[str, Any]) -> None:
    assert exit_of(told) is None
    assert state_of(told, running=False) == "killed"
