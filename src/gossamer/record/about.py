"""What people say about a run: a name, tags and a note, kept in one small JSON file in its folder; and whether it is archived."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from gossamer.errors import ConfigError
from gossamer.record.readers import table_in
from gossamer.system.reading import clipped, listed, mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gossamer.record.readers import Reader

ABOUT = "about.json"
MAX_NAME_CHARS, MAX_TAGS, MAX_TAG_CHARS, MAX_NOTE_CHARS = 200, 20, 50, 5_000
"""Characters of a name, tags of a run, characters of a tag and of a note."""
MAX_ABOUT_BYTES = 256 << 10
"""Largest file; the longest texts take less than a third of this, also if each character is written as twelve."""
_JOINERS = "\u200c\u200d"
"""Not printable, but parts of words in some scripts, and of emoji."""


@dataclass(frozen=True, slots=True)
class About:
    """What people say about a run; training neither reads nor writes it."""

    name: str = ""
    """Shown in place of the folder's; empty: the folder's is shown."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """May have several lines."""
    archived: bool = False
    """Whether the run is hidden from tables."""


def read_about(files: Reader) -> About:
    """Return what is said about a run; nothing where its file is missing or damaged."""
    return about_of(table_in(files, ABOUT, MAX_ABOUT_BYTES))


def about_of(content: Any) -> About:
    """Return what the content of a file says, whoever has written it: too long texts are cut, all else is left out."""
    told = mapping(content)
    tags = listed(told.get("tags"))[:MAX_TAGS]
    found = [clipped(_line(x), MAX_TAG_CHARS) for x in tags if isinstance(x, str)]
    return About(
        name=clipped(_line(_text(told.get("name"))), MAX_NAME_CHARS),
        tags=tuple(dict.fromkeys(x for x in found if x)),
        note=clipped(_lines(_text(told.get("note"))), MAX_NOTE_CHARS),
        archived=told.get("archived") is True,
    )


def changed(about: About, given: Mapping[str, Any]) -> About:
    """Return what is said about a run after somebody has said more.

    Args:
        about: so far.
        given: some of name, tags (a list) and note, as they were typed; the others stay as they are.

    Raises:
        ConfigError: one of them is too long, or is no text.
    """
    for name in given:
        if name not in ("name", "tags", "note"):
            raise ConfigError(f"there is no field {clipped(name)}; use name, tags or note")
    if "name" in given:
        name = _typed("name", given["name"])
        about = replace(about, name=_short("name", name, _line(name), MAX_NAME_CHARS))
    if "note" in given:
        note = _typed("note", given["note"])
        about = replace(about, note=_short("note", note, _lines(note), MAX_NOTE_CHARS))
    if "tags" in given:
        about = replace(about, tags=_tags(given["tags"]))
    return about


def about_bytes(
    about: About, names: Iterable[str] = (), content: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Return the file that says this.

    Args:
        about: what it says.
        names: of the fields that are new.
        content: of the file before; what else it holds is kept as it is, whoever has written it.
    """
    said = asdict(about)
    held = {**said, **content, **{name: said[name] for name in names}}
    return json.dumps(held, indent=1).encode() + b"\n"


def _tags(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise ConfigError("tags must be a list of texts")
    typed = {_line(text): text for x in cast("list[Any]", given) if (text := _typed("a tag", x))}
    tags = [tag for tag in typed if tag]
    if len(tags) > MAX_TAGS:
        raise ConfigError(f"a run has at most {MAX_TAGS} tags, not {len(tags)}")
    for tag in tags:
        _short(f"tag {clipped(tag, 20)}", typed[tag], tag, MAX_TAG_CHARS)
        if "," in tag or '"' in tag:
            raise ConfigError(
                f"tag {clipped(tag, MAX_TAG_CHARS)} holds a comma or a quotation mark; leave it out"
            )
    return tuple(tags)


def _typed(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {clipped(repr(value), 40)}")
    return value


def _short(name: str, typed: str, text: str, most: int) -> str:
    """Return a text as it is kept; ConfigError if that is too long."""
    if len(text) > most:
        how = (
            f" (of {len(typed)} typed, unprintable ones spelt out)"
            if len(text) > len(typed)
            else ""
        )
        raise ConfigError(f"{name} has {len(text)} characters{how}; at most {most} are kept")
    return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _line(text: str) -> str:
    return " ".join(_visible(" ".join(text.split())).split())


def _lines(text: str) -> str:
    lines = [_visible(re.sub(r"\s", " ", x)) for x in text.splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _visible(text: str) -> str:
    """Return a text in which nothing moves a cursor or turns the direction of writing: such characters are spelt out."""
    return "".join(c if c.isprintable() or c in _JOINERS else ascii(c)[1:-1] for c in text)
