"""Plain setting values: reading what was written, saying what is allowed, spelling them back."""

from __future__ import annotations

import json
import math
import re
import types
import typing
from typing import Any, Literal, cast

from gossamer.system.reading import MAX_BITS
from gossamer.types import Imported

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

SWITCH_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Words that may be typed for a switch."""


def is_union(annotation: Any) -> bool:
    """Whether an annotation is a choice of types."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def is_switch(annotation: Any) -> bool:
    """Whether a flag for this needs no value: it is on or off (or unset)."""
    arguments = typing.get_args(annotation) if is_union(annotation) else (annotation,)
    return bool in arguments and set(arguments) <= {bool, type(None)}


def read_value(value: Any, annotation: Any, *, typed: bool = False) -> Any:
    """Return a plain value as its annotation wants it; raise ValueError saying what is allowed.

    Whole numbers may be written 1e6; with `typed`, text stands for what it spells.
    """
    origin = typing.get_origin(annotation)
    if is_union(annotation):
        return _read_union(value, annotation, typed)
    if origin is Literal:
        for allowed in typing.get_args(annotation):
            if not isinstance(value, bool) and str(value) == str(allowed):
                return allowed
    elif origin is tuple:
        return _read_tuple(value, annotation, typed)
    elif annotation is bool:
        if isinstance(value, bool):
            return value
        if typed and isinstance(value, str) and value.lower() in SWITCH_WORDS:
            return SWITCH_WORDS[value.lower()]
    elif annotation is str:
        if isinstance(value, str):
            return value
    elif annotation is Imported:
        if isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value):
            return value
    elif annotation is int or annotation is float:
        number = _number(value, typed)
        if number is not None and annotation is float:
            return float(number)
        if number is not None and number == int(number):
            return int(number)
    else:
        raise TypeError(f"settings cannot hold {annotation}")
    raise ValueError(expected(annotation, value))


def expected(annotation: Any, written: Any = None) -> str:
    """Say in words what a plain value may be, in place of what was written."""
    if annotation is type(None):
        return "none"
    if is_union(annotation):
        return " or ".join(expected(a, written) for a in typing.get_args(annotation))
    origin = typing.get_origin(annotation)
    if origin is Literal:
        names = [str(a) for a in typing.get_args(annotation)]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    if origin is tuple:
        items = cast("Sequence[Any]", written if isinstance(written, (list, tuple)) else [written])
        wanted = [expected(typing.get_args(annotation)[0], item) for item in items or [None]]
        # Who gave one value need not hear of lists.
        return wanted[0] if len(wanted) == 1 else f"a list, each entry {max(wanted, key=len)}"
    if annotation is float and is_endless(written):
        return "a finite number"
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Imported: "module:NAME",
    }
    return words[annotation]


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


def example(annotation: Any, written: Any, default: Any, *, typed: bool) -> str:
    """Return the end of a refusal: how to write what was meant, or a value that would do; or nothing."""
    counts = int in (annotation, *typing.get_args(annotation))
    short = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmbg]?)", _joined(written).lower())
    if counts and short:
        number = round(float(short[1]) * _UNITS[short[2]])
        digits, _, power = f"{number:.9e}".partition("e")
        return f": type {number:_} or {digits.rstrip('0').rstrip('.')}e{int(power)}"
    if default is None or default == "":
        return ""
    if isinstance(default, tuple) and not isinstance(written, (list, tuple)):
        default = cast("tuple[Any, ...]", default)[0]
    text = _joined(default) if isinstance(default, tuple) else spell(default).strip('"')
    return f", for example {text if typed else spell(default)}"


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


def is_endless(value: Any) -> bool:
    """Whether something spells a number that is infinite or none at all (nan)."""
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _number(value: Any, typed: bool) -> int | float | None:
    if typed and isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A whole number may be too long to be compared with others.
    counts = value.bit_length() <= MAX_BITS if isinstance(value, int) else math.isfinite(value)
    return value if counts else None


def _read_union(value: Any, annotation: Any, typed: bool) -> Any:
    arguments = typing.get_args(annotation)
    # TOML has no null, and nobody types one: the word stands for it.
    if type(None) in arguments and (value is None or str(value).lower() in ("none", "null")):
        return None
    for argument in arguments:
        if argument is type(None):
            continue
        try:
            return read_value(value, argument, typed=typed)
        except ValueError:
            continue
    raise ValueError(expected(annotation, value))


def _read_tuple(value: Any, annotation: Any, typed: bool) -> tuple[Any, ...]:
    arguments = typing.get_args(annotation)
    if typed and isinstance(value, str):
        value = [value]
    items = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]
    if typed:
        split: list[Any] = []
        for item in items:
            split += (
                item.strip("[] ").replace(",", " ").split() if isinstance(item, str) else [item]
            )
        items = split
    wanted = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
    if len(wanted) != len(items):
        raise ValueError(f"{expected(annotation, items)}, {len(wanted)} entries")
    try:
        return tuple(
            read_value(item, want, typed=typed) for item, want in zip(items, wanted, strict=True)
        )
    except ValueError:
        raise ValueError(expected(annotation, items)) from None


def shown(value: Any) -> str:
    """Write any value short enough for an error message."""
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = value[0] if isinstance(value[0], str) else value
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
