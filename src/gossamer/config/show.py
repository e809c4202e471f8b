"""A config as text: every setting, its value and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.config.tree import flatten, to_tree
from gossamer.config.values import spell, spell_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.config.train_config import TrainConfig


def show_config(config: TrainConfig, layers: Mapping[str, str]) -> str:
    """Return every setting, its value and which layer set it, as TOML that --config can read."""
    settings = flatten(to_tree(config))
    rows = [(f"{spell_name(name)} = {spell(value)}", layers[name]) for name, value in settings]
    width = max(len(left) for left, _ in rows if len(left) <= 60)
    return "\n".join(f"{left:<{width}}  # {label}" for left, label in rows)
