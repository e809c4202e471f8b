"""Values out of files that anybody may have written, made safe to show."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any, cast

from gossamer.system.reading import clipped, listed, mapping, visible

MAX_WORD = 200
"""Characters of a text that is shown in a cell."""


def word(value: Any) -> str:
    """Return a short text that can be printed anywhere."""
    return _word(str(value)[: MAX_WORD + 1])


@functools.lru_cache(4096)
def _word(text: str) -> str:  # hundreds of runs have the same names
    return visible(clipped(text, MAX_WORD))


def shown(value: Any) -> Any:
    """Return a value as strict JSON can hold it, texts clipped."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return word(value)
    if isinstance(value, dict):
        return {word(k): shown(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [shown(x) for x in cast("list[Any]", value)]
    if isinstance(value, bool | int) or value is None:
        return value if value is None or abs(value) < 2**53 else word(value)
    return word(value)


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted names; entries of a list of sections by their number, other lists whole."""
    found: dict[str, Any] = {}
    for name, value in mapping(tree).items():
        dotted = sys.intern(f"{prefix}{word(name)}")  # hundreds of runs have the same
        sections = listed(value)
        if isinstance(value, dict):
            found |= flat(value, f"{dotted}.")
        elif sections and all(isinstance(x, dict) for x in sections):
            for i, section in enumerate(sections):
                found |= flat(section, f"{dotted}.{i}.")
        else:
            found[dotted] = shown(value)
    return found
