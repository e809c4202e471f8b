"""Dotted names of settings: flags, trees spelt by them, and the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from gossamer.types import ConfigError


def flag(name: str) -> str:
    """Return the command-line flag of a dotted setting name."""
    return "--" + name.replace("_", "-")


def place(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in a nested tree; the last mention of a setting wins.

    Raises:
        ConfigError: part of the name holds a plain value.
    """
    *path, last = name.split(".")
    for position, part in enumerate(path):
        below: Any = tree.get(part, {})
        if isinstance(below, str):
            below = {"name": below}
        if isinstance(below, (list, tuple)):
            # `--replays '[...]' --replays.0.fraction 1`: an index changes the list given before.
            below = {str(i): one for i, one in enumerate(cast("list[Any]", below))}
        if not isinstance(below, Mapping):
            section = ".".join(path[: position + 1])
            raise ConfigError(
                f"{name} goes into {section}, which holds a plain value; leave one of the two out"
            )
        # A copy: what is placed must not change what the user holds.
        tree[part] = tree = dict(cast("Mapping[str, Any]", below))
    before = tree.get(last)
    if isinstance(before, dict) and isinstance(value, str):
        value = {"name": value}
    if isinstance(before, dict) and isinstance(value, Mapping):
        value = _placed(cast("dict[str, Any]", before), cast("Mapping[str, Any]", value))
    tree[last] = value


def nested(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree whose dotted names are nested, with underscores for hyphens."""
    return _placed({}, tree)


def _placed(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        place(found, str(name).replace("-", "_"), value)
    return found


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to this one, in any letter case; None if there is none near."""
    folded = {one.lower(): one for one in known}
    return next((folded[one] for one in difflib.get_close_matches(word.lower(), folded, n=1)), None)
