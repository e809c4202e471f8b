"""Parts of the user's own: the class that `module:Class` names, in place of one of ours.

A kind of part is open to the user's classes if its base has a class method `refuse_part`, which says what a class lacks.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gossamer.config.suggestions import near
from gossamer.config.values import expected
from gossamer.errors import ConfigError
from gossamer.system.importing import hidden_by, import_module, named_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

IN_USE: dict[type, str] = {}
"""Classes of the user's that are in use, in the order in which they came, with the names that settings have for them."""


def open_base(kinds: Iterable[type]) -> type | None:
    """Return the base of the kinds of a part, if it is open to classes of the user's."""
    return next((base for kind in kinds for base in kind.__mro__[1:] if is_open(base)), None)


def is_name(text: Any) -> bool:
    """Whether a text names code of the user's: module:NAME."""
    return isinstance(text, str) and re.fullmatch(r"[\w.]+:[\w.]+", text) is not None


def is_open(base: Any) -> bool:
    """Whether something is the base of a kind of part: whatever its package holds may be chosen, and the user's classes."""
    return isinstance(base, type) and "refuse_part" in vars(base)


def is_ours(part: type) -> bool:
    """Whether a class comes with gossamer."""
    return part.__module__.partition(".")[0] == "gossamer"


def ours_of(base: type) -> tuple[type, ...]:
    """Return the parts that come with gossamer: what is defined beside their base, derived ones last.

    A class is a part if it says its name; others are what several have in common.
    """
    package = sys.modules[base.__module__.rpartition(".")[0]]
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    kinds = [x for x in _below(base) if is_ours(x) and "name" in inspect.get_annotations(x)]

    def order(kind: Any) -> tuple[int, bool, str]:
        return len(kind.__mro__), kind.name != kind.default_kind, kind.name

    return tuple(sorted(kinds, key=order))


def _below(base: type) -> Iterator[type]:
    for part in base.__subclasses__():
        yield from (part, *_below(part))


def default_of(kinds: Sequence[Any]) -> Any:
    """Return the kind that is meant if none is named: of a list's entries, for one that is added."""
    default = getattr(open_base(kinds), "default_kind", None)
    return next((x for x in kinds if x.name == default), kinds[min(1, len(kinds) - 1)])


def name_of(part: type) -> str | None:
    """Return what settings call a class of the user's; None for one of ours."""
    is_own = open_base((part,)) is not None and not is_ours(part)
    return IN_USE.get(part, f"{part.__module__}:{part.__qualname__}") if is_own else None


def parts_of(base: type) -> tuple[type, ...]:
    """Return the classes of the user's that are in use for a kind of part."""
    return tuple(part for part in IN_USE if issubclass(part, base))


def use(part: type) -> None:
    """Let settings name a class, if it is one of the user's for some kind of part.

    Raises:
        ConfigError: it lacks something.
    """
    base, name = open_base((part,)), name_of(part)
    if base is not None and name is not None:
        _adopt(part, base, name)


def _adopt(part: type, base: type, name: str) -> type:
    if part not in parts_of(base):
        for lack in _lacks(part, base):
            raise ConfigError(f"{name} {lack}")
        # A notebook's cell that is run again defines it anew: from then on the name means that one.
        for other in [x for x, called in IN_USE.items() if called == name]:
            del IN_USE[other]
        IN_USE[part] = name
    return part


def find(name: str, base: type) -> type:
    """Return the class that a name, `module:Class`, stands for.

    Raises:
        ConfigError: the module cannot be imported, or what it holds is no such part.
    """
    for part in parts_of(base):
        if IN_USE[part] == name and not _is_made_anew(part, name):
            return part
    kind = f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__.lower()}"
    of_program = getattr(sys.modules.get("__main__"), name.removeprefix("__main__:"), None)
    if isinstance(of_program, type) and name_of(of_program) == name:
        return _adopt(of_program, base, name)  # a run of it is resumed, or evaluated
    refuse_unimportable(name)
    if not is_name(name):
        raise ConfigError(f"{name!r} cannot name a class; it must be module:Class")
    module_name, _, class_name = name.rpartition(":")
    module = import_module(module_name, name, kind)
    found = named_in(module, class_name)
    if isinstance(found, type):
        return _adopt(found, base, name)
    held = {key: x for key, x in vars(module).items() if isinstance(x, type) and x is not base}
    classes = [key for key, x in held.items() if issubclass(x, base)]
    meant = near(class_name, classes, cutoff=0.5) or next(iter(classes), "")
    hint = f"; did you mean {module_name}:{meant}?" if meant else ""
    raise ConfigError(
        f"{name} is not {kind}: {module_name} has no class {class_name}{hidden_by(module) or hint}"
    )


def _is_made_anew(part: type, name: str) -> bool:
    """Return whether a class is no longer the one of its name, as after importlib.reload of its module."""
    module_name, _, class_name = name.rpartition(":")
    module = sys.modules.get(module_name)
    held = None if module is None else named_in(module, class_name)
    return isinstance(held, type) and held is not part


def refuse_unimportable(name: str) -> None:
    """Refuse a class that other processes, and those who resume the run, could not import."""
    module_name, _, class_name = name.rpartition(":")
    if module_name == "__main__" or "<locals>" in class_name:
        raise ConfigError(
            f"{name} can be found only in the program that made it; put the class into a module of its own"
        )


def _lacks(part: type, base: type) -> Iterator[str]:
    """Yield why a class cannot be a part, with what to write."""
    if not issubclass(part, base):
        home = f"from {base.__module__} import {base.__name__}"
        yield f"is not a subclass of {base.__name__}: {home}; class {part.__name__}({base.__name__}): ..."
    if lack := cast("Any", part).refuse_part():
        yield lack
    try:
        hints = typing.get_type_hints(part, include_extras=True)
    except Exception as error:  # noqa: BLE001 - whatever the user's annotations raise
        yield f"has a setting whose type is not known: {error}"
        return
    for owner in part.__mro__:
        if owner is base or not issubclass(owner, base) or "__dataclass_fields__" in vars(owner):
            continue
        for name in inspect.get_annotations(owner):
            if hints[name] is not ClassVar and typing.get_origin(hints[name]) is not ClassVar:
                yield f"has a setting {name}, but {owner.__name__} is no dataclass: write @dataclass(frozen=True) above it"
    own: str = cast("Any", part).name
    taken = {"queue", *(cast("Any", x).name for x in ours_of(base))}
    if not re.fullmatch(r"[a-z][a-z0-9_]*", own) or own in taken:
        yield f"has the name {own!r}; it must be small letters, digits and underscores, and no name of gossamer's parts"
    known = {field.name: field for field in dataclasses.fields(cast("Any", part))}
    for name, field in known.items():
        if name == "name":
            yield "has a setting name, which says which part it is; call it otherwise"
        if field.default is field.default_factory is dataclasses.MISSING:
            yield f"has a setting {name} without a default: {name}: ... = VALUE"
        try:
            expected(hints[name])
        except (KeyError, TypeError):
            yield (
                f"has a setting {name} of type {hints[name]}; settings may be bool, int, float, str, Literal, "
                "tuples of one of these, and any of them or None"
            )
