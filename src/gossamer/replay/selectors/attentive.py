"""Attentive replay: columns similar to the newest state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gossamer.replay.selectors.elite import EliteSettings


@dataclass(frozen=True)
class AttentiveSettings(EliteSettings):
    """Like elite, but keeps columns similar to the newest state: attentive experience replay (Sun et al. 2020)."""

    name: ClassVar[str] = "attentive"
    compares_with: ClassVar[Literal["stored", "newest"]] = "newest"

    strategy: Literal["nearest", "stratified", "least_used", "stratified_least_used"] = "nearest"
    """Which of the drawn columns (candidates) are kept. nearest: those with the smallest distances, as published.
    least_used: those sampled least often, among equally used ones the nearest. stratified, stratified_least_used:
    candidates are sorted by distance and cut into one segment per column needed, and each segment's nearest or least
    used candidate is kept."""
