"""How layers of settings become one config: the rules, and who set what.

Nothing here knows of training, so the same rules hold for files, saved runs and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from gossamer.config import own_parts
from gossamer.config.names import ANY, Entries, entries_of, flag, nested
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
RESUMED = "resumed run"
"""Layer label of what a resumed run had saved."""


class Layer(NamedTuple):
    """One source of settings: a file, a saved run, a suite's defaults or the command line."""

    label: str
    """How the source is named to the user; empty: a config that is there already."""
    settings: Any
    """Nested settings; as rules are applied, what the source gives for one section, entry or plain value."""
    typed: bool = False
    """Typed at a shell: text stands for numbers, and errors name flags."""
    overruled: bool = False
    """A higher layer has chosen another member: what that member cannot take is dropped, not refused."""

    def shown(self, name: str) -> str:
        """Return a setting's dotted name the way the user wrote it in this source."""
        return flag(name) if self.typed else f"{self.label}: {name}".removeprefix(": ")

    def without(self, name: str) -> Layer:
        """Return the layer as if it did not give a setting."""
        left = {one: value for one, value in self.settings.items() if one != name}
        return self._replace(settings=left)

    def table(self, dotted: str) -> Layer:
        """Return the layer with what it gives for a section as a table; a word is the name of a member."""
        if isinstance(self.settings, str):
            return self._replace(settings={"name": self.settings})
        if not isinstance(self.settings, Mapping):
            wanted = "it must be a section of settings"
            raise ConfigError(f"{self.shown(dotted)} is {shown(self.settings)}; {wanted}")
        try:
            return self._replace(settings=nested(cast("Tree", self.settings)))
        except ConfigError as error:
            raise ConfigError(f"{self.label}: {error}".removeprefix(": ")) from error


def merge(root: type[T], layers: Iterable[Layer]) -> tuple[T, dict[str, str]]:
    """Return the settings that result from layers, lowest first, and which layer set each name.

    These rules apply to every section, in this order:

    1. A section is a table of settings, or a word, which is the name of a member (`Layer.table`).
    2. The name may be that of a class of the user's, as module:Class (`choose`).
    3. The highest layer that names a member chooses it. What lower layers gave is overruled if they had another (`choose`).
    4. A table named after a member, `[algorithm.ppo]`, speaks to that member alone (`fit`).
    5. A setting that only other members have is dropped where it is overruled, and refused elsewhere (`fit`).
    6. The highest layer's plain value holds; those below it have to be readable too, unless overruled (`read`).
    7. A whole list replaces the one below; an index changes one entry, or adds one (`read_list`).
    8. Of sections by free names each is merged with those below that have its name (`read_mapping`).
    """
    merging = _Merging(root, {})
    return cast("T", merging.section((root,), None, [*layers], "")), merging.origin


