"""Why a run ended, as data: its kind and its cause. Sentences are made of it for people, and nothing reads them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["done", "stopped", "failed"]
State = Literal["running", "done", "stopped", "failed", "killed"]
"""What a run is: it trains, or how it ended; one that ended without writing an exit was killed."""


ON_ROW = "on_row"
"""Cause of the end that a function asked for which `gossamer.train` was given."""


@dataclass(frozen=True)
class Exit:
    """How a run ended."""

    kind: Kind
    cause: str
    """The setting whose limit was reached; the signal that stopped it, "request", or `ON_ROW`; the headline of an error."""

    def __str__(self) -> str:
        """Return the sentence for people."""
        if self.kind == "done":
            return f"done: {self.cause} reached"
        return f"stopped by {self.cause}" if self.kind == "stopped" else f"failed: {self.cause}"


def exit_of(summary: Mapping[str, Any]) -> Exit | None:
    """Return how a run ended by its summary.json; None where that does not say.

    Args:
        summary: as it was read; anything may stand in it.
    """
    if "exit" not in summary:
        return _converted(summary.get("exit_reason"))
    told: Any = summary["exit"]
    try:
        kind, cause = told["kind"], told["cause"]
    except (KeyError, TypeError):
        return None
    return Exit(kind, cause) if kind in get_args(Kind) and isinstance(cause, str) else None


def state_of(summary: Mapping[str, Any], *, running: bool) -> State:
    """Return a run's state.

    Args:
        summary: of its last session that ended, as `exit_of` has it.
        running: whether a process holds its folder.
    """
    if running:
        return "running"
    ended = exit_of(summary)
    return "killed" if ended is None else ended.kind


def _converted(sentence: object) -> Exit | None:
    """Return the exit that a summary from before there were exits tells as a sentence."""
    if not isinstance(sentence, str):
        return None
    head, _, cause = sentence.partition(": ")
    if head == "done":
        return Exit("done", cause.removesuffix(" reached"))
    if head == "failed":
        return Exit("failed", cause)
    stopped = sentence.startswith("stopped by ")
    return Exit("stopped", sentence.removeprefix("stopped by ")) if stopped else None
