"""What is kept of long files: as much as there is room for, and nothing that pushes out what is on a chart."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest
from waiting import wait_for

from gossamer.dashboard.columns import AT_ONCE_BYTES, LEARNER, Columns
from gossamer.dashboard.root import Root

WAIT_SECONDS, QUIET_SECONDS = 60.0, 1.0
FILE, NAMES = "metrics.jsonl", ["x", "y"]
LINE = '{"x":1.5,"y":2.5,"pad":"' + "p" * 480 + '"}\n'
ROWS = AT_ONCE_BYTES // len(LINE) + 100
BYTES = 8 * ROWS * (len(NAMES) + 1)
"""Of the columns of one run, that of learners among them."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run in ("a", "b", "c"):
        (tmp_path / run).mkdir()
        (tmp_path / run / FILE).write_text(LINE * ROWS)
    return tmp_path


def exact(columns: Columns, *runs: str) -> list[str]:
    """Return the runs that are read whole, as a chart asks for all of its runs."""
    return [run for run in runs if columns.read(run, FILE, NAMES).exact]


def test_files_of_one_chart_do_not_push_each_other_out(root: Path) -> None:
    told = queue.Queue[str]()
    columns = Columns(Root(root), told.put, max_bytes=2 * BYTES + BYTES // 2)
    runs = ("a", "b", "c")
    assert exact(columns, *runs) == []
    # A page asks for the whole chart again whenever one of its files was read.
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            told.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            break
        exact(columns, *runs)
        assert time.monotonic() < until, "files are read again and again"
    # Nothing is promised of c, for which there is no room.
    for _ in range(3):
        assert exact(columns, *runs) == ["a", "b"]
        with pytest.raises(queue.Empty):
            told.get(timeout=QUIET_SECONDS)
    assert columns.num_bytes <= 2 * BYTES + BYTES // 2
    columns.close()


def test_of_one_file_as_many_columns_are_kept_as_there_is_room_for(tmp_path: Path) -> None:
    names = [f"m{i}" for i in range(6)]
    values = ",".join(f'"{name}":1.5' for name in ["x", *names])
    row = f'{{{values},"pad":"{"p" * 400}"}}\n'
    rows = AT_ONCE_BYTES // len(row) + 100
    path = tmp_path / "a" / FILE
    path.parent.mkdir()
    path.write_text(row * rows)
    columns = Columns(Root(tmp_path), max_bytes=8 * (rows + 50) * 5)

    def polled() -> int:
        """A row of a run that trains, after which each chart asks for its own columns; return how many are whole."""
        with path.open("a") as file:
            file.write(row)
        return sum(columns.read("a", FILE, [name, "x"]).exact for name in names)

    assert polled() == 0
    wait_for(lambda: columns.num_bytes > 0, "the file to be read whole")
    for _ in range(3):
        assert polled() == 3
        assert columns.num_bytes // (8 * rows) == 5  # ranks, x and three charts
    columns.close()


def test_what_nobody_asks_for_any_more_makes_room(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.dashboard.columns.WANTED_SECONDS", 0.0)
    told = queue.Queue[str]()
    columns = Columns(Root(root), told.put, max_bytes=BYTES + BYTES // 2)
    for run in ("a", "b"):
        assert exact(columns, run) == []
        assert told.get(timeout=WAIT_SECONDS) == run
        assert exact(columns, run) == [run]
    assert columns.num_bytes <= BYTES + BYTES // 2
    columns.close()


def test_a_file_without_room_is_read_all_the_same_when_waited_for(root: Path) -> None:
    columns = Columns(Root(root), max_bytes=BYTES // 2)
    table = columns.read("a", FILE, NAMES, wait=True)
    assert table.exact
    assert table.columns["y"].tolist() == [2.5] * ROWS
    assert len(table.columns[LEARNER]) == ROWS
    assert columns.num_bytes <= BYTES // 2
    columns.close()


def test_a_column_may_be_asked_for_twice(root: Path) -> None:
    """As a metric over itself."""
    table = Columns(Root(root)).read("a", FILE, ["x", "x"], wait=True)
    assert table.columns["x"].tolist() == [1.5] * ROWS
