"""Settings as trees of frozen dataclasses: what each is called, what it accepts, who set it.

A section is a dataclass; a field holding one of several dataclasses is chosen by their `name`. This
module knows nothing of training, so the same rules hold for files, saved runs and the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from gossamer.config import own_parts
from gossamer.config.names import (
    ELSEWHERE,
    KINDS_ELSEWHERE,
    Entries,
    flag,
    letters_of,
    near,
    nearest,
    nested,
)
from gossamer.config.values import example, is_union, read_value, shown
from gossamer.errors import ConfigError

T = TypeVar("T")
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """One source of settings: a file, a saved run, a suite's defaults or the command line."""

    label: str
    """How the source is named to the user."""
    settings: Tree
    """Nested settings."""
    typed: bool = False
    """Typed at a shell: text stands for numbers, and errors name flags."""

    def shown(self, name: str) -> str:
        """Return a setting's dotted name the way the user wrote it in this source."""
        return flag(name) if self.typed else f"{self.label}: {name}"


class Field(NamedTuple):
    """One field of a section."""

    annotation: Any
    default: Any


@functools.cache
def fields_of(section: type) -> dict[str, Field]:
    """Return a section's fields in order, with evaluated annotations."""
    hints = typing.get_type_hints(section)
    found: dict[str, Field] = {}
    for field in dataclasses.fields(section):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = Field(hints[field.name], default)
    return found


def members(annotation: Any) -> tuple[type, ...]:
    """Return the sections a field may hold, the user's own that are in use included; empty for a plain value."""
    declared = _declared(annotation)
    base = own_parts.open_base(declared) if declared else None
    return (*declared, *own_parts.parts_of(base)) if base is not None else declared


