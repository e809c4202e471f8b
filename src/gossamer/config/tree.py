"""Settings as trees of frozen dataclasses: what each is called, what it accepts, how it is written down.

A section is a dataclass; a field holding one of several dataclasses is chosen by their `name`. Sections may be listed, or
have names of the user's.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from gossamer.config import own_parts
from gossamer.config.names import ANY, with_any
from gossamer.config.values import is_list, is_mapping, kinds_of
from gossamer.errors import ConfigError

Tree = Mapping[str, Any]


class Field(NamedTuple):
    """One field of a section."""

    annotation: Any
    default: Any


@functools.cache
def fields_of(section: type) -> dict[str, Field]:
    """Return a section's fields in order, with evaluated annotations."""
    hints = typing.get_type_hints(section, include_extras=True)
    found: dict[str, Field] = {}
    for field in dataclasses.fields(cast("Any", section)):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        found[field.name] = Field(hints[field.name], default)
    return found


def members(annotation: Any) -> tuple[type, ...]:
    """Return the sections that a field, or an entry of its list or mapping, may hold; empty for plain values.

    The user's own that are in use are among them.
    """
    entry = 1 if is_mapping(annotation) else 0 if is_list(annotation) else None
    declared = _declared(annotation if entry is None else typing.get_args(annotation)[entry])
    base = own_parts.open_base(declared)
    return (*declared, *own_parts.parts_of(base)) if base is not None else declared


@functools.cache
def _declared(annotation: Any) -> tuple[type, ...]:
    kinds = [cast("type", x) for x in kinds_of(annotation) if dataclasses.is_dataclass(x)]
    found = (own_parts.ours_of(x) if own_parts.is_open(x) else (x,) for x in kinds)
    return tuple(section for sections in found for section in sections)


def member_name(section: type) -> str | None:
    """Return the name a section is chosen by, or None if it is the only one of its kind."""
    chosen_by = None if "name" in fields_of(section) else getattr(section, "name", None)
    return own_parts.name_of(section) or chosen_by


def choices(annotation: Any) -> dict[str, Any]:
    """Return what a field may hold by the name that chooses it; empty where nothing is to be chosen."""
    kinds = members(annotation)
    return {name: kind for kind in kinds if (name := member_name(kind)) is not None}


def settings_of(root: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted name below a section, of every member, with what it accepts.

    Entries of lists appear as `.0.` if they are of the first kind, else as `.1.`: so they are by default. Those of mappings
    appear as `.NAME.`.
    """
    for name, field in fields_of(root).items():
        yield path + name, field.annotation
        for i, section in enumerate(members(field.annotation)):
            below = f"{path}{name}.{min(i, 1)}." if is_list(field.annotation) else f"{path}{name}."
            if is_mapping(field.annotation):
                yield f"{below}{ANY}", section
                below = f"{below}{ANY}."
            if member_name(section) is not None:
                yield f"{below}name", str
            yield from settings_of(section, below)


def names_of(root: type) -> Iterator[str]:
    """Yield every dotted name below a section."""
    return (name for name, _ in settings_of(root))


def find_annotation(root: type, name: str) -> Any | None:
    """Return what a dotted name accepts, in whichever member has it; None if there is no such name."""
    known = dict(reversed([*settings_of(root)]))  # of several members' the first
    names = [with_any(name, known)]
    names += [re.sub(r"\.\d+\.", entry, name, count=1) for entry in (".1.", ".0.")]
    return next((known[one] for one in names if one in known), None)


def use_named(root: type, name: str, value: Any) -> None:
    """Put a class of the user's in use, if a value for a dotted name is the name of one: its settings are known then.

    Raises:
        ConfigError: it cannot be imported, or is no such part.
    """
    section = name.removesuffix(".name")
    # One level further there are settings, whose values may look alike.
    if not own_parts.is_name(value) or not re.fullmatch(r"\w+(\.\d+)?", section):
        return
    base = own_parts.open_base(members(find_annotation(root, section.partition(".")[0])))
    if base is not None:
        try:
            own_parts.find(value, base)
        except ConfigError as error:
            raise ConfigError(f"{section}: {error}") from error


def as_written(value: Any, name: str = "") -> Any:
    """Return settings from Python as a file would hold them: classes and instances of sections become tables.

    A class of the user's is in use from then on.
    """
    if isinstance(value, type) and dataclasses.is_dataclass(value):
        own_parts.use(value)
        kind = member_name(value)
        return kind if name.rpartition(".")[2] == "name" else {"name": kind}
    if isinstance(value, os.PathLike):  # also of a run that has been trained
        return os.fspath(cast("os.PathLike[str]", value))
    if dataclasses.is_dataclass(value):
        own_parts.use(type(value))
        return _tree_of(value, as_written)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # a number, or several
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: as_written(x, key) for key, x in cast("Tree", value).items()}
    if isinstance(value, (list, tuple)):
        return [as_written(x) for x in cast("Sequence[Any]", value)]
    return value


def to_tree(section: Any) -> Any:
    """Return a section as nested dicts of JSON values, which `merge` reads back; other values as they are."""
    if isinstance(section, (list, tuple)):
        return [to_tree(one) for one in cast("Sequence[Any]", section)]
    if isinstance(section, Mapping):
        return {name: to_tree(one) for name, one in cast("Tree", section).items()}
    return _tree_of(section, to_tree) if dataclasses.is_dataclass(section) else section


def _tree_of(section: Any, below: Callable[[Any], Any]) -> dict[str, Any]:
    kind: type = type(section)
    found: dict[str, Any] = {} if (name := member_name(kind)) is None else {"name": name}
    return found | {field: below(getattr(section, field)) for field in fields_of(kind)}


def flatten(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every plain value in a tree made by `to_tree`."""
    for name, value in tree.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = {str(i): one for i, one in enumerate(cast("list[Any]", value))}
        if isinstance(value, Mapping):
            yield from flatten(cast("Tree", value), f"{path}{name}.")
        else:
            yield path + name, value