@dataclass(frozen=True)
class _Merging:
    root: type
    origin: dict[str, str]
    """Layer that set each dotted name."""

    def section(
        self, kinds: tuple[type, ...], default: Any, given: Sequence[Layer], path: str
    ) -> Any:
        """Build the member that the layers choose, from the settings that they give it."""
        given = [layer.table(path.rstrip(".")) for layer in given]
        by_name, chosen, given = self.choose(kinds, default, given, path)
        given = [self.fit(layer, by_name, chosen, path) for layer in given]
        values: dict[str, Any] = {}
        for name, field in fields_of(chosen).items():
            start = getattr(default, name) if isinstance(default, chosen) else field.default
            of_it = [
                one._replace(settings=one.settings[name]) for one in given if name in one.settings
            ]
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
        self, kinds: tuple[type, ...], default: Any, given: Sequence[Layer], path: str
    ) -> tuple[dict[str | None, type], type, Sequence[Layer]]:
        """Return all members by name, the one that the highest layer names, and what is overruled by that."""
        by_name = {member_name(kind): kind for kind in kinds}
        if None in by_name:
            return by_name, kinds[0], given
        base, section = own_parts.open_base(kinds), path.rstrip(".")
        chosen, label = type(default) if type(default) in kinds else kinds[0], "default"
        passed_on: list[Layer] = []
        for layer in given:
            if "name" in layer.settings:
                by, asked, label = label, layer.settings["name"], layer.label
                if base is not None and isinstance(asked, str) and ":" in asked:
                    try:
                        part = own_parts.find(asked, base)
                    except ConfigError as error:
                        raise ConfigError(f"{layer.shown(section)}: {error}") from error
                    asked = own_parts.name_of(part)
                    by_name[asked] = part
                if not isinstance(asked, str) or asked not in by_name:
                    raise _no_such_kind(layer, section, asked, [*map(str, by_name)])
                # What is typed as when the run began is overruled as it was then.
                if by_name[asked] is not chosen or by == RESUMED:
                    passed_on = [lower._replace(overruled=True) for lower in passed_on]
                chosen = by_name[asked]
            passed_on.append(layer)
        self.origin[path + "name"] = label
        return by_name, chosen, passed_on

    def fit(
        self, layer: Layer, by_name: Mapping[str | None, type], chosen: type, path: str
    ) -> Layer:
        """Return a layer with the settings that the chosen member has, those of its own table included.

        A class of the user's has the table of the class of ours that it is derived from.

        Raises:
            ConfigError: a setting of another member that is not overruled, or of none.
        """
        kinds = [*by_name.values()]
        ours = (kind for kind in chosen.__mro__ if kind in kinds and own_parts.is_ours(kind))
        spoken_to = next(ours, chosen)
        table: dict[str, Any] = layer.settings
        fitting = {name: value for name, value in table.items() if name not in by_name}
        for name in (name for name in table if name in by_name):
            named = layer._replace(settings=table[name]).table(path + name).settings
            for key in named:
                if key not in fields_of(by_name[name]):
                    raise unknown_setting(layer, f"{path}{name}.{key}", names_of(self.root))
            fitting |= named if by_name[name] is spoken_to else {}
        for name in fitting:
            if name in fields_of(chosen) or (name == "name" and None not in by_name):
                continue
            owners = [str(kind) for kind, member in by_name.items() if name in fields_of(member)]
            if not owners:
                raise unknown_setting(layer, path + name, names_of(self.root))
            if not layer.overruled:
                first = chosen is kinds[0]
                raise _other_member(
                    layer, path, name, owners, str(member_name(chosen)), first=first
                )
        return layer._replace(settings=fitting)

    def read(self, field: Field, start: Any, given: Sequence[Layer], dotted: str) -> Any:
        """Return the plain value of the highest layer that gives one, else the default."""
        value, self.origin[dotted] = start, "default"
        for layer in given:
            written = layer.settings
            if instead := in_place_of_no(layer, dotted, written):
                allowed = expected(field.annotation).removesuffix(" or none")
                raise ConfigError(
                    f"{layer.shown(dotted)} is {shown(written, typed=layer.typed)}; it must be {allowed}: {instead}"
                )
            try:
                value = read_value(written, field.annotation, typed=layer.typed)
            except ValueError as error:
                if layer.overruled:
                    continue
                how = remedy(field.annotation, written, start, flag(dotted) if layer.typed else "")
                raise ConfigError(
                    f"{layer.shown(dotted)} is {shown(written, typed=layer.typed)}; it must be {error}{how}"
                ) from None
            self.origin[dotted] = layer.label
        return value

    def read_list(
        self, kinds: tuple[type, ...], start: Any, given: Sequence[Layer], dotted: str
    ) -> Any:
        """Return the sections of a list: a whole one replaces that below, an index changes or adds one entry."""
        entries: list[tuple[Any, list[Layer]]] = [(default, []) for default in start]
        for layer in given:
            if isinstance(layer.settings, str):
                raise _no_list(layer, dotted, layer.settings, kinds)
            if isinstance(layer.settings, (list, tuple)):
                if not layer.settings:
                    raise ConfigError(f"{layer.shown(dotted)} is empty; give at least one section")
                layer = layer._replace(settings=entries_of(layer.settings))
            if isinstance(layer.settings, Entries):
                entries = []
                self.origin[dotted] = layer.label
            table = layer.table(dotted).settings
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
                entries[index][1].append(layer._replace(settings=one))
        return tuple(
            self.section(kinds, default, given, f"{dotted}.{i}.")
            for i, (default, given) in enumerate(entries)
        )

    def read_mapping(
        self, kind: type, start: Tree, given: Sequence[Layer], dotted: str
    ) -> dict[str, Any]:
        """Return sections by free names; what is given to a name is dropped where a higher layer calls it something else."""
        entries = {name: (default, list[Layer]()) for name, default in start.items()}
        for layer in given:
            if isinstance(layer.settings, str):
                how = f"it needs a name: {layer.shown(f'{dotted}.{ANY}')} {layer.settings}"
                raise ConfigError(f"{layer.shown(dotted)} is {shown(layer.settings)}; {how}")
            for name, one in layer.table(dotted).settings.items():
                added = layer._replace(settings=one).table(f"{dotted}.{name}")
                _, below = entries.setdefault(name, (kind(), []))
                called = [x.settings["name"] for x in below if "name" in x.settings]
                if "name" in added.settings and called and called[-1] != added.settings["name"]:
                    below.clear()
                below.append(added)
        return {
            name: self.section((kind,), default, given, f"{dotted}.{name}.")
            for name, (default, given) in entries.items()
        }


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


def is_preset(origin: str) -> bool:
    """Whether a layer's label says that nobody asked for the setting: code or a suite has it."""
    return origin == "default" or origin.startswith("suite ")
