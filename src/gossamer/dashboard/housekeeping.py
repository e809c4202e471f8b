"""What the page changes in the folders of runs: it names, tags, notes, archives, restores and deletes them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gossamer.dashboard.removal import GONE, refusal, remove_run
from gossamer.errors import ConfigError
from gossamer.record.about import ABOUT, MAX_ABOUT_BYTES, About, about_bytes, about_of, changed

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterable, Mapping

    from gossamer.dashboard.root import Root, RunFiles

BULK_ACTS = ("archive", "restore", "delete")
"""What is done to several runs at once."""
_DONE = {
    "archive": "archived",
    "restore": "no longer archived",
    "delete": "deleted",
}


class Housekeeping:
    """Describes, archives, restores and deletes the runs of a folder; safe to ask from several threads.

    Args:
        root: the folder.
    """

    def __init__(self, root: Root):
        self._root = root
        self._lock = threading.Lock()

    def describe(self, run: str, given: Mapping[str, Any]) -> str:
        """Give a run a name, tags or a note, and say in one line so.

        Args:
            run: its id.
            given: some of name, tags and note.

        Raises:
            ConfigError: one of them cannot be kept, or the folder cannot be written.
        """
        with self._content(run) as (files, content):
            _write(files, content, changed(about_of(content), given), given)
        return f"the name, tags and note of {run} are kept"

    def do(self, act: str, runs: Iterable[str], there: Container[str]) -> str:
        """Archive, restore or delete runs; say in one line what was done.

        Args:
            act: one of BULK_ACTS.
            runs: their ids. Those that it cannot be done to keep nothing from the others.
            there: ids of all runs; no other name is ever looked up.

        Raises:
            ConfigError: it could not be done to one of them at least; one line says to how many, and why.
        """
        work: dict[str, Callable[[str], None]] = {
            "archive": lambda run: self._archive(run, archived=True),
            "restore": lambda run: self._archive(run, archived=False),
            "delete": lambda run: remove_run(self._root, run, self._lock),
        }
        done: list[str] = []
        problems: list[str] = []
        for run in runs:
            try:
                if run not in there:
                    raise ConfigError(GONE)
                work[act](run)
            except ConfigError as error:
                problems.append(f"{run}: {error}")
            else:
                done.append(run)
        name = _DONE[act]
        if not problems:
            return f"{done[0]} is {name}" if len(done) == 1 else f"{len(done)} runs are {name}"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        count = (
            f"{len(done)} of {len(done) + len(problems)} runs {'is' if len(done) == 1 else 'are'} {name}; "
            if done or more
            else ""
        )
        raise ConfigError(f"{count}{problems[0]}{more}")

    def _archive(self, run: str, *, archived: bool) -> None:
        with self._content(run) as (files, content):
            if archived and files.running:
                raise ConfigError("it is running; stop it first")
            about = replace(about_of(content), archived=archived)
            _write(files, content, about, ["archived"])

    @contextmanager
    def _content(self, run: str) -> Generator[tuple[RunFiles, dict[str, Any]]]:
        """Context with the files of a run and the content of the one that says something about it."""
        try:
            with self._lock, self._root.run(run) as files:
                if (problem := refusal(files)) is not None:
                    raise ConfigError(problem)
                yield files, files.json_to_change(ABOUT, MAX_ABOUT_BYTES)
        except FileNotFoundError:
            raise ConfigError(GONE) from None
        except OSError as error:
            raise ConfigError(f"{ABOUT} cannot be written: {error.strerror}") from None


def _write(files: RunFiles, content: Mapping[str, Any], about: About, names: Iterable[str]) -> None:
    """Write what is said about a run; `names` are the fields of it that are new."""
    if about == About() and content.keys() <= asdict(about).keys():
        files.remove(ABOUT)
    else:
        written = about_bytes(about, names, content)
        if len(written) > MAX_ABOUT_BYTES:  # it could not be read again
            raise ConfigError(
                f"{ABOUT} would be longer than {MAX_ABOUT_BYTES} bytes; shorten what else it holds"
            )
        files.write(ABOUT, written)
