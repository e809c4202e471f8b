"""Plain setting values: read by msgspec as their annotations say, told in words when refused, spelt back."""

from __future__ import annotations

import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, cast

import msgspec

from gossamer.config.suggestions import near
from gossamer.system.ranges import Number
from gossamer.system.reading import clipped

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

SWITCH_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Words that may be typed for a switch."""
_PLAIN = {float: Number, int: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]}
"""Numbers whose field has no range."""
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_NONE = type(None)
_EXAMPLE = 8
"""Shown where a whole number is wanted whose default, 0, stands for something else."""


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation is a choice of; of a plain one itself."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def bare(kind: Any) -> tuple[Any, msgspec.Meta]:
    """Return a type without its range, and the range."""
    kind = _PLAIN.get(kind, kind)
    if typing.get_origin(kind) is not Annotated:
        return kind, msgspec.Meta()
    base, meta, *_ = typing.get_args(kind)
    return base, meta


@functools.cache
def is_list(annotation: Any) -> bool:
    """Whether a setting holds a list of values."""
    return typing.get_origin(bare(annotation)[0]) is tuple


@functools.cache
def is_mapping(annotation: Any) -> bool:
    """Whether a setting holds values by names that are free."""
    return typing.get_origin(annotation) is Mapping


def is_switch(annotation: Any) -> bool:
    """Whether a flag for this needs no value: it is on or off (or unset)."""
    return set(kinds_of(annotation)) - {_NONE} == {bool}


def read_value(value: Any, annotation: Any, *, typed: bool = False) -> Any:
    """Return a plain value as its annotation wants it; raise ValueError saying what is allowed.

    Whole numbers may be written 1e6; with `typed`, text stands for what it spells.
    """
    kinds = kinds_of(annotation)
    # TOML has no null, and nobody types one: the word stands for it.
    if _NONE in kinds and (value is None or str(value).lower() in ("none", "null")):
        return None
    for kind in kinds:
        with suppress(msgspec.ValidationError, UnicodeError):  # a byte that is no character
            return msgspec.convert(_spelt(value, kind, typed), _PLAIN.get(kind, kind))
    raise ValueError(expected(annotation, value, typed=typed))


def _spelt(value: Any, kind: Any, typed: bool) -> Any:
    """Return what a value spells where such a kind is wanted; msgspec takes no other form of it."""
    base, _ = bare(kind)
    if typing.get_origin(base) is tuple:
        item = typing.get_args(base)[0]
        return [_spelt(x, item, typed) for x in _items(value, typed)]
    if typing.get_origin(base) is Literal and type(value) in (int, float):
        return str(value)
    if typed and isinstance(value, str) and base is bool:
        return SWITCH_WORDS.get(value.lower(), value)
    if typed and isinstance(value, str) and base in (int, float):
        for parse in (int, float):
            with suppress(ValueError):
                return _spelt(parse(value), kind, typed)
    if base is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _items(value: Any, typed: bool) -> list[Any]:
    """Return the entries of a list, which may be typed as one word: 64,64 or [64, 64]."""
    items = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]
    if not typed:
        return items
    split = (x.strip("[] ").replace(",", " ").split() if isinstance(x, str) else [x] for x in items)
    return [word for words in split for word in words]


def expected(annotation: Any, written: Any = None, *, typed: bool = False) -> str:
    """Say in words what a value may be, in place of what was written.

    Raises:
        KeyError, TypeError: settings cannot have this type.
    """
    return " or ".join(_words(kind, written, typed) for kind in kinds_of(annotation))


def _names_of(kind: Any) -> tuple[Any, ...]:
    """Return the words that a choice is among; none: it is no choice of words."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _words(kind: Any, written: Any, typed: bool) -> str:
    base, meta = bare(kind)
    if base is _NONE:
        return "none"
    if names := [str(name) for name in _names_of(base)]:
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    if typing.get_origin(base) is tuple:
        items = _items(written, typed) or [None]
        if meta.max_length and len(items) > meta.max_length:
            return f"a list of at most {meta.max_length} entries"
        wanted = [_words(typing.get_args(base)[0], item, typed) for item in items]
        # Who gave one value need not hear of lists; of several the most telling refusal counts.
        plain = _NAMES.values()
        best = max(wanted, key=lambda words: (words not in plain, len(words)))
        return best if len(wanted) == 1 else f"a list, each entry {best}"
    if meta.pattern:
        return meta.title or "module:NAME"
    number = _spelt(written, kind, typed)
    if base is float and isinstance(number, float) and not math.isfinite(number):
        return "a finite number"
    reads = type(number) is int or (base is float and type(number) is float)
    return (range_words(kind, number) if reads else "") or _NAMES[base]


