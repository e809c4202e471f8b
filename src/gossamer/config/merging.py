"""How layers of settings become one config: the rules, and who set what.

Nothing here knows of training, so the same rules hold for files, saved runs and the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from gossamer.config import own_parts
from gossamer.config.names import ANY, Entries, flag, nested
from gossamer.config.suggestions import (
    KINDS_ELSEWHERE,
    did_you_mean,
    in_place_of_no,
    unknown_setting,
)
from gossamer.config.tree import Field, Tree, fields_of, member_name, members, names_of
from gossamer.config.values import expected, is_list, is_mapping, read_value, remedy, shown
from gossamer.errors import ConfigError

T = TypeVar("T")


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

    def without(self, name: str) -> Layer:
        """Return the layer as if it did not give a setting."""
        left = {one: value for one, value in self.settings.items() if one != name}
        return dataclasses.replace(self, settings=left)


class Given(NamedTuple):
    """A section, an entry of a list or a plain value, as one layer gives it."""

    layer: Layer
    value: Any
    overruled: bool = False
    """A higher layer has chosen another member: what that member cannot take is dropped, not refused."""


def merge(root: type[T], layers: Iterable[Layer]) -> tuple[T, dict[str, str]]:
    """Return the settings that result from layers, lowest first, and which layer set each name.

    These rules apply to every section, in this order:

    1. A section is a table of settings, or a word, which is the name of a member (`_table`).
    2. The name may be that of a class of the user's, as module:Class (`_with_own_parts`).
    3. The highest layer that names a member chooses it. What lower layers gave is overruled if they had another (`choose`).
    4. A table named after a member, `[algorithm.ppo]`, speaks to that member alone (`fit`).
    5. A setting that only other members have is dropped where it is overruled, and refused elsewhere (`fit`).
    6. The highest layer's plain value holds; those below it have to be readable too, unless overruled (`read`).
    7. A whole list replaces the one below; an index changes one entry, or adds one (`read_list`).
    8. Of sections by free names each is merged with those below that have its name (`read_mapping`).
    """
    merging = _Merging(root, {})
    given = [Given(layer, layer.settings) for layer in layers]
    return cast("T", merging.section((root,), None, given, "")), merging.origin


@dataclass(frozen=True)
class _Merging:
    root: type
    origin: dict[str, str]
    """Layer that set each dotted name."""

    def section(
        self, kinds: tuple[type, ...], default: Any, given: Sequence[Given], path: str
    ) -> Any:
        """Build the member that the layers choose, from the settings that they give it."""
        given = [
            one._replace(value=_table(one.layer, path.rstrip("."), one.value)) for one in given
        ]
        kinds, given = _with_own_parts(kinds, given, path)
        chosen, given = self.choose(kinds, default, given, path)
        given = [one._replace(value=self.fit(one, kinds, chosen, path)) for one in given]
        values: dict[str, Any] = {}
        for name, field in fields_of(chosen).items():
            start = getattr(default, name) if isinstance(default, chosen) else field.default
            of_it = [one._replace(value=one.value[name]) for one in given if name in one.value]
            if not (below := members(field.annotation)):
                values[name] = self.read(field, start, of_it, path + name)
            elif is_list(field.annotation):
                values[name] = self.read_list(below, start, of_it, path + name)
            elif is_mapping(field.annotation):
                values[name] = self.read_mapping(below[0], start, of_it, path + name)
            else:
                values[name] = self.section(below, start, of_it, f"{path}{name}.")
        return chosen(**values)

    def choose(
        self, kinds: tuple[type, ...], default: Any, given: Sequence[Given], path: str
    ) -> tuple[type, Sequence[Given]]:
        """Return the member that the highest layer names, and what is overruled by that."""
        by_name = {member_name(kind): kind for kind in kinds}
        if None in by_name:
            return kinds[0], given
        chosen, label = type(default) if type(default) in kinds else kinds[0], "default"
        passed_on: list[Given] = []
        for one in given:
            if "name" in one.value:
                asked, label = one.value["name"], one.layer.label
                if not isinstance(asked, str) or asked not in by_name:
                    raise _no_such_kind(one.layer, path.rstrip("."), asked, [*map(str, by_name)])
                if by_name[asked] is not chosen:
                    passed_on = [lower._replace(overruled=True) for lower in passed_on]
                chosen = by_name[asked]
            passed_on.append(one)
        self.origin[path + "name"] = label
        return chosen, passed_on

    def fit(self, given: Given, kinds: tuple[type, ...], chosen: type, path: str) -> dict[str, Any]:
        """Return the settings of a layer that the chosen member has, those of its own table included.

        A class of the user's has the table of the class of ours that it is derived from.

        Raises:
            ConfigError: a setting of another member that is not overruled, or of none.
        """
        by_name = {member_name(kind): kind for kind in kinds}
        ours = (kind for kind in chosen.__mro__ if kind in kinds and own_parts.is_ours(kind))
        spoken_to = next(ours, chosen)
        table: dict[str, Any] = given.value
        fitting = {name: value for name, value in table.items() if name not in by_name}
        for name in (name for name in table if name in by_name):
            named = _table(given.layer, path + name, table[name])
            for key in named:
                if key not in fields_of(by_name[name]):
                    raise unknown_setting(given.layer, f"{path}{name}.{key}", names_of(self.root))
            fitting |= named if by_name[name] is spoken_to else {}
        for name in fitting:
            if name in fields_of(chosen) or (name == "name" and None not in by_name):
                continue
            owners = [str(member_name(kind)) for kind in kinds if name in fields_of(kind)]
            if not owners:
                raise unknown_setting(given.layer, path + name, names_of(self.root))
            if not given.overruled:
                first = chosen is kinds[0]
                raise _other_member(
                    given.layer, path, name, owners, str(member_name(chosen)), first=first
                )
        return fitting

    def read(self, field: Field, start: Any, given: Sequence[Given], dotted: str) -> Any:
        """Return the plain value of the highest layer that gives one, else the default."""
        value, self.origin[dotted] = start, "default"
        for layer, written, overruled in given:
            if instead := in_place_of_no(layer, dotted, written):
                allowed = expected(field.annotation).removesuffix(" or none")
                raise ConfigError(
                    f"{layer.shown(dotted)} is {shown(written, typed=layer.typed)}; it must be {allowed}: {instead}"
                )
            try:
                value = read_value(written, field.annotation, typed=layer.typed)
            except ValueError as error:
                if overruled:
                    continue
                how = remedy(field.annotation, written, start, flag(dotted) if layer.typed else "")
                raise ConfigError(
                    f"{layer.shown(dotted)} is {shown(written, typed=layer.typed)}; it must be {error}{how}"
                ) from None
            self.origin[dotted] = layer.label
        return value

    def read_list(
        self, kinds: tuple[type, ...], start: Any, given: Sequence[Given], dotted: str
    ) -> Any:
        """Return the sections of a list: a whole one replaces that below, an index changes or adds one entry."""
        entries: list[tuple[Any, list[Given]]] = [(default, []) for default in start]
        for layer, value, _ in given:
            if isinstance(value, (list, tuple)):
                value = Entries.of(cast("Sequence[Any]", value))
                if not value:
                    raise ConfigError(f"{layer.shown(dotted)} is empty; give at least one section")
            if isinstance(value, Entries):
                entries = []
                self.origin[dotted] = layer.label
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
                entries[index][1].append(Given(layer, one))
        return tuple(
            self.section(kinds, default, given, f"{dotted}.{i}.")
            for i, (default, given) in enumerate(entries)
        )

    def read_mapping(
        self, kind: type, start: Tree, given: Sequence[Given], dotted: str
    ) -> dict[str, Any]:
        """Return sections by free names; what is given to a name is dropped where a higher layer calls it something else."""
        entries = {name: (default, list[Given]()) for name, default in start.items()}
        for layer, value, _ in given:
            if isinstance(value, str):
                how = f"it needs a name: {layer.shown(f'{dotted}.{ANY}')} {value}"
                raise ConfigError(f"{layer.shown(dotted)} is {shown(value)}; {how}")
            for name, one in _table(layer, dotted, value).items():
                table = _table(layer, f"{dotted}.{name}", one)
                _, below = entries.setdefault(name, (kind(), []))
                called = [x.value["name"] for x in below if "name" in x.value]
                if "name" in table and called and called[-1] != table["name"]:
                    below.clear()
                below.append(Given(layer, table))
        return {
            name: self.section((kind,), default, given, f"{dotted}.{name}.")
            for name, (default, given) in entries.items()
        }


def _table(layer: Layer, dotted: str, value: Any) -> dict[str, Any]:
    """Return what a layer says of a section as a table; a word is the name of a member."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        wanted = "it must be a section of settings"
        raise ConfigError(f"{layer.shown(dotted)} is {shown(value)}; {wanted}")
    return nested(cast("Tree", value))


def _with_own_parts(
    kinds: tuple[type, ...], given: Sequence[Given], path: str
) -> tuple[tuple[type, ...], Sequence[Given]]:
    """Return the members of a section with the user's classes that are named, by one name each."""
    base = own_parts.open_base(kinds)
    passed_on: list[Given] = []
    for one in given:
        asked = one.value.get("name")
        if base is not None and isinstance(asked, str) and ":" in asked:
            try:
                part = own_parts.find(asked, base)
            except ConfigError as error:
                raise ConfigError(f"{one.layer.shown(path.rstrip('.'))}: {error}") from error
            kinds = kinds if part in kinds else (*kinds, part)
            one = one._replace(value={**one.value, "name": own_parts.name_of(part)})
        passed_on.append(one)
    return kinds, passed_on


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
