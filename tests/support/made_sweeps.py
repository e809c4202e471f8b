"""Folders of sweeps as a sweep leaves them, with scores that a test chooses."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scored_runs import make_run

if TYPE_CHECKING:
    from collections.abc import Generator

SEARCH: dict[str, Any] = {
    "optimizer.learning_rate": {"min": 1e-5, "max": 1e-2, "log": True},
    "algorithm": {"entropy_cost": [0.0, 0.01]},
    "algorithm.passes": {"min": 1, "max": 8},
    "policy.activation": ["tanh", "relu"],
}
"""As the file of a sweep may have it: dotted names and tables mean the same."""


def make_sweep(
    root: Path,
    name: str = "sweeps/rates",
    *,
    search: Mapping[str, Any] | None = None,
    trials: int = 4,
    objective: Sequence[str] = ("return",),
    **others: Any,
) -> Path:
    """Write the folder of a sweep that has no trial yet."""
    folder = root / name
    folder.mkdir(parents=True)
    asked = {"method": "random", "seeds": 1, "objective": objective, "score": None, "search": SEARCH if search is None else search}  # fmt: skip
    manifest = {"file": f"{folder.name}.toml", "trials": trials, "sweep": asked | others}
    (folder / "sweep.json").write_text(json.dumps(manifest))
    return folder


def chosen_of(number: int) -> dict[str, Any]:
    """Return the settings that trial `number` of a made-up sweep tries."""
    return {
        "optimizer.learning_rate": 1e-5 * 10 ** (number / 2),
        "algorithm.entropy_cost": (0.0, 0.01)[number % 2],
        "algorithm.passes": 1 + number % 8,
        "policy.activation": ("tanh", "relu")[number // 2 % 2],
    }


def add_trial(
    sweep: Path,
    number: int,
    scores: Sequence[float],
    *,
    chosen: Mapping[str, Any] | None = None,
    pruned: bool = False,
    done: bool = True,
    **of_run: Any,
) -> list[Path]:
    """Write a trial with a run for each score, which is what the run's last episodes have returned on average."""
    folder = sweep / f"{number:03d}"
    folder.mkdir()
    told = chosen_of(number) if chosen is None else chosen
    record = {"number": number, "chosen": told, "study_number": None, "pruned": pruned}
    (folder / "trial.json").write_text(json.dumps(record))
    runs: list[Path] = []
    for seed, score in enumerate(scores, start=1):
        run = make_run(
            folder, f"s{seed}", seed=seed, returns=(score / 2, score), done=done, **of_run
        )
        if done:
            summary = {
                "exit_reason": "done: total_env_steps reached",
                "mean_return_last_100": score,
            }
            (run / "summary.json").write_text(json.dumps(summary))
        runs.append(run)
    return runs


@contextmanager
def working(folder: Path) -> Generator[None]:
    """Context in which a folder is locked, as by the sweep or the run that works there."""
    with (folder / ".lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