def range_words(kind: Any, number: float = -math.inf) -> str:
    """Say which numbers a kind takes, in place of this one; empty: it has no range."""
    meta = bare(kind)[1]
    low, high = meta.gt if meta.ge is None else meta.ge, meta.lt if meta.le is None else meta.le
    if low is None or high is None:
        return ""
    if high <= 65536:
        return f"in {'[' if meta.gt is None else '('}{low:g}, {high:.12g}{']' if meta.lt is None else ')'}"
    return f"at most {high:_}" if number > high else f"{'>=' if meta.gt is None else '>'} {low:g}"


def remedy(annotation: Any, written: Any, default: Any, flag: str = "") -> str:
    """Return the end of a refusal: how to write what was meant, or a value that would do; or nothing."""
    plain = [bare(kind)[0] for kind in kinds_of(annotation)]
    short = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmbg]?)", _joined(written).lower())
    if int in plain and short and not spells_number(written):
        number = round(float(short[1]) * {"": 1, "k": 10**3, "m": 10**6}.get(short[2], 10**9))
        digits, _, power = f"{number:.9e}".partition("e")
        return f": type {number:_} or {digits.rstrip('0').rstrip('.')}e{int(power)}"
    if int in plain and default == 0 and not isinstance(default, (bool, float)):
        default = _EXAMPLE  # 0 is one too, and stands for something else
    names = [str(x) for kind in plain for x in _names_of(kind)]
    gpu = re.fullmatch(r"(?:gpu|cuda):?(\d*)", str(written).lower()) if "cuda" in names else None
    default = "cuda" if gpu else near(str(written), names) or default
    low = bare(kinds_of(annotation)[0])[1].ge
    if default is None and low is not None and low >= 0:  # else it is where plain numbers end
        default = low
    if default is None or default == "":
        return ""
    if isinstance(default, tuple) and not isinstance(written, (list, tuple)):
        default = cast("tuple[Any, ...]", default)[0]
    text = _joined(default) if isinstance(default, tuple) else spell(default).strip('"')
    which = f", with CUDA_VISIBLE_DEVICES={gpu[1]} in the environment" if gpu and gpu[1] else ""
    return (f": {flag} {text}" if flag else f", for example {spell(default)}") + which


def _joined(value: Any) -> str:
    """Write a value as it was typed, but for the commas of thousands."""
    several = isinstance(value, (list, tuple))
    words = [str(item) for item in cast("Sequence[Any]", value)] if several else [str(value)]
    return " ".join(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", word) for word in words)


def spell(value: Any) -> str:
    """Write a value the way files spell it (TOML); None becomes "none"."""
    if value is None:
        return '"none"'
    plain: Any = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
    # TOML refuses a raw DEL, the one character that JSON lets through.
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")


def spell_name(name: str) -> str:
    """Write a dotted name the way files spell it (TOML): what is no plain word is quoted."""
    parts = name.split(".")
    return ".".join(x if re.fullmatch(r"[A-Za-z0-9_-]+", x) else spell(x) for x in parts)


def spells_number(value: Any) -> bool:
    """Whether something is a number, or text that spells one; infinite or none at all (nan) is one too."""
    return type(_spelt(value, float, typed=True)) in (int, float)


def shown(value: Any, *, typed: bool = False) -> str:
    """Write any value short enough for an error message, as it was typed or as a file holds it."""
    if typed and isinstance(value, (list, tuple)):
        words = cast("Sequence[Any]", value)
        if len(words) == 1:
            value = words[0]
        elif all(map(spells_number, words)):
            return clipped(" ".join(map(str, words)), 60)
    try:
        plain = typed and isinstance(value, str) and spells_number(value)
        text = cast("str", value) if plain else json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return clipped(text, 60)
