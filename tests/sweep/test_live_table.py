"""What a sweep shows: a table that is redrawn in a terminal, lines elsewhere, and never an exception."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gossamer.sweep import live_table as board_module
from gossamer.sweep.live_table import MOST_ROWS, Board
from gossamer.sweep.pool import PlannedRun


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def runs(folder: Path, count: int) -> list[PlannedRun]:
    found = [PlannedRun(f"00{i}/s1", folder / f"r{i}", folder, 1) for i in range(count)]
    for run in found:
        run.folder.mkdir()
        (run.folder / "metrics.jsonl").write_text('{"env_steps": 12000, "return_mean_100": 3.25}\n')
    return found


def test_lines_come_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    board = Board("a sweep", head=lambda: "1 of 3 trials done", stream=stream)
    board.draw(runs(tmp_path, 2))
    assert stream.getvalue() == "", "it was begun only now"
    monkeypatch.setattr(board_module, "PLAIN_EVERY_SECONDS", 0.0)
    board.say("trial 0 is\x1b[2J done")
    board.draw([PlannedRun("000/s1", tmp_path / "r0", tmp_path, 1)])
    board.close()
    assert stream.getvalue().splitlines() == [
        r"trial 0 is\x1b[2J done",
        "1 of 3 trials done; 000/s1 12,000 steps return 3.25",
    ]


def test_a_terminal_has_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    done = [(f"trial {i}", "return 3") for i in range(MOST_ROWS + 2)]
    board = Board("a sweep", head=lambda: "14 done", rows=lambda: done, stream=stream)
    board.draw(runs(tmp_path, 1))
    board.say("above")
    board.close()
    board.close()
    shown = stream.getvalue()
    for part in ("a sweep", "000/s1", "12,000 steps", "trial 11", "and 2 more", "14 done", "above"):
        assert part in shown
    assert "trial 12" not in shown


def test_a_terminal_that_breaks_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    board = Board("a sweep", head=lambda: 1 / 0, stream=stream)  # type: ignore[arg-type,return-value]
    board.draw([])
    stream.close()
    board.say("nobody reads it")
    board.draw(runs(tmp_path, 1))
    board.close()
