"""Views of the page that were saved under a name: kept in one file in the folder that is watched, for whoever opens the page."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gossamer.dashboard.root import HERE
from gossamer.errors import ConfigError
from gossamer.record.readers import table_in
from gossamer.system.reading import listed, mapping, visible

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from gossamer.dashboard.root import Root

VIEWS = "views.json"
MAX_VIEWS, MAX_NAME_CHARS, MAX_ADDRESS_CHARS = 100, 100, 5_000
"""Views, characters of a name, characters of an address."""
BEGINS = "#/"
"""Beginning of every address within the page."""
View = dict[str, str]


class Views:
    """The saved views of a folder; safe to ask from several threads.

    Args:
        root: the folder.
    """

    def __init__(self, root: Root):
        self._root = root
        self._lock = threading.Lock()

    def all(self) -> list[View]:
        """Return all views, name and address of each, by their names; none where the file is missing or damaged."""
        try:
            with self._root.run(HERE) as files:
                return _views_of(table_in(files, VIEWS))
        except OSError:
            return []

    def save(self, name: Any, address: Any) -> str:
        """Keep an address under a name, in place of the one that was kept under it, and say in one line so.

        Raises:
            ConfigError: one of the two cannot be kept, there are too many views, or the folder cannot be written.
        """
        name, address = _name(name), _address(address)
        with self._changed() as views:
            others = [view for view in views if view["name"] != name]
            if len(others) >= MAX_VIEWS:
                raise ConfigError(
                    f"there are {len(others)} views, and no more are kept; delete one first"
                )
            views[:] = [*others, {"name": name, "address": address}]
        return f"the view {name} is saved"

    def delete(self, name: Any) -> str:
        """Forget a view and say in one line so; ConfigError if there is none of that name."""
        name = _name(name)
        with self._changed() as views:
            others = [view for view in views if view["name"] != name]
            if len(others) == len(views):
                raise ConfigError(f"there is no view {name} any more")
            views[:] = others
        return f"the view {name} is deleted"

    @contextmanager
    def _changed(self) -> Generator[list[View]]:
        """Context with all views, which are written afterwards."""
        try:
            with self._lock, self._root.run(HERE) as files:
                views = _views_of(files.json_to_change(VIEWS))
                yield views
                content = {"views": sorted(views, key=_order)}
                files.write(VIEWS, json.dumps(content, indent=1).encode() + b"\n")
        except FileNotFoundError:
            raise ConfigError(
                "the folder that is watched does not exist yet; train a run first"
            ) from None
        except OSError as error:
            raise ConfigError(f"{VIEWS} cannot be written: {error.strerror}") from None


def _views_of(content: Mapping[str, Any]) -> list[View]:
    """Return the views that a file holds, whoever has written it; what is none is left out."""
    found: dict[str, View] = {}
    for each in map(mapping, listed(content.get("views"))[:MAX_VIEWS]):
        try:
            view = {"name": _name(each.get("name")), "address": _address(each.get("address"))}
        except ConfigError:
            continue
        found[view["name"]] = view
    return sorted(found.values(), key=_order)


def _order(view: View) -> tuple[str, str]:
    return view["name"].casefold(), view["name"]


def _name(given: Any) -> str:
    typed = " ".join(given.split()) if isinstance(given, str) else ""
    name = visible(typed)
    if not 0 < len(name) <= MAX_NAME_CHARS:
        how = ", unprintable ones spelt out" if name != typed else ""
        raise ConfigError(
            f"a view's name has 1 to {MAX_NAME_CHARS} characters, not {len(name)}{how}"
        )
    return name


def _address(given: Any) -> str:
    # Nothing but a place within the page: a link to it leads nowhere else, and runs nothing.
    if not isinstance(given, str) or not given.startswith(BEGINS):
        raise ConfigError(f"a view's address begins with {BEGINS}")
    if len(given) > MAX_ADDRESS_CHARS:
        raise ConfigError(
            f"the address of this view has {len(given)} characters; at most {MAX_ADDRESS_CHARS} are kept: show fewer runs, or groups of them"
        )
    if not given.isprintable():
        raise ConfigError("a view's address holds characters that no address can have")
    return given
