"""Progress: plain lines in a pipe, a panel in a terminal, and never an exception."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import time
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from gossamer.record import terminal as terminal_module
from gossamer.record.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

ROW = {
    "env_steps": 250_000,
    "steps_per_second": 2_500.0,
    "time_s": 100.0,
    "episodes": 120,
    "return_mean_100": -12.5,
    "evaluation_mean": -9.25,
    "learner/loss": 0.125,
    "learner/entropy_nats": 1.5,
    "lag_versions_mean": 1.0,
    "share/env": 0.31,
    "share/inference": 0.12,
    "share/learn": 0.88,
    "share/wait_learner": 0.07,
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_say_everything_at_most_every_5_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1_000_000, target=18, stream=stream, clock=clock)
    for _ in range(100):
        clock.now += 0.1
        progress.update(ROW)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    for part in (
        "250,000/1,000,000 (25%)",
        "2,500/s",
        "left at most 5m00s",
        "return -12.5 (stops at 18)",
        "evaluation -9.25",
        "loss 0.125",
        "entropy 1.5",
        "lag 1",
        "env 31%",
        "inference 12%",
        "learn 88%",
        "learner waits 7%",
    ):
        assert part in lines[0]
    assert "\x1b" not in stream.getvalue()


def test_messages_come_at_once_and_the_last_state_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(100, stream=stream, clock=clock)
    progress.update({"env_steps": 10})
    progress.message("saved [checkpoint] 3")
    progress.update({"env_steps": 100})
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "steps 10/100 (10%)",
        "saved [checkpoint] 3",
        "steps 100/100 (100%)",
    ]


def test_a_time_limit_shortens_the_time_left() -> None:
    stream = io.StringIO()
    Progress(10**9, stop_after_seconds=160, stream=stream).update(ROW)
    assert "left 1m00s" in stream.getvalue()


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        raise OSError


@pytest.mark.parametrize(
    "row",
    [
        {"env_steps": "many"},
        {"env_steps": None, "steps_per_second": 0},
        {"learner/loss": float("nan")},
        {"share/env": [1]},
        {"return_mean_100": object()},
        {},
    ],
)
@pytest.mark.parametrize("make", [io.StringIO, Broken])
def test_nothing_raises(make: Callable[[], TextIO], row: dict[str, Any]) -> None:
    stream = make()
    progress = Progress(0, stream=stream, clock=Clock())
    progress.update(row)
    progress.message("x")
    stream.close()
    progress.message("x")
    progress.update(row)
    progress.close()


class Terminal:
    """A pseudo terminal whose output can be read back."""

    def __init__(self) -> None:
        self.reader, writer = os.openpty()
        os.set_blocking(self.reader, False)
        self.stream = os.fdopen(writer, "w")
        self.text = ""

    def read(self) -> str:
        try:
            while data := os.read(self.reader, 65_536):
                self.text += data.decode()
        except OSError:  # nothing more for now, or the other end is closed
            pass
        return self.text

    def wait_for(self, text: str) -> None:
        give_up = time.monotonic() + 10
        while text not in self.read():
            assert time.monotonic() < give_up, self.text
            time.sleep(0.01)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38|9[0-7])[;m]")


def show(terminal: Terminal) -> str:
    progress = Progress(1_000_000, title="Pong vtrace", stream=terminal.stream)
    progress.update(ROW)
    terminal.wait_for("2,500/s")
    progress.message("hello [red]you")
    progress.close()
    terminal.stream.close()
    return terminal.read()


def test_a_terminal_gets_a_panel(terminal: Terminal) -> None:
    text = show(terminal)
    assert "Pong vtrace" in text
    assert "hello [red]you" in text
    assert COLOR.search(text)
    assert "\x1b[?25h" in text  # the cursor is given back


def test_before_its_first_row_a_resumed_run_is_where_it_goes_on(terminal: Terminal) -> None:
    progress = Progress(1_000_000, stop_after_seconds=3_600, stream=terminal.stream)
    progress.begin_at(900_000, 3_300.0)
    terminal.wait_for("steps 900,000/1,000,000 (90%) left 5m00s")
    progress.close()
    terminal.stream.close()
    terminal.read()


def test_a_panel_shows_notices_and_plain_lines_leave_them_to_others(terminal: Terminal) -> None:
    progress = Progress(1_000_000, stream=terminal.stream)
    progress.update(ROW)
    assert progress.notice("saving, then stopping")
    terminal.wait_for("saving, then stopping")
    progress.close()
    terminal.stream.close()
    stream = io.StringIO()
    assert not Progress(1_000_000, stream=stream).notice("saving")
    assert stream.getvalue() == ""


def test_no_color_is_obeyed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOR.search(show(terminal))


def test_a_dumb_terminal_gets_plain_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in show(terminal)


def test_a_terminal_that_goes_away(terminal: Terminal) -> None:
    progress = Progress(1_000_000, stream=terminal.stream)
    progress.update(ROW)
    terminal.wait_for("2,500/s")
    os.close(terminal.reader)
    progress.update({**ROW, "env_steps": 1})
    progress.message("x")
    progress.close()
    with contextlib.suppress(OSError):  # what could not be written may still be in it
        terminal.stream.close()


def test_updates_are_cheap(terminal: Terminal) -> None:
    progress = Progress(1_000_000, stream=terminal.stream)
    began = time.thread_time()
    for _ in range(1_000):
        progress.update(ROW)
    cost = (time.thread_time() - began) / 1_000
    terminal.read()
    progress.close()
    terminal.stream.close()
    assert cost < 0.001


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "evaluation -9.25  loss"),
        ({"evaluation_best": -9.0}, "evaluation -9.25 (best -9)  loss"),
        (
            {"evaluation_best": -9.5, "evaluation_candidate": -9.25},
            "evaluation -9.25 (best -9.5, -9.25 to be confirmed)  loss",
        ),
    ],
)
def test_what_was_confirmed_is_told_from_what_was_not(more: dict[str, float], said: str) -> None:
    stream = io.StringIO()
    Progress(10**6, stream=stream).update({**ROW, **more})
    assert said in stream.getvalue()


def test_a_candidate_is_told_until_it_is_decided() -> None:
    stream = io.StringIO()
    progress = Progress(10**6, stream=stream)
    progress.update({**ROW, "evaluation_best": -9.5, "evaluation_candidate": -9.25})
    progress.update({"env_steps": 7})  # tells nothing of evaluations
    progress.close()
    assert stream.getvalue().splitlines()[-1].count("to be confirmed") == 1
    stream.truncate(0)
    progress.update({**ROW, "evaluation_best": -9.25})
    progress.close()
    assert "(best -9.25)" in stream.getvalue()


def test_several_learners_tell_what_mixing_costs_and_whose_evaluation_it_was() -> None:
    stream = io.StringIO()
    row = {
        **ROW,
        "evaluation_learner": 2,
        "evaluation_best": -9.0,
        "topology/disagreement": 0.0123,
        "share/mix": 0.03,
        "share/wait_peers": 0.21,
        "share/wait_turn": 0.5,
        "share/replay": 0.91,
        "share/wait_replay": 0.77,
    }
    Progress(10**6, stream=stream).update(row)
    line = stream.getvalue()
    assert "evaluation -9.25 of learner 2 (best -9)" in line
    assert "lag 1 disagreement 0.012 " in line
    assert (
        "picking 91% waits for it 77% mix 3% waits for learners 21% waits for its turn 50%\n"
        in line
    )


def test_a_stream_of_ones_own_needs_no_descriptor() -> None:
    class Tee:
        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    stream: Any = Tee()
    Progress(100, stream=stream).message("hello")
    assert stream.text == "hello\n"


def test_lines_that_nobody_reads_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `gossamer train ... 2>&1 | less` while nobody scrolls."""
    monkeypatch.setattr(terminal_module, "UNREAD_SECONDS", 0.05)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    with os.fdopen(writer, "w") as stream:
        progress = Progress(1_000_000, stream=stream)
        for i in range(3):
            progress.message(f"line {i}")  # which would wait for ever
        assert os.read(reader, 8192) == b"x" * 4096
        progress.message("line 3")
        assert os.read(reader, 8192) == b"(3 lines that nobody read left out)\nline 3\n"
        progress.message("line 4")
        assert os.read(reader, 8192) == b"line 4\n"
    os.close(reader)
