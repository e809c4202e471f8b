"""Code of the user's, by the name `module:NAME`: imported, and what goes wrong there told in one line."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gossamer.errors import ConfigError
from gossamer.system.devices import default_device_kept

if TYPE_CHECKING:
    from types import ModuleType

RAISED = (Exception, SystemExit)
"""Errors that the user's code may raise; SystemExit, if uncaught, would end the program as if all were well."""


@default_device_kept()
def import_module(module_name: str, what: str, kind: str) -> ModuleType:
    """Import a module of the user's, also from the folder that the command is started in.

    Args:
        module_name: dotted.
        what: the whole name that was given, for the error.
        kind: what it should have been: "an environment".

    Raises:
        ConfigError: it cannot be imported; an error of its own is told with its file and line.
    """
    if not all(module_name.split(".")):
        raise ConfigError(f"{what} is not {kind}: {module_name!r} cannot be the name of a module")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0]:
            raise ConfigError(f"{what} cannot be imported: {error}{_place_of(error)}") from error
    except ImportError as error:
        raise ConfigError(f"{what} cannot be imported: {error}{_place_of(error)}") from error
    except RAISED as error:
        raise failed(what, "cannot be imported", error) from error
    # an installed command does not look into the folder it is started in; people expect it to
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds text
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        sys.path.remove(folder)
        missing = module_name.split(".")[0]
        hint = f"; start gossamer in the folder that holds {missing}, or install it"
        raise ConfigError(
            f"{what} cannot be imported: {error}{hint if error.name == missing else _place_of(error)}"
        ) from error
    except RAISED as error:
        raise failed(what, "cannot be imported", error) from error


def module_path() -> list[str]:
    """Return where modules are looked for: of what `sys.path` holds text alone counts, as for Python itself."""
    return [x for x in cast("list[object]", sys.path) if isinstance(x, str)]


def main_is_ours() -> bool:
    """Whether this process runs a command of gossamer's.

    Worker processes import the main module again, which a user's script may not allow for.
    """
    main = sys.modules.get("__main__")
    if (spec := getattr(main, "__spec__", None)) is not None:
        return spec.name.split(".")[0] == "gossamer"
    file = getattr(main, "__file__", None) or ""
    return os.path.basename(file).removesuffix(".exe") == "gossamer"  # noqa: PTH119


def refuse_unguarded_main(what: str, way_out: str) -> None:
    """Refuse to start processes that import a script again which would do everything again.

    Args:
        what: needs them.
        way_out: what to type instead.

    Raises:
        ConfigError: the script has no main guard.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if main_is_ours() or file is None or getattr(main, "__spec__", None) is not None:
        return
    try:
        with open(file, encoding="utf-8") as script:  # noqa: PTH123 - a name that Python itself has opened
            tree = ast.parse(script.read())
    except (OSError, ValueError, SyntaxError):
        return
    names = (x.id for x in ast.walk(tree) if isinstance(x, ast.Name))
    if "__name__" not in names:
        raise ConfigError(
            f'{what} needs processes that import {file} again: put what it does below if __name__ == "__main__":, '
            f"or {way_out}"
        )


def named_in(module: ModuleType, name: str) -> Any:
    """Return what a module holds by a name, which may have dots; None if there is nothing."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def hidden_by(module: ModuleType) -> str:
    """Return the hint that a file of this folder has a module's name, and another one was imported; nothing of others."""
    file = Path(module.__name__.replace(".", "/") + ".py")
    imported = getattr(module, "__file__", None)
    if not file.is_file() or (imported and Path(imported).resolve() == file.resolve()):
        return ""
    return (
        f"; {module.__name__} is {imported or 'a part of Python'}, not the file {file} of this folder, which needs another "
        "name"
    )


def as_module(file: str) -> str:
    """Return the name under which a file on Python's path is imported."""
    return re.sub(r"[/\\]+", ".", file.removesuffix(".py").lstrip("./\\"))


def failed(what: str, how: str, error: BaseException) -> ConfigError:
    """Return the error for code of the user's that raised one, with the place."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - the error is the user's, and so is its text
        text = "(its text cannot be read)"
    if isinstance(error, ValueError) and "main thread" in text:  # Python's own words
        text += (
            "; environments are made in other threads too: let it install no handlers of signals"
        )
    if isinstance(error, TypeError) and "reset() got an unexpected keyword" in text:
        text += "; Gymnasium calls reset(self, *, seed=None, options=None), which returns an observation and an info"
    return ConfigError(readable(f"{what} {how}: {type(error).__name__}: {text}{_place_of(error)}"))


def _place_of(error: BaseException) -> str:
    """Return where an error was raised, in brackets; nothing where only the import system was at work."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if "importlib" not in x.filename]
    own = [x for x in frames if x.filename != __file__]
    # What a library raises was called from somewhere; a module of the user's may be installed as one.
    own = [x for x in own if not _is_a_librarys(x.filename)] or own
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _is_a_librarys(file: str) -> bool:
    """Whether a file is Python's, gossamer's or an installed package's."""
    homes = os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - as a traceback has it
    return "site-packages" in file or file.startswith(tuple(home + os.sep for home in homes))


def readable(text: str) -> str:
    """Return a text with what no encoding has written out, so that it can be printed and kept."""
    return text.encode(errors="backslashreplace").decode()
