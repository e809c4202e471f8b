"""Settings files: TOML and JSON read from paths, presets and suite defaults read from the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gossamer.config.merging import Layer
from gossamer.config.names import nested
from gossamer.config.suggestions import did_you_mean
from gossamer.errors import ConfigError
from gossamer.system.reading import expand, parse_json, parse_toml, quoted, read_plain

if TYPE_CHECKING:
    from gossamer.config.tree import Tree

_PRESETS = Path(__file__).parents[1] / "presets"
_OF_ELITE_PLATFORM = {
    "environment_max_steps",
    "envs_per_worker",
    "op_mode",
    "r_f_steps",
    "replay_parameters",
    "worker_count",
}
"""Flags by which a file of the elite replay platform is known."""


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names that `--config` knows."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def preset_summary(name: str) -> str:
    """Return the first line of a preset's leading comment."""
    with (_PRESETS / f"{name}.toml").open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def is_config_name(word: str) -> bool:
    """Whether a word can only be meant as a preset or a settings file."""
    return word in preset_names() or word.endswith((".toml", ".json"))


def suite_layer(suite: str, algorithm: str | None = None, *, on_gpu: bool = False) -> Layer:
    """Return a suite's defaults with an algorithm, or with its own.

    Args:
        suite: its name; its file has what belongs to one algorithm in a table `for`, and what a GPU has instead in a table `on_gpu`.
        algorithm: its name; None: the suite's own.
        on_gpu: whether the run computes on a GPU.
    """
    label = f"suite {suite}"
    settings = dict(_parse(_PRESETS / "suite" / f"{suite}.toml", label))
    with_algorithm, with_gpu = settings.pop("for", {}), settings.pop("on_gpu", {})
    name = algorithm or settings["algorithm"]["name"]
    merged = nested(with_algorithm.get(name, {}), below=settings)
    return Layer(label, nested(with_gpu.get(name, {}), below=merged) if on_gpu else merged)


def config_layer(name: str, label: str = "") -> Layer:
    """Read what `--config NAME` names: a .toml or .json file, or a preset.

    Args:
        name: of the file or preset.
        label: what it is called in messages; empty: by that option.
    """
    label = label or f"--config {name}"
    path = expand(name)
    if path.suffix in (".toml", ".json"):
        return Layer(label, _parse(path, label))
    if name in preset_names():
        return Layer(label, _parse(_PRESETS / f"{name}.toml", label))
    if (path / "config.json").is_file():
        raise ConfigError(
            f"{label}: the folder of a run, whose settings are in {path / 'config.json'}; --resume continues the run"
        )
    if path.exists() or len(path.parts) > 1:
        raise ConfigError(
            f"{label}: not a .toml or .json file, nor a preset; gossamer list has them"
        )
    hint = did_you_mean(name, preset_names(), f"; presets: {', '.join(preset_names())}")
    raise ConfigError(f"{label}: no such preset (a file ends in .toml or .json){hint}")


def _parse(path: Path, label: str) -> Tree:
    try:
        content = read_plain(path)
    except FileNotFoundError:
        raise ConfigError(f"{label}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{label}: cannot be read: {reason}") from None
    try:
        text = content.decode("utf-8-sig")  # editors of Windows write a mark in front
        held: Any = parse_json(text, _unique) if path.suffix == ".json" else parse_toml(text)
    except ValueError as error:
        kind, first = path.suffix[1:].upper(), str(error).splitlines()[0]
        raise ConfigError(f"{label}: not valid {kind}: {first}") from None
    if path.suffix == ".json" and _is_of_elite_platform(held):
        raise ConfigError(
            f"{label}: holds experiments of the elite replay platform; {how_to_translate(path)}"
        )
    if not isinstance(held, dict):
        raise ConfigError(f'{label}: must hold an object of settings, for example {{"seed": 1}}')
    return cast("Tree", held)


def _unique(pairs: list[tuple[str, Any]]) -> Tree:
    """Return an object of a JSON file, in which no name stands twice."""
    names = [name for name, _ in pairs]
    if again := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"{again[0]} is given twice")
    return dict(pairs)


def how_to_translate(path: Path) -> str:
    """Say what makes a file of ours from experiments of the elite replay platform."""
    new = path.with_suffix(".toml").name
    return (
        "in gossamer's repository type: python scripts/from_elite_platform.py "
        f"{quoted(path)} --output {quoted(new)}"
    )


def _is_of_elite_platform(held: Any) -> bool:
    """Whether a file holds flags of the platform, in one object or in a list of them."""
    for one in cast("list[Any]", held) if isinstance(held, list) else [held]:
        if isinstance(one, dict):
            typed = cast("Tree", one).items()
            flags = {str(name).lstrip("-").replace("-", "_"): value for name, value in typed}
            # Ours are never a list, and have no hyphens in front.
            theirs = isinstance(held, list) or any(str(name).startswith("--") for name in one)
            if flags.keys() & _OF_ELITE_PLATFORM or (theirs and isinstance(flags.get("env"), str)):
                return True
    return False
