"""Settings as trees of frozen dataclasses: what each is called, what it accepts, who set it.

A section is a dataclass; a field holding one of several dataclasses is chosen by their `name`. This
module knows nothing of training, so the same rules hold for files, saved runs and the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from gossamer.config import own_parts
from gossamer.config.names import (
    ELSEWHERE,
    KINDS_ELSEWHERE,
    REMOVED,
    Entries,
    did_you_mean,
    flag,
    nearest,
    nested,
)
from gossamer.config.values import is_list, kinds_of, read_value, remedy, shown
from gossamer.errors import ConfigError

T = TypeVar("T")
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """One source of settings: a file, a saved run, a suite's defaults or the command line."""

    label: str
    """How the source is named to the user; empty: a config that is there already."""
    settings: Tree
    """Nested settings."""
    typed: bool = False
    """Typed at a shell: text stands for numbers, and errors name flags."""

    def shown(self, name: str) -> str:
        """Return a setting's dotted name the way the user wrote it in this source."""
        return flag(name) if self.typed else f"{self.label}: {name}".removeprefix(": ")


Sources = list[tuple[Layer, dict[str, Any]]]
"""Layers, lowest first, each with its settings of one section."""


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
    """Return the sections that a field, or an entry of its list, may hold; empty for plain values.

    The user's own that are in use are among them.
    """
    declared = _declared(typing.get_args(annotation)[0] if is_list(annotation) else annotation)
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


