"""Whether a run began here: meta.json repeats a digest that nobody can make without this user's token.

What a run's settings import, an environment as module:name for one, is run. So a folder from elsewhere must not choose
it. The digest is of the names that are imported and of the files their modules are found in: copied into another run's
meta.json it vouches for the same code of the same user, and for nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.machinery
import importlib.util
import json
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.system.reading import mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKEN_BYTES = 32


def mark(code: Iterable[str]) -> dict[str, str]:
    """Return what meta.json repeats of a run that begins here and imports this code; the token is made if need be.

    Raises:
        OSError: there is no place for the token, or others could read it.
    """
    run = secrets.token_hex(8)
    return {"run": run, "digest": _digest(_token(make=True), run, code)}


def began_here(meta: Any, code: Iterable[str]) -> bool:
    """Whether a run's meta.json shows that this user began it on this machine, with this code."""
    origin = mapping(mapping(meta).get("origin"))
    try:
        run, digest = str(origin["run"]), str(origin["digest"])
        made = _digest(_token(make=False), run, code)
    except (OSError, KeyError, TypeError):
        return False
    return hmac.compare_digest(made.encode(), digest.encode(errors="replace"))


def is_found(name: str) -> bool:
    """Whether there is a module that importing `module:name` would run."""
    return _place(name) is not None


def _digest(token: bytes, run: str, code: Iterable[str]) -> str:
    told = json.dumps([run, sorted((name, _place(name)) for name in set(code))])
    return hmac.new(token, told.encode(), hashlib.sha256).hexdigest()


def _place(name: str) -> str | None:
    """Return the file or folders that the module of `module:name` is found in; None: nothing is found."""
    # As whoever imports it does: a module's name may hold a colon.
    top = name.rpartition(":")[0].partition(".")[0]
    try:
        found = importlib.util.find_spec(top) if top else None
        # Where an environment is looked for that is not installed.
        found = found or importlib.machinery.PathFinder.find_spec(top, [os.getcwd()])  # noqa: PTH109
    except (ImportError, ValueError):
        return ""
    if found is None:
        return None
    places = [found.origin] if found.has_location else list(found.submodule_search_locations or ())
    return os.pathsep.join(os.path.realpath(place) for place in places if place)


def _token(*, make: bool) -> bytes:
    path = state_folder() / "token"
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent)  # for the user alone
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(TOKEN_BYTES))
            with suppress(FileExistsError):  # another run begins, and was quicker
                os.link(partial, path)
        finally:
            Path(partial).unlink()
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        facts, token = os.fstat(handle), file.read(4 * TOKEN_BYTES)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(
            f"{path} must be a file of yours that nobody else can read: chmod 600 {path}"
        )
    if len(token) != 2 * TOKEN_BYTES:
        raise OSError(f"{path} is damaged; remove it")
    return token


def state_folder() -> Path:
    """Return the folder of what gossamer keeps for its user between runs.

    Raises:
        OSError: there is no place for it.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".local" / "state"
        except RuntimeError:
            raise FileNotFoundError("you have no home folder") from None
    if not folder.is_absolute():
        raise FileNotFoundError("HOME is no folder")
    return folder / "gossamer"
