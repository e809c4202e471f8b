"""Names, tags and notes of runs: what is kept, what is refused, and who shows them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_runs

from gossamer.errors import ConfigError
from gossamer.record.about import (
    ABOUT,
    MAX_NAME_CHARS,
    MAX_NOTE_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    About,
    about_bytes,
    about_of,
    changed,
    read_about,
)
from gossamer.record.files import write_whole_in
from gossamer.record.readers import FolderReader
from gossamer.record.runs import find_runs, list_runs, runs_text

NESTED = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=10,
)


def test_what_is_said_stays_said(tmp_path: Path) -> None:
    about = changed(
        About(archived=True),
        {"name": "  the\tgood one ", "tags": ["baseline", " long  run ", "baseline", ""], "note": "a\r\n\tb  \n"},
    )  # fmt: skip
    assert about == About("the good one", ("baseline", "long run"), "a\n b", archived=True)
    (tmp_path / ABOUT).write_bytes(about_bytes(about))
    assert read_about(FolderReader(tmp_path)) == about
    assert changed(about, {"note": ""}) == About(
        "the good one", ("baseline", "long run"), archived=True
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "x" * (MAX_NAME_CHARS + 1)}, "name has 201 characters; at most 200"),
        ({"name": 5}, "name must be a text, not 5"),
        ({"name": "\x07" * 60}, "240 characters (of 60 typed, unprintable ones spelt out)"),
        ({"note": "x" * (MAX_NOTE_CHARS + 1)}, "note has 5001 characters"),
        ({"note": None}, "note must be a text"),
        ({"tags": "baseline"}, "tags must be a list"),
        ({"tags": [1]}, "a tag must be a text"),
        ({"tags": ["x" * (MAX_TAG_CHARS + 1)]}, "51 characters; at most 50"),
        ({"tags": ["a,b"]}, "holds a comma"),
        ({"tags": [str(i) for i in range(MAX_TAGS + 1)]}, "at most 20 tags, not 21"),
        ({"archived": True}, "there is no field archived; use name, tags or note"),
    ],
)
def test_what_is_not_kept_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        changed(About(), given)


def test_texts_turn_no_line_and_move_no_cursor() -> None:
    about = changed(About(), {"name": "a\u202eb\x1b[2J", "note": "x\x1by\nz", "tags": ["\ud800"]})
    assert about == About("a\\u202eb\\x1b[2J", ("\\ud800",), "x\\x1by\nz")
    family = "\N{WOMAN}\u200d\N{PERSONAL COMPUTER} \N{IDEOGRAPHIC SPACE}"
    assert changed(About(), {"name": family}).name == family.strip()


@given(NESTED)
def test_any_file_is_read(content: Any) -> None:
    for found in (about_of(content), about_of({"name": content, "tags": content, "note": content})):
        assert len(found.name) <= MAX_NAME_CHARS
        assert len(found.tags) <= MAX_TAGS
        assert max(map(len, found.tags), default=0) <= MAX_TAG_CHARS
        assert len(found.note) <= MAX_NOTE_CHARS
        assert about_of(json.loads(about_bytes(found))) == found


def test_the_table_tells_names_and_tags(tmp_path: Path) -> None:
    one, two = sorted(made_runs(tmp_path, 2, 5))
    assert "name" not in runs_text(list_runs(str(tmp_path))).splitlines()[0].split()
    (one / ABOUT).write_bytes(about_bytes(About("first", ("a", "b c"), "a note")))
    (two / ABOUT).write_bytes(about_bytes(About(archived=True)))
    rows = {row.run: row for row in list_runs(str(tmp_path))}
    head, *lines = runs_text(list(rows.values())).splitlines()
    assert head.split()[-4:] == ["state", "name", "tags", "run"]
    (told,) = [line for line in lines if line.endswith(str(one))]
    assert "first  a, b c  " in told
    assert [", archived  -" in line for line in lines] == [not x.endswith(str(one)) for x in lines]
    loaded = {x["run"]: x for x in json.loads(runs_text(list(rows.values()), as_json=True))}
    assert loaded[str(one)]["tags"] == ["a", "b c"]
    assert loaded[str(two)]["archived"] is True
    assert find_runs(tmp_path) == [one, two]


def test_a_file_in_an_open_folder_is_replaced_whole_and_never_through_a_link(
    tmp_path: Path,
) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        write_whole_in(handle, "a.json", b"1")
        write_whole_in(handle, "a.json", b"2")
        assert sorted(x.name for x in tmp_path.iterdir()) == ["a.json", "elsewhere"]
        assert (tmp_path / "a.json").read_bytes() == b"2"
        (tmp_path / "a.json").unlink()
        (tmp_path / "a.json").symlink_to("elsewhere")
        (tmp_path / f".a.json.{os.getpid()}.partial").symlink_to("elsewhere")
        with pytest.raises(OSError, match="is not a plain file"):
            write_whole_in(handle, "a.json", b"3")
        (tmp_path / "a.json").unlink()
        write_whole_in(handle, "a.json", b"4")
    finally:
        os.close(handle)
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a.json", "elsewhere"]


def test_what_else_a_file_says_is_kept() -> None:
    """As a program has written it."""
    before = {"note": "x" * 6_000, "mine": [1, 2], "archived": False}
    after = json.loads(about_bytes(replace(about_of(before), archived=True), ["archived"], before))
    assert after == {"name": "", "tags": [], **before, "archived": True}
