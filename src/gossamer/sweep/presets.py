"""Settings written as a preset: a TOML file that `gossamer train --config FILE` takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from gossamer.config import resolve, to_dict
from gossamer.config.machine_layers import ONE_HERE
from gossamer.config.names import place
from gossamer.config.tree import flatten
from gossamer.config.values import spell, spell_name
from gossamer.errors import ConfigError
from gossamer.record.folder import RunFolder
from gossamer.system.reading import expand, parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gossamer.config import TrainConfig

OF_THE_RUN = ("seed", "run_folder")
"""Settings that a preset does not hold: every run has its own."""


def refuse_moving(source: str) -> None:
    """Refuse an `init_from` that is no path: it may mean another run once the first of several has begun.

    Args:
        source: "last", part of a path, or a path, as `init_from` has it.

    Raises:
        ConfigError: it is no path of a run.
    """
    found = RunFolder.open(source)
    if expand(source).resolve() != found.path.resolve():
        raise ConfigError(
            f"init_from {source} may mean another run once the first of these runs has begun; name the run by its path: "
            f"{found.shown}"
        )


def preset_of(settings: Mapping[str, Any], configs: Sequence[str] = ()) -> tuple[str, TrainConfig]:
    """Return settings over files as the text of a preset and as a config.

    The text holds the settings that they set and no defaults, so that those of another machine or environment stay as they are.

    Args:
        settings: nested.
        configs: files and presets below them.

    Raises:
        ConfigError: a mistake in the settings.
    """
    config, origin = resolve(given=settings, configs=configs, machine="")
    return as_preset(config, origin), config


def as_preset(config: TrainConfig, origin: Mapping[str, str]) -> str:
    """Return the text of a preset of the settings that were set, given the layer that set each of them."""
    everything = to_dict(config)
    asked = {x for x, layer in origin.items() if not layer.startswith(("default", "suite "))}
    if origin["num_learners"].endswith(ONE_HERE):  # elsewhere the machine would decide on more
        asked.add("num_learners")
    asked -= set(OF_THE_RUN)
    tree: dict[str, Any] = {}
    for name, value in flatten(everything):
        if name in asked and not name.startswith("replays."):
            place(tree, name, value)
    if any(name.partition(".")[0] == "replays" for name in asked):
        tree["replays"] = everything["replays"]
    text = toml_of(tree)
    if resolve(given=parse_toml(text), machine="")[0] != replace(config, seed=1, run_folder=""):
        # What a layer of its own decides, by being one: everything then.
        text = toml_of({x: y for x, y in everything.items() if x not in OF_THE_RUN})
    return text


def toml_of(tree: Mapping[str, Any]) -> str:
    """Return nested settings as TOML, None as "none"."""
    return "\n".join(_lines(tree)) + "\n"


def _lines(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield plain values, then tables, then lists of tables."""
    tables = {x: y for x, y in tree.items() if isinstance(y, dict)}
    lists = {x: y for x, y in tree.items() if _holds_tables(y)}
    for name, value in tree.items():
        if name not in tables and name not in lists:
            yield f"{spell_name(name)} = {spell(value)}"
    for name, table in tables.items():
        yield ""
        below = f"{path}{spell_name(name)}"
        yield f"[{below}]"
        yield from _lines(cast("Mapping[str, Any]", table), f"{below}.")
    for name, entries in lists.items():
        for entry in cast("list[Mapping[str, Any]]", entries):
            yield ""
            yield f"[[{path}{name}]]"
            yield from _lines(entry, f"{path}{name}.")


def _holds_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
