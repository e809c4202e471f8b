"""Parts of the user's own: the class that `module:Class` names, in place of one of ours.

A kind of part is open to the user's classes if its base has a class method `refuse_part`, which says what a class lacks.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gossamer.config.values import expected
from gossamer.errors import ConfigError
from gossamer.system.importing import import_module, named_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAMES: dict[type, str] = {}
"""Classes of the user's that are in use, with the names that settings have for them."""
_BASES: dict[type, list[type]] = {}
"""The same by the base of their kind, in the order in which they came."""


def open_base(kinds: Iterable[type]) -> type | None:
    """Return the base of the kinds of a part, if it is open to classes of the user's."""
    return next((base for kind in kinds for base in kind.__mro__[1:] if is_open(base)), None)


def is_name(text: Any) -> bool:
    """Whether a text names code of the user's: module:NAME."""
    return isinstance(text, str) and re.fullmatch(r"[\w.]+:[\w.]+", text) is not None


def is_open(base: Any) -> bool:
    """Whether something is the base of a kind of part: whatever its package holds may be chosen, and the user's classes."""
    return isinstance(base, type) and "refuse_part" in vars(base)


def ours_of(base: type) -> tuple[type, ...]:
    """Return the parts that come with gossamer: what is defined beside their base, derived ones last.

    A class is a part if it says its name; others are what several have in common.
    """
    package = sys.modules[base.__module__.rpartition(".")[0]]
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    kinds = [x for x in _below(base) if is_ours(x) and "name" in inspect.get_annotations(x)]
    default = cast("Any", base).default_kind

    def order(kind: type) -> tuple[int, bool, str]:
        name: str = cast("Any", kind).name
        return len(kind.__mro__), name != default, name

    return tuple(sorted(kinds, key=order))


def default_of(kinds: Sequence[type]) -> type:
    """Return the kind that is meant if none is named: of a list's entries, for one that is added."""
    default = getattr(open_base(kinds), "default_kind", None)
    return next((x for x in kinds if cast("Any", x).name == default), kinds[min(1, len(kinds) - 1)])


def _below(base: type) -> list[type]:
    return [y for x in base.__subclasses__() for y in (x, *_below(x))]


def is_ours(part: type) -> bool:
    """Whether a class comes with gossamer."""
    return part.__module__.partition(".")[0] == "gossamer"


def name_of(part: type) -> str | None:
    """Return what settings call a class of the user's; None for one of ours."""
    return _NAMES.get(part)


def parts_of(base: type) -> tuple[type, ...]:
    """Return the classes of the user's that are in use for a kind of part."""
    return tuple(_BASES.get(base, ()))


def adopt(part: type, base: type, name: str = "") -> type:
    """Take a class of the user's for a part; return it.

    Raises:
        ConfigError: it is none, or lacks something.
    """
    if part not in _NAMES:
        name = name or f"{part.__module__}:{part.__qualname__}"
        _refuse(part, base, name)
        _NAMES[part] = name
        _BASES.setdefault(base, []).append(part)
    return part


def find(name: str, base: type) -> type:
    """Return the class that a name, `module:Class`, stands for.

    Raises:
        ConfigError: the module cannot be imported, or what it holds is no such part.
    """
    for part in parts_of(base):
        if _NAMES[part] == name:
            return part
    kind = f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__.lower()}"
    refuse_unimportable(name)
    if not is_name(name):
        raise ConfigError(f"{name!r} cannot name a class; it must be module:Class")
    module_name, _, class_name = name.rpartition(":")
    module = import_module(module_name, name, kind)
    found = named_in(module, class_name)
    if not isinstance(found, type):
        classes = [
            key
            for key, x in vars(module).items()
            if isinstance(x, type) and issubclass(x, base) and x is not base
        ]
        near = difflib.get_close_matches(class_name, classes, n=1, cutoff=0.5) or classes[:1]
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigError(f"{name} is not {kind}: {module_name} has no class {class_name}{hint}")
    return adopt(found, base, name)


def refuse_unimportable(name: str) -> None:
    """Refuse a class that other processes, and those who resume the run, could not import."""
    module_name, _, class_name = name.rpartition(":")
    if module_name == "__main__" or "<locals>" in class_name:
        raise ConfigError(
            f"{name} can be found only in the program that made it; put the class into a module of its own"
        )


def _refuse(part: type, base: type, name: str) -> None:
    """Refuse a class that could not be a part, with what to write."""
    home = f"from {base.__module__} import {base.__name__}"
    if not issubclass(part, base):
        raise ConfigError(
            f"{name} is not a subclass of {base.__name__}: {home}; class {part.__name__}({base.__name__}): ..."
        )
    lacks = cast("Any", part).refuse_part()
    if lacks:
        raise ConfigError(f"{name} {lacks}")
    try:
        hints = typing.get_type_hints(part)
    except Exception as error:
        raise ConfigError(f"{name} has a setting whose type is not known: {error}") from error
    known = {field.name for field in dataclasses.fields(part)}
    for owner in part.__mro__:
        if owner is base or not issubclass(owner, base):
            continue
        for setting in inspect.get_annotations(owner):
            if typing.get_origin(hints[setting]) is ClassVar or hints[setting] is ClassVar:
                continue
            if setting not in known or "__dataclass_fields__" not in vars(owner):
                raise ConfigError(
                    f"{name} has a setting {setting}, but {owner.__name__} is no dataclass: "
                    f"write @dataclass(frozen=True) above class {owner.__name__}"
                )
    own = cast("Any", part).name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", own) or own in {
        cast("Any", x).name for x in ours_of(base)
    } | {"queue"}:
        raise ConfigError(
            f"{name} has the name {own!r}; it must be small letters, digits and underscores, and no name of gossamer's parts"
        )
    for field in dataclasses.fields(part):
        if field.name == "name":
            raise ConfigError(
                f"{name} has a setting name, which says which part it is; call it otherwise"
            )
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(
                f"{name} has a setting {field.name} without a default: {field.name}: ... = VALUE"
            )
        try:
            expected(hints[field.name])
        except (KeyError, TypeError):
            raise ConfigError(
                f"{name} has a setting {field.name} of type {hints[field.name]}; settings may be bool, int, float, str, "
                "Literal, tuples of one of these, and any of them or None"
            ) from None
