"""Removes runs from the disk, so that a kill in the midst of it leaves nothing that looks like a run."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from gossamer.dashboard.root import FOLDER_FLAGS, HERE, RunFiles
from gossamer.errors import ConfigError
from gossamer.record.files import LOCK, sync_open_folder
from gossamer.record.folder import MEMBERS
from gossamer.record.readers import table_in
from gossamer.system.reading import mapping, number

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from gossamer.dashboard.root import Root

GONE = "there is no such run any more"
DELETED = ".gossamer-deleted-"
"""Beginning of the hidden name that a run's folder has while it is removed."""
_DELETED = re.compile(rf"{re.escape(DELETED)}[0-9a-f]{{16}}", re.ASCII)
_FIRST = ("config.json", "meta.json", "metrics.jsonl")
"""Files by which a folder is known for a run; they go first."""
_LOCK = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 3
PATIENCE_SECONDS = 0.5
"""Longest wait for a lock of a run."""


def refusal(files: RunFiles) -> str | None:
    """Return why nothing is written into a folder, which may be another program's; None: it looks like a run."""
    if {"env_id", "algorithm"} <= table_in(files, "config.json").keys():
        return None
    return deletion_refusal(files)


def deletion_refusal(files: RunFiles) -> str | None:
    """Return why a folder is not deleted; None: it holds what only gossamer writes, at the start of every run."""
    config, meta = table_in(files, "config.json"), table_in(files, "meta.json")
    parts = (mapping(config.get(x)).get("name") for x in ("algorithm", "topology"))
    is_ours = "env_id" in config and all(isinstance(x, str) for x in parts)
    if is_ours or number(meta.get("started_unix")) is not None:
        return None
    return (
        "it holds neither a config.json nor a meta.json that gossamer has written, so it may be something else than a run; "
        "it stays as it is"
    )


def remove_run(root: Root, run: str, hiding: AbstractContextManager[object]) -> None:
    """Remove a run's folder with all that is in it. Links in it are removed, and not followed.

    The folder gets a hidden name first, in one step.

    Args:
        root: the folder of runs.
        run: its id.
        hiding: entered while the folder gets its hidden name, so that nobody writes a file into a folder that goes.

    Raises:
        ConfigError: the run is running, or is none, or its folder cannot be removed; one line says why.
    """
    if run == HERE:
        raise ConfigError(
            "it is the folder that is watched; watch the folder above it to delete it"
        )
    above, _, name = run.rpartition("/")
    try:
        with root.folder(above or HERE) as parent, root.folder(run) as handle:
            files = RunFiles(handle)
            if (problem := deletion_refusal(files)) is not None:
                raise ConfigError(problem)
            if below := root.runs_below(run):
                raise ConfigError(
                    f"it has other runs below it, such as {below[0]}; delete them first"
                )
            with _kept_from_training(handle):
                with hiding:
                    hidden = _hide(parent, name, handle)
                _remove(parent, hidden)
    except FileNotFoundError:
        raise ConfigError(GONE) from None
    except OSError as error:
        raise ConfigError(f"it cannot be deleted: {error.strerror}") from None


def remove_leftovers(root: Root) -> int:
    """Remove what is left of runs whose removal was cut short; return how many there were."""
    found = [(x, name) for x, name in root.find_hidden(DELETED) if _DELETED.fullmatch(name)]
    for above, name in found:
        with suppress(OSError, ConfigError), root.folder(above) as parent:
            _remove(parent, name)
    return len(found)


@contextmanager
def _kept_from_training(handle: int) -> Generator[None]:
    """Context in which no session of a run begins; ConfigError while one is there, or processes of one."""
    with ExitStack() as locks:
        for name in (LOCK, MEMBERS):
            try:
                lock = os.open(name, _LOCK, dir_fd=handle)
            except FileNotFoundError:  # it has never been trained here
                continue
            locks.callback(os.close, lock)
            if not _locked(lock):
                raise ConfigError("it is running; stop it first")
        yield


def _locked(handle: int) -> bool:
    """Lock a file if nobody else has it; whoever lists runs has it for an instant, to see if it is free."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.01)
        else:
            return True


def _hide(parent: int, name: str, handle: int) -> str:
    """Give a folder a hidden name beside its own, and return that name.

    Args:
        parent: descriptor of the folder that it is in.
        name: of the folder.
        handle: its descriptor; another folder that has got its name meanwhile keeps it.
    """
    hidden = f"{DELETED}{secrets.token_hex(8)}"
    os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    if not os.path.samestat(
        os.stat(hidden, dir_fd=parent, follow_symlinks=False), os.fstat(handle)
    ):
        os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
        raise ConfigError(
            "another folder has taken its name, and nothing was deleted; look at the run that is there now, and delete it "
            "again if you still want to"
        )
    sync_open_folder(parent)  # not to come back half removed after a power cut
    return hidden


def _remove(parent: int, hidden: str) -> None:
    """Remove a folder that has its hidden name; ConfigError if some of it stays."""
    problem = ""
    for _ in range(_TRIES):
        try:
            handle = os.open(hidden, FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            return
        try:
            for name in _FIRST:
                with suppress(OSError):
                    os.unlink(name, dir_fd=handle)
        finally:
            os.close(handle)
        try:
            shutil.rmtree(hidden, dir_fd=parent)
        except FileNotFoundError:  # another server removes leftovers too
            continue
        except OSError as error:
            problem = f"{error.strerror}"
            if error.errno == errno.ENOTEMPTY:  # somebody wrote a file meanwhile
                continue
            break
        return
    raise ConfigError(
        f"not all of its files could be removed: {problem}; the rest is in {hidden}, and is tried again at the next start of gossamer watch"
    )