def settings_of(root: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted name below a section, of every member, with what it accepts.

    Entries of lists appear as `.0.` if they are of the first kind, else as `.1.`: so they are by default.
    """
    for name, field in fields_of(root).items():
        yield path + name, field.annotation
        for i, section in enumerate(members(field.annotation)):
            below = f"{path}{name}.{min(i, 1)}." if is_list(field.annotation) else f"{path}{name}."
            if member_name(section) is not None:
                yield f"{below}name", str
            yield from settings_of(section, below)


def names_of(root: type) -> Iterator[str]:
    """Yield every dotted name below a section."""
    return (name for name, _ in settings_of(root))


def find_annotation(root: type, name: str) -> Any | None:
    """Return what a dotted name accepts, in whichever member has it; None if there is no such name."""
    known: dict[str, Any] = {}
    for one, annotation in settings_of(root):
        known.setdefault(one, annotation)
    names = [name, *(re.sub(r"\.\d+\.", entry, name, count=1) for entry in (".1.", ".0."))]
    return next((known[one] for one in names if one in known), None)


def unknown_setting(layer: Layer, name: str, root: type) -> ConfigError:
    """Build the error for a name that is no setting, with the nearest one."""
    if name in REMOVED:
        return ConfigError(f"{layer.shown(name)} is no longer a setting: {REMOVED[name]}")
    path, dot, last = name.rpartition(".")
    ours = (setting for setting, others in ELSEWHERE.items() if last in others)
    meant = nearest(path + dot + next(ours, last), names_of(root))
    if meant and name.count(".") == meant.count("."):  # of the entry that was named
        parts = zip(name.split("."), meant.split("."), strict=True)
        meant = ".".join(given if given.isdecimal() else part for given, part in parts)
    # The environment has no flag of its own: it is the one positional argument.
    hint = f"did you mean {flag(meant) if layer.typed else meant}?" if meant else ""
    listed = "gossamer train --help-all lists all settings"
    return ConfigError(f"{layer.shown(name)} is not a setting; {hint or listed}")


def merge(root: type[T], layers: Iterable[Layer]) -> tuple[T, dict[str, str]]:
    """Return the settings that result from layers, lowest first, and which layer set each name.

    A layer that names another member of a choice keeps what lower layers set where the new member
    has a setting of that name too, and drops the rest.
    """
    origin: dict[str, str] = {}
    sources = [(layer, nested(layer.settings)) for layer in layers]
    return cast("T", _Merge(root, origin).section((root,), None, sources, "")), origin


class _Merge:
    def __init__(self, root: type, origin: dict[str, str]):
        self._root, self._origin = root, origin

    def section(self, allowed: tuple[type, ...], default: Any, sources: Sources, path: str) -> Any:
        """Build the section that the layers choose, from what they say."""
        allowed, sources = self._with_own(allowed, sources, path)
        chosen, chooser = self._choose(allowed, default, sources, path)
        sources = [
            (layer, self._plain(layer, tree, allowed, chosen, path, dropped=at < chooser))
            for at, (layer, tree) in enumerate(sources)
        ]
        values: dict[str, Any] = {}
        for name, field in fields_of(chosen).items():
            start = getattr(default, name) if isinstance(default, chosen) else field.default
            given = [(layer, tree[name]) for layer, tree in sources if name in tree]
            if not (kinds := members(field.annotation)):
                before = sum(name in tree for _, tree in sources[: max(chooser, 0)])
                values[name] = self._leaf(field, start, given, before, path + name)
            elif is_list(field.annotation):
                values[name] = self._list(kinds, start, given, path + name)
            else:
                trees = [(layer, _table(layer, path + name, value)) for layer, value in given]
                values[name] = self.section(kinds, start, trees, f"{path}{name}.")
        return chosen(**values)

    def _with_own(
        self, allowed: tuple[type, ...], sources: Sources, path: str
    ) -> tuple[tuple[type, ...], Sources]:
        """Return the sections that are allowed with those of the user's own that are asked for, by their one name."""
        base = own_parts.open_base(allowed)
        named: Sources = []
        for layer, tree in sources:
            asked = tree.get("name")
            if base is not None and isinstance(asked, str) and ":" in asked:
                try:
                    part = own_parts.find(asked, base)
                except ConfigError as error:
                    raise ConfigError(f"{layer.shown(path.rstrip('.'))}: {error}") from error
                allowed = allowed if part in allowed else (*allowed, part)
                tree = {**tree, "name": own_parts.name_of(part)}
            named.append((layer, tree))
        return allowed, named

    def _choose(
        self, allowed: tuple[type, ...], default: Any, sources: Sources, path: str
    ) -> tuple[type, int]:
        """Return the member to build, and the position of the layer that asked for it."""
        by_name = {member_name(member): member for member in allowed}
        if None in by_name:
            return allowed[0], -1
        chosen = type(default) if type(default) in allowed else allowed[0]
        chooser, label = -1, "default"
        for position, (layer, tree) in enumerate(sources):
            if "name" not in tree:
                continue
            asked = tree["name"]
            if not isinstance(asked, str) or asked not in by_name:
                raise _no_such_kind(layer, path.rstrip("."), asked, [str(x) for x in by_name])
            if by_name[asked] is not chosen:
                chooser = position
            chosen, label = by_name[asked], layer.label
        self._origin[path + "name"] = label
        return chosen, chooser

    def _plain(
        self,
        layer: Layer,
        tree: dict[str, Any],
        allowed: tuple[type, ...],
        chosen: type,
        path: str,
        *,
        dropped: bool,
    ) -> dict[str, Any]:
        """Return what a layer says of the chosen member, tables named after it (`[algorithm.ppo]`) spread.

        A class of the user's has the table of the class of ours that it is derived from. What a higher layer replaced
        (`dropped`) may be a setting of another member.
        """
        by_name = {member_name(member): member for member in allowed}
        ours = (kind for kind in chosen.__mro__ if kind in allowed and own_parts.is_ours(kind))
        speaks_to, known = next(ours, chosen), fields_of(chosen)
        plain = {name: value for name, value in tree.items() if name not in by_name}
        for name in (name for name in tree if name in by_name):
            table = _table(layer, path + name, tree[name])
            for key in table:
                if key not in fields_of(by_name[name]):
                    raise unknown_setting(layer, f"{path}{name}.{key}", self._root)
            plain |= table if by_name[name] is speaks_to else {}
        for name in plain:
            if name in known or (name == "name" and None not in by_name):
                continue
            owners = [str(member_name(x)) for x in allowed if name in fields_of(x)]
            if not owners:
                raise unknown_setting(layer, path + name, self._root)
            if not dropped:
                first = chosen is allowed[0]
                raise _other_member(
                    layer, path, name, owners, str(member_name(chosen)), first=first
                )
        return plain

    def _leaf(
        self, field: Field, start: Any, given: list[tuple[Layer, Any]], before: int, dotted: str
    ) -> Any:
        """Read a plain value; the first ones, `before` the section was chosen, may have been meant for another."""
        value, self._origin[dotted] = start, "default"
        for position, (layer, written) in enumerate(given):
            try:
                value = read_value(written, field.annotation, typed=layer.typed)
            except ValueError as error:
                if position < before:
                    continue
                how = remedy(field.annotation, written, start, flag(dotted) if layer.typed else "")
                raise ConfigError(
                    f"{layer.shown(dotted)} is {shown(written, typed=layer.typed)}; it must be {error}{how}"
                ) from None
            self._origin[dotted] = layer.label
        return value

    def _list(
        self, kinds: tuple[type, ...], start: Any, given: list[tuple[Layer, Any]], dotted: str
    ) -> Any:
        """Build a list of sections: a whole list replaces the one below, an index changes one."""
        entries: list[tuple[Any, Sources]] = [(default, []) for default in start]
        for layer, value in given:
            if isinstance(value, (list, tuple)):
                value = Entries({str(i): x for i, x in enumerate(cast("list[Any]", value))})
                if not value:
                    raise ConfigError(f"{layer.shown(dotted)} is empty; give at least one section")
            if isinstance(value, Entries):
                entries = []
                self._origin[dotted] = layer.label
            if isinstance(value, str):
                raise _no_list(layer, dotted, value, kinds)
            table = _table(layer, dotted, value)
            for key, one in sorted(table.items(), key=lambda x: (len(x[0]), x[0])):  # 2 before 10
                index = int(key) if key.isdecimal() else -1
                if not 0 <= index <= len(entries):
                    raise ConfigError(
                        f"{layer.shown(f'{dotted}.{key}')} names no entry; {dotted} has entries 0 to {len(entries) - 1}, "
                        f"and {len(entries)} adds one"
                    )
                if index == len(entries):
                    # What is added is of the default kind, unless it says something else.
                    kind = own_parts.default_of(kinds) if index else kinds[0]
                    entries.append((kind(), []))
                one = _table(layer, f"{dotted}.{key}", one)
                entries[index][1].append((layer, one))
        return tuple(
            self.section(kinds, default, sources, f"{dotted}.{i}.")
            for i, (default, sources) in enumerate(entries)
        )


def _table(layer: Layer, dotted: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        wanted = "it must be a section of settings"
        raise ConfigError(f"{layer.shown(dotted)} is {shown(value)}; {wanted}")
    return nested(cast("Tree", value))


def _no_such_kind(layer: Layer, kind: str, asked: Any, names: Sequence[str]) -> ConfigError:
    letters = "".join(filter(str.isalpha, str(asked).lower()))
    ours, system = KINDS_ELSEWHERE.get(letters, ("", ""))
    hint = f"; {kind}:{ours} is {system}" if ours in names else did_you_mean(str(asked), names)
    return ConfigError(f"{layer.shown(kind)} is {asked!r}; allowed: {', '.join(names)}{hint}")


def _no_list(layer: Layer, dotted: str, value: str, kinds: tuple[type, ...]) -> ConfigError:
    first, *others = (str(member_name(kind)) for kind in kinds)
    how = f"it must be a list of {', '.join([first, *others])}"
    if layer.typed:
        added = value if value in others else member_name(own_parts.default_of(kinds))
        how += f"; one more beside the {first}: {flag(dotted)}.1.name {added}"
    return ConfigError(f"{layer.shown(dotted)} is {shown(value)}; {how}")


def _other_member(
    layer: Layer, path: str, name: str, owners: list[str], chosen: str, *, first: bool
) -> ConfigError:
    """Build the error for a setting of another kind than the chosen one; the first of a list stays what it is."""
    kind = path.rstrip(".")
    base, _, index = kind.rpartition(".")
    how = f"choose {kind}:{owners[0]}" if layer.typed else f'choose {kind}.name = "{owners[0]}"'
    if index.isdecimal():
        change = f"{layer.shown(kind + '.name')} {owners[0]}"
        other = f"as in {layer.shown(f'{base}.1.{name}')}" if first else change
        how = f"give it to an entry of that kind, {other}"
    told = f"is a setting of {', '.join(owners)}, not of {chosen}"
    return ConfigError(f"{layer.shown(path + name)} {told}; leave it out or {how}")


def as_written(value: Any, name: str = "") -> Any:
    """Return settings from Python as a file would hold them: classes and instances of sections become tables."""
    if isinstance(value, type) and dataclasses.is_dataclass(value):
        kind = _name_of_kind(value)
        return kind if name.rpartition(".")[2] == "name" else {"name": kind}
    if dataclasses.is_dataclass(value):
        return to_tree(value)
    if isinstance(value, Mapping):
        return {key: as_written(x, key) for key, x in cast("Tree", value).items()}
    if isinstance(value, (list, tuple)):
        return [as_written(x) for x in cast("Sequence[Any]", value)]
    return value


def _name_of_kind(kind: type) -> str | None:
    """Return the name a section is chosen by; a class of the user's is in use from now on."""
    base = own_parts.open_base((kind,))
    if base is not None and not own_parts.is_ours(kind):
        own_parts.adopt(kind, base)
    return member_name(kind)


def to_tree(section: Any) -> dict[str, Any]:
    """Return a section as nested dicts of JSON values; `merge` reads them back."""
    kind = cast("type[Any]", type(section))
    name = _name_of_kind(kind)
    found: dict[str, Any] = {} if name is None else {"name": name}
    return found | {field: as_written(getattr(section, field)) for field in fields_of(kind)}


def flatten(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every plain value in a tree made by `to_tree`."""
    for name, value in tree.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = {str(i): one for i, one in enumerate(cast("list[Any]", value))}
        if isinstance(value, Mapping):
            yield from flatten(cast("Tree", value), f"{path}{name}.")
        else:
            yield path + name, value
