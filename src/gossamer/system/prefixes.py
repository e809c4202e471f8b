"""Names of tensors and counters that begin alike, as those of one part of a state do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def without_prefix(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return what names begin with a prefix, without it."""
    return {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}
