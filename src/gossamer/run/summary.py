"""Summary of a run that has ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.record.checkpoint import Score
    from gossamer.record.exits import Exit


def summary_of(
    *,
    env_steps: int,
    updates: int,
    restarts: int,
    seconds: float,
    steps_per_second: float | None,
    mean_return: float | None,
    best: Score | None,
    candidate: Score | None,
    best_learner: int | None,
    ended: Exit | None,
) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "env_steps": env_steps,
        "updates": updates,
        "restarts": restarts,
        "seconds": round(seconds, 3),
        "steps_per_second": steps_per_second,
        "mean_return_last_100": mean_return,
        "best_evaluation": None if best is None else best.mean,
        "best_evaluation_episodes": None if best is None else best.episodes,
        "candidate_evaluation": None if candidate is None else candidate.mean,
        "best_learner": best_learner,
        "exit_reason": "" if ended is None else str(ended),
        "exit": None if ended is None else asdict(ended),
    }
