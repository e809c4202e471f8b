"""Columns of a table are as wide as their widest cell, and lines end where their text does."""

from __future__ import annotations

from gossamer.system.tables import columns


def test_columns_are_aligned() -> None:
    rows = [["trial", "return", "state"], ["0", "12.5", "done"], ["11", "-", "unfinished"]]
    assert columns(rows, right=range(2)) == [
        "trial  return  state",
        "    0    12.5  done",
        "   11       -  unfinished",
    ]
    assert columns([["a", "b"], ["long", ""]]) == ["a     b", "long"]