@functools.cache
def _declared(annotation: Any) -> tuple[type, ...]:
    if own_parts.is_open(annotation):
        return own_parts.ours_of(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return (annotation,)
    if is_union(annotation):
        found = tuple(_declared(a) for a in typing.get_args(annotation))
        if all(found):
            return tuple(member for group in found for member in group)
    return ()


def listed(annotation: Any) -> tuple[type, ...]:
    """Return the sections that entries of a list of sections may be; empty for anything else."""
    arguments = typing.get_args(annotation)
    return members(arguments[0]) if typing.get_origin(annotation) is tuple and arguments else ()


def member_name(section: type) -> str | None:
    """Return the name a section is chosen by, or None if it is the only one of its kind."""
    if (own := own_parts.name_of(section)) is not None:
        return own
    hint = typing.get_type_hints(section).get("name")
    return getattr(section, "name", None) if typing.get_origin(hint) is ClassVar else None


def names_of(root: type, path: str = "") -> Iterator[str]:
    """Yield every dotted name below a section, of every member.

    Entries of lists appear as `.0.` if they are of the first kind, else as `.1.`: so they are by default.
    """
    for name, field in fields_of(root).items():
        inner = members(field.annotation)
        entry = listed(field.annotation)
        if not inner:
            yield path + name
        for i, section in enumerate(inner or entry):
            prefix = f"{path}{name}.{min(i, 1)}." if entry else f"{path}{name}."
            if member_name(section) is not None:
                yield prefix + "name"
            yield from names_of(section, prefix)


def find_annotation(root: type, name: str) -> Any | None:
    """Return what a dotted name accepts, in whichever member has it; None if there is no such name."""
    head, _, rest = name.partition(".")
    field = fields_of(root).get(head)
    if field is None:
        return None
    if not rest:
        return field.annotation
    inner = members(field.annotation)
    if entry := listed(field.annotation):
        index, _, rest = rest.partition(".")
        if not index.isdecimal() or not rest:
            return None
        inner = entry
    for section in inner:
        if rest == "name" and member_name(section) is not None:
            return str
        if (found := find_annotation(section, rest)) is not None:
            return found
    return None


def unknown_setting(layer: Layer, name: str, root: type) -> ConfigError:
    """Build the error for a name that is no setting, with the nearest one."""
    path, dot, last = name.rpartition(".")
    ours = (setting for setting, others in ELSEWHERE.items() if last in others)
    meant = nearest(path + dot + next(ours, last), names_of(root))
    if meant and name.count(".") == meant.count("."):  # of the entry that was named
        parts = zip(name.split("."), meant.split("."), strict=True)
        meant = ".".join(given if given.isdecimal() else part for given, part in parts)
    # The environment has no flag of its own: it is the one positional argument.
    shown = meant and (flag(meant) if layer.typed else meant)
    hint = f"did you mean {shown}?" if shown else "gossamer train --help-all lists all settings"
    return ConfigError(f"{layer.shown(name)} is not a setting; {hint}")


def merge(root: type[T], layers: Sequence[Layer]) -> tuple[T, dict[str, str]]:
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

    def section(
        self,
        allowed: tuple[type, ...],
        default: Any,
        sources: list[tuple[Layer, dict[str, Any]]],
        path: str,
    ) -> Any:
        allowed, sources = self._with_own(allowed, sources, path)
        chosen, chooser = self._choose(allowed, default, sources, path)
        known = fields_of(chosen)
        others = {name for other in allowed for name in fields_of(other)} - set(known)
        own_name = member_name(chosen)
        sources = self._for_member(allowed, chosen, sources, path)
        for position, (layer, tree) in enumerate(sources):
            for name in tree:
                if name in known or (name == "name" and own_name is not None):
                    continue
                if name in others and position < chooser:
                    continue
                if name in others:
                    raise self._other_member(layer, path, name, allowed, str(own_name))
                raise unknown_setting(layer, path + name, self._root)
        values: dict[str, Any] = {}
        for name, field in known.items():
            start = getattr(default, name) if isinstance(default, chosen) else field.default
            given = [
                (p, layer, tree[name]) for p, (layer, tree) in enumerate(sources) if name in tree
            ]
            dotted = path + name
            if inner := members(field.annotation):
                trees = [(layer, self._table(layer, dotted, value)) for _, layer, value in given]
                values[name] = self.section(inner, start, trees, dotted + ".")
            elif entry := listed(field.annotation):
                found = [(layer, value) for _, layer, value in given]
                values[name] = self._list(entry, start, found, dotted)
            else:
                values[name] = self._leaf(field, start, given, chooser, dotted)
        return chosen(**values)

    def _with_own(
        self, allowed: tuple[type, ...], sources: list[tuple[Layer, dict[str, Any]]], path: str
    ) -> tuple[tuple[type, ...], list[tuple[Layer, dict[str, Any]]]]:
        """Return the sections that are allowed with those of the user's own that are asked for, by their one name."""
        base = own_parts.open_base(allowed)
        if base is None:
            return allowed, sources
        named: list[tuple[Layer, dict[str, Any]]] = []
        for layer, tree in sources:
            asked = tree.get("name")
            if isinstance(asked, str) and ":" in asked:
                try:
                    part = own_parts.find(asked, base)
                except ConfigError as error:
                    raise ConfigError(f"{layer.shown(path.rstrip('.'))}: {error}") from error
                allowed = allowed if part in allowed else (*allowed, part)
                tree = {**tree, "name": own_parts.name_of(part)}
            named.append((layer, tree))
        return allowed, named

    def _for_member(
        self,
        allowed: tuple[type, ...],
        chosen: type,
        sources: list[tuple[Layer, dict[str, Any]]],
        path: str,
    ) -> list[tuple[Layer, dict[str, Any]]]:
        """Spread tables named after the chosen member (`[algorithm.ppo]`) into their section.

        A class of the user's has that of the class of ours that it is derived from.
        """
        chosen = next(
            (kind for kind in chosen.__mro__ if kind in allowed and own_parts.is_ours(kind)), chosen
        )
        by_name = {member_name(member): member for member in allowed}
        spread: list[tuple[Layer, dict[str, Any]]] = []
        for layer, tree in sources:
            plain = {name: value for name, value in tree.items() if name not in by_name}
            for name in (name for name in tree if name in by_name):
                table = self._table(layer, path + name, tree[name])
                for key in table:
                    if key not in fields_of(by_name[name]):
                        raise unknown_setting(layer, f"{path}{name}.{key}", self._root)
                if by_name[name] is chosen:
                    plain |= table
            spread.append((layer, plain))
        return spread

    def _choose(
        self,
        allowed: tuple[type, ...],
        default: Any,
        sources: list[tuple[Layer, dict[str, Any]]],
        path: str,
    ) -> tuple[type, int]:
        """Return the member to build, and the position of the layer that asked for it."""
        by_name = {member_name(member): member for member in allowed}
        if None in by_name:
            return allowed[0], -1
        chosen = next((kind for kind in allowed if type(default) is kind), allowed[0])
        chooser, label = -1, "default"
        for position, (layer, tree) in enumerate(sources):
            if "name" not in tree:
                continue
            asked = tree["name"]
            if not isinstance(asked, str) or asked not in by_name:
                names = [str(name) for name in by_name]
                meant = near(str(asked), names)
                hint = f"; did you mean {meant}?" if meant else ""
                kind = path.rstrip(".")
                ours, system = KINDS_ELSEWHERE.get(letters_of(str(asked)), ("", ""))
                if ours in by_name:
                    hint = f"; {kind}:{ours} is {system}"
                raise ConfigError(
                    f"{layer.shown(kind)} is {asked!r}; allowed: {', '.join(names)}{hint}"
                )
            if by_name[asked] is not chosen:
                chooser = position
            chosen, label = by_name[asked], layer.label
        self._origin[path + "name"] = label
        return chosen, chooser

    def _leaf(
        self,
        field: Field,
        start: Any,
        given: list[tuple[int, Layer, Any]],
        chooser: int,
        dotted: str,
    ) -> Any:
        value, label = start, "default"
        for position, layer, written in given:
            try:
                value = read_value(written, field.annotation, typed=layer.typed)
                label = layer.label
            except ValueError as error:
                # It was meant for the member that a higher layer replaced.
                if position < chooser:
                    continue
                how = example(field.annotation, written, start, typed=layer.typed)
                raise ConfigError(
                    f"{layer.shown(dotted)} is {shown(written)}; it must be {error}{how}"
                ) from None
        self._origin[dotted] = label
        return value

    def _list(
        self, entry: tuple[type, ...], start: Any, found: list[tuple[Layer, Any]], dotted: str
    ) -> Any:
        """Build a list of sections: a whole list replaces the one below, an index changes one."""
        defaults: list[Any] = list(start)
        sources: list[list[tuple[Layer, dict[str, Any]]]] = [[] for _ in defaults]
        for layer, value in found:
            if isinstance(value, (list, tuple)):
                entries = cast("Sequence[Any]", value)
                if not entries:
                    raise ConfigError(f"{layer.shown(dotted)} is empty; give at least one section")
                value = Entries({str(i): one for i, one in enumerate(entries)})
            if isinstance(value, Entries):
                defaults, sources = [], []
                self._origin[dotted] = layer.label
            if isinstance(value, str):
                kinds = [str(member_name(section)) for section in entry]
                how = f"it must be a list of {', '.join(kinds)}"
                if layer.typed:
                    kind = value if value in kinds[1:] else member_name(own_parts.default_of(entry))
                    how += f"; one more beside the {kinds[0]}: {flag(dotted)}.1.name {kind}"
                raise ConfigError(f"{layer.shown(dotted)} is {shown(value)}; {how}")
            table = self._table(layer, dotted, value)
            for key, one in sorted(table.items(), key=lambda x: (len(x[0]), x[0])):  # 2 before 10
                index = int(key) if key.isdecimal() else -1
                if not 0 <= index <= len(sources):
                    raise ConfigError(
                        f"{layer.shown(f'{dotted}.{key}')} names no entry; {dotted} has entries "
                        f"0 to {len(sources) - 1}, and {len(sources)} adds one"
                    )
                if index == len(sources):
                    # What is added is of the default kind, unless it says something else.
                    defaults.append((own_parts.default_of(entry) if index else entry[0])())
                    sources.append([])
                table = self._table(layer, f"{dotted}.{key}", one)
                for section in entry:  # one that knows how others write it
                    if translate := getattr(section, "translate", None):
                        table = translate(table)
                sources[index].append((layer, table))
        return tuple(
            self.section(entry, default, one, f"{dotted}.{i}.")
            for i, (default, one) in enumerate(zip(defaults, sources, strict=True))
        )

    def _table(self, layer: Layer, dotted: str, value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{layer.shown(dotted)} is {shown(value)}; it must be a section of settings"
            )
        return nested(cast("Tree", value))

    def _other_member(
        self, layer: Layer, path: str, name: str, allowed: tuple[type, ...], chosen: str
    ) -> ConfigError:
        owners = [str(member_name(member)) for member in allowed if name in fields_of(member)]
        kind = path.rstrip(".")
        how = f"choose {kind}:{owners[0]}" if layer.typed else f'choose {kind}.name = "{owners[0]}"'
        base, _, index = kind.rpartition(".")
        if index.isdecimal():
            other = f"as in {layer.shown(f'{base}.1.{name}')}"
            if chosen != member_name(allowed[0]):  # which stays what it is
                other = f"{layer.shown(kind + '.name')} {owners[0]}"
            how = f"give it to an entry of that kind, {other}"
        return ConfigError(
            f"{layer.shown(path + name)} is a setting of {', '.join(owners)}, not of {chosen}; "
            f"leave it out or {how}"
        )


def as_written(settings: Tree) -> dict[str, Any]:
    """Return settings from Python as a file would hold them: classes and instances of sections become tables."""

    def written(value: Any, name: str = "") -> Any:
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            kind = _name_of_kind(value)
            return kind if name.rpartition(".")[2] == "name" else {"name": kind}
        if dataclasses.is_dataclass(value):
            return to_tree(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {key: written(x, key) for key, x in items}
        if isinstance(value, (list, tuple)):
            return [written(x) for x in cast("Sequence[Any]", value)]
        return value

    return {name: written(value, name) for name, value in settings.items()}


def _name_of_kind(kind: type) -> str | None:
    """Return the name a section is chosen by; a class of the user's is in use from now on."""
    base = own_parts.open_base((kind,))
    if base is not None and not own_parts.is_ours(kind):
        own_parts.adopt(kind, base)
    return member_name(kind)


def to_tree(section: Any) -> dict[str, Any]:
    """Return a section as nested dicts of JSON values; `merge` reads them back."""
    kind = cast("type[Any]", type(section))
    found: dict[str, Any] = {}
    if (name := _name_of_kind(kind)) is not None:
        found["name"] = name
    for field in fields_of(kind):
        value = getattr(section, field)
        if dataclasses.is_dataclass(value):
            found[field] = to_tree(value)
        elif isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            found[field] = [to_tree(v) if dataclasses.is_dataclass(v) else v for v in items]
        else:
            found[field] = value
    return found


def flatten(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every plain value in a tree made by `to_tree`."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(cast("Tree", value), f"{path}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            entries = cast("list[Tree]", value)
            for index, entry in enumerate(entries):
                yield from flatten(entry, f"{path}{name}.{index}.")
        else:
            yield path + name, value
