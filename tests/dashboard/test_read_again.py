"""Rows that were read before are forgotten where a file is no longer the one that was read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.dashboard.columns import Columns
from gossamer.dashboard.extremes import RememberedExtremes
from gossamer.dashboard.root import Root
from gossamer.record.files import write_whole

FILE = "metrics.jsonl"


def rows(*values: float) -> bytes:
    told = [{"env_steps": i, "learner/return_mean_100": x} for i, x in enumerate(values)]
    return "".join(json.dumps(row) + "\n" for row in told).encode()


def replace(path: Path, content: bytes) -> None:
    """As a resume cuts rows back: another file gets the name."""
    write_whole(path, lambda file: file.write(content))


@pytest.mark.parametrize("again", [(1.0, 2.0, 7.0, 8.0, 9.0), (1.0, 2.0, 7.0), (1.0,)])
@pytest.mark.parametrize("in_place", [False, True])
def test_rows_of_a_file_that_was_replaced_or_cut_are_on_no_chart(
    tmp_path: Path, again: tuple[float, ...], in_place: bool
) -> None:
    """A resumed run replaces its file, and may write more than it had before a page asks again.

    So may a new run in a deleted one's place, whose file often has the same inode: as if it were written in place.
    """
    before = (1.0, 2.0, 3.0)
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / FILE
    path.write_bytes(rows(*before))
    columns = Columns(Root(tmp_path))
    name = "learner/return_mean_100"
    assert columns.read("run", FILE, [name]).columns[name].tolist() == list(before)
    if in_place:
        path.write_bytes(rows(*again))
    else:
        replace(path, rows(*again))
    found = columns.read("run", FILE, [name, "env_steps"])
    columns.close()
    assert found.exact
    assert found.columns[name].tolist() == list(again)
    assert found.columns["env_steps"].tolist() == list(range(len(again)))


@pytest.mark.parametrize(
    ("again", "in_place"),
    [
        ((1.0, 2.0, 3.0, 3.5), False),
        ((1.0, 2.0), False),
        ((1.0, 2.0), True),
        ((1.0, 2.0, 3.0, 3.5), True),
    ],
)
def test_returns_that_a_resume_has_undone_are_no_extremes(
    tmp_path: Path, again: tuple[float, ...], in_place: bool
) -> None:
    root = Root(tmp_path)
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / FILE
    path.write_bytes(rows(1.0, 2.0, 99.0))
    remembered = RememberedExtremes()
    with root.run("run") as files:
        assert remembered.of(files, "run", 2).returns == (1.0, 99.0)
    if in_place:
        path.write_bytes(rows(*again))
    else:
        replace(path, rows(*again))
    with root.run("run") as files:
        assert remembered.of(files, "run", 2).returns == (min(again), max(again))
