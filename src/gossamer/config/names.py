"""Dotted names of settings: flags, and trees spelt by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gossamer.errors import ConfigError

ANY = "NAME"
"""Stands in dotted names of settings for a name that is the user's to choose."""


def flag(name: str) -> str:
    """Return the command-line flag of a dotted setting name."""
    return "--" + name.replace("_", "-")


def with_any(name: str, known: Iterable[str]) -> str:
    """Return a dotted name as `settings_of` has it: with NAME for the name that is the user's to choose, if there is one."""
    for mapping in (one.removesuffix(ANY) for one in known if one.endswith(f".{ANY}")):
        if name.startswith(mapping):
            own, dot, rest = name.removeprefix(mapping).partition(".")
            return f"{mapping}{ANY}{dot}{rest}" if own else name
    return name


class Entries(dict[str, Any]):
    """A whole list, by index: `--replays '[...]' --replays.0.fraction 1` changes the list given before."""


def entries_of(value: Any) -> dict[str, Any]:
    """Return what lies below a name: the settings of a table, or the entries of a list by index; nothing below a plain value."""
    if isinstance(value, (list, tuple)):
        return Entries({str(i): one for i, one in enumerate(cast("Sequence[Any]", value))})
    return nested(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


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
            below = entries_of(below)
        if not isinstance(below, Mapping):
            section = ".".join(path[: position + 1])
            raise ConfigError(
                f"{name} goes into {section}, which holds a plain value; leave one of the two out"
            )
        # A copy: what is placed must not change what the user holds.
        tree[part] = tree = _copy(cast("Mapping[str, Any]", below))
    before = tree.get(last)
    if isinstance(before, str) and isinstance(value, Mapping):
        before = {"name": before}
    if isinstance(before, dict) and isinstance(value, str):
        value = {"name": value}
    if isinstance(before, dict) and isinstance(value, Mapping) and not _differ(before, value):
        value = nested(cast("Mapping[str, Any]", value), below=cast("dict[str, Any]", before))
    tree[last] = value


def _differ(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether two tables name different members, whose settings do not go together."""
    return before.get("name", "") != value.get("name", "") and "name" in before and "name" in value


def nested(above: Mapping[str, Any], below: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a tree, over another, whose dotted names are nested, with underscores for hyphens."""
    found, spelt = _copy(below or {}), dict[str, str]()
    for name, value in above.items():
        ours = str(name).replace("-", "_")
        if spelt.setdefault(ours, name) != name:
            raise ConfigError(
                f"{ours} is given twice, as {spelt[ours]} and {name}; leave one of them out"
            )
        place(found, ours, value)
    return found


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return Entries(tree) if isinstance(tree, Entries) else dict(tree)
