"""What a sweep shows: a table that is redrawn in a terminal, lines elsewhere, and never an exception."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gossamer.sweep import live_table as board_module
from gossamer.sweep.live_table import MOST_ROWS, Board
from gossamer.sweep.pool import PlannedRun


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def runs(folder: Path, count: int) -> list[PlannedRun]:
    found = [PlannedRun(f"00{i}/s1", folder / f"r{i}", 1) for i in range(count)]
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
    board.draw([PlannedRun("000/s1", tmp_path / "r0", 1)])
    board.close()
    assert stream.getvalue().splitlines() == [
        r"trial 0 is\x1b[2J done",
        "1 of 3 trials done; 000/s1 12,000 steps return 3.25",
    ]


def trains(
    folder: Path,
    name: str,
    *,
    steps: int,
    seconds: float,
    speed: float | None,
    target: float | None = None,
    limit: float = 0.0,
) -> PlannedRun:
    """Return a run that is so far; it ends after 10,000 steps."""
    run = PlannedRun(name, folder / name, 1)
    run.folder.mkdir(exist_ok=True)
    row = {"env_steps": steps, "time_s": seconds, "return_mean_100": 3.25}
    if speed is not None:
        row["steps_per_second"] = speed
    (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    settings = {"total_env_steps": 10_000, "stop_at_return": target, "stop_after_seconds": limit}
    (run.folder / "config.json").write_text(json.dumps(settings))
    return run


@pytest.mark.parametrize(
    ("wanting", "told"),
    [
        ({}, "one 4,000/10,000 (40%) steps left 1m00s return 3.25"),
        ({"target": 5.0}, "one 4,000/10,000 (40%) steps left at most 1m00s return 3.25"),
        ({"limit": 50.0}, "one 4,000/10,000 (40%) steps left 10s return 3.25"),
        ({"limit": 5.0}, "one 4,000/10,000 (40%) steps left 0s return 3.25"),
        ({"speed": None}, "one 4,000/10,000 (40%) steps return 3.25"),
        ({"speed": 1e-308}, "one 4,000/10,000 (40%) steps return 3.25"),
    ],
)
def test_a_line_tells_how_far_a_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanting: dict[str, Any], told: str
) -> None:
    monkeypatch.setattr(board_module, "PLAIN_EVERY_SECONDS", 0.0)
    stream = io.StringIO()
    board = Board("seeds", head=lambda: "0 of 1", stream=stream)
    board.draw([trains(tmp_path, "one", **{"steps": 4000, "seconds": 40, "speed": 100, **wanting})])
    assert stream.getvalue().split("; ")[1] == f"{told}\n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_time_that_all_runs_take_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(board_module, "PLAIN_EVERY_SECONDS", 0.0)
    stream = io.StringIO()
    board = Board("seeds", head=lambda: "done", stream=stream)

    def heads() -> list[str]:
        return [line.split("; ")[0] for line in stream.getvalue().splitlines()]

    one = trains(tmp_path, "one", steps=4000, seconds=40, speed=100)
    board.draw([one], to_begin=3, jobs=jobs)
    # 60 s are left of the first, and three more take 100 s each.
    assert heads() == ["done, about 6m00s left" if jobs == 1 else "done, about 3m00s left"]
    board.draw([one, trains(tmp_path, "two", steps=0, seconds=0, speed=None)], to_begin=2)
    assert heads()[1:] == ["done"], "of the second nothing is known"
    board.draw([trains(tmp_path, "two", steps=5000, seconds=150, speed=100)], to_begin=2, jobs=jobs)
    # The first took 100 s, the second takes 200 s, of which 50 are left.
    assert heads()[2:] == ["done, about 5m50s left" if jobs == 1 else "done, about 2m55s left"]
    board.draw([trains(tmp_path, "two", steps=5000, seconds=150, speed=100)], to_begin=0, jobs=8)
    assert heads()[3:] == ["done, about 50s left"], "more places do not shorten the last one"


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
