"""What settings mean: the text of `gossamer train --help-all`, for the kinds of parts that a run has."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from gossamer.config.names import ANY
from gossamer.dashboard.values import word
from gossamer.system.reading import listed, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping


def meanings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return by dotted name what a run's settings mean; settings of another version have none.

    Args:
        config: as config.json holds it.
    """
    told = _told()
    found = dict(told["run"][1])
    for section, (intro, rows) in told.items():
        if section == "run" or ":" in section:
            continue
        value = config.get(section)
        if not isinstance(value, list):
            kind = word(mapping(value).get("name", ""))
            found |= {**rows, **_of_kind(section, kind, intro)}
            if section == "policy":
                found |= _of_encoders(mapping(mapping(value).get("encoders")), rows)
            continue
        for i, entry in enumerate(listed(value)):
            kind = word(mapping(entry).get("name", ""))
            # Settings that all kinds of an entry have are told once, those of one kind with it.
            named = {**rows, **_of_kind(section, kind, intro)}
            found |= {re.sub(r"\.\d+\.", f".{i}.", x, count=1): text for x, text in named.items()}
    return found


def _of_encoders(encoders: Mapping[str, Any], rows: Mapping[str, str]) -> dict[str, str]:
    """Return what the settings of each leaf's layers mean, which one row tells together."""
    from gossamer.config.help import field_docs  # as below
    from gossamer.config.train_config import TrainConfig
    from gossamer.config.tree import find_annotation

    (row,) = (x for x in rows if x.endswith(f".{ANY}"))
    section: Any = find_annotation(TrainConfig, row)
    told = {**field_docs(section), "name": rows[row]}
    return {
        f"{row.removesuffix(ANY)}{leaf}.{setting}": text
        for leaf in encoders
        for setting, text in told.items()
    }


def _of_kind(section: str, kind: str, intro: str) -> dict[str, str]:
    """Return what the settings of one kind of a section mean, its name among them."""
    what, rows = _told().get(f"{section}:{kind}", ("", {}))
    if not what:
        return rows
    name = f"{section}.0.name" if section == "replays" else f"{section}.name"
    choice = f" {intro.partition(';')[0]}." if intro.startswith("Choose") else ""
    return {**rows, name: f"{kind}: {what}{choice}"}


@functools.cache
def _told() -> dict[str, tuple[str, dict[str, str]]]:
    """Return by title of a group of settings what the group is, and by name what each setting means."""
    # A list of runs needs none of it, and it is read from the source files of every part.
    from gossamer.config.help import setting_groups

    return {
        group.title: (group.intro, {row.name: row.meaning for row in group.rows})
        for group in setting_groups()
    }
