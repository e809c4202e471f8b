"""Tiny runs, what they leave behind, and what two of them have in common."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from gossamer.config import TrainConfig, make_config
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.train import train

SMALL_ATARI: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 8,
    "policy": {"fc_size": 32, "normalize_steps": 64},
    "checkpoint_every_seconds": 0.0,
    "evaluation": {"every_seconds": 0.0},
    "algorithm": {"ppo": {"passes": 2, "num_minibatches": 2}},
}


SMALL: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 16,
    "checkpoint_every_seconds": 0.0,
    "evaluation": {"every_seconds": 0.0},
    "optimizer": {"schedule": "constant"},
    # The suite's 40 steps of the optimizer for each batch take long.
    "algorithm": {"ppo": {"passes": 2, "num_minibatches": 2}},
}


def config(env_id: str, folder: Path, steps: int, **settings: Any) -> TrainConfig:
    atari = "NoFrameskip" in env_id
    base = make_config(env_id, SMALL_ATARI if atari else SMALL)
    optimizer = dataclasses.replace(base.optimizer, schedule="constant", learn_start=0)
    return dataclasses.replace(
        base, run_folder=str(folder), total_env_steps=steps, optimizer=optimizer, **settings
    )


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return CheckpointStore(folder / "checkpoints", 0).load("last").tensors


def rows_of(folder: Path, name: str = "metrics") -> list[dict[str, Any]]:
    """Return the rows of metrics, episodes or evaluations so far, all but one that is being written."""
    path = folder / f"{name}.jsonl"
    written, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
    return [json.loads(line) for line in written.splitlines()]


def processes_of(folder: Path, role: str) -> list[dict[str, Any]]:
    """Return what is told of the processes of a role; nothing before there are any."""
    path = folder / "processes.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    return [row for row in rows if row["role"] == role]


def pids_of(folder: Path, role: str = "learner") -> list[int]:
    return [row["pid"] for row in processes_of(folder, role)]


def log_of(folder: Path) -> list[str]:
    """Return the lines of the log without the times before them."""
    return [line[20:] for line in (folder / "log.txt").read_text().splitlines()]


def returns_of(folder: Path) -> list[tuple[int, float, int]]:
    return [(row["env"], row["return"], row["length"]) for row in rows_of(folder, "episodes")]


def assert_same_state(one: Path, other: Path) -> None:
    a, b = state_of(one), state_of(other)
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


def assert_same(one: Path, other: Path, *, ordered: bool = True) -> None:
    """Check that two runs have learnt the same, to the bit, from the same episodes.

    Args:
        one: a run's folder.
        other: another's.
        ordered: environments end their episodes in the same order, too; those of several processes tell them in any.
    """
    assert_same_state(one, other)
    told = [returns_of(folder) for folder in (one, other)]
    if not ordered:
        for episodes in told:
            episodes.sort(key=lambda episode: episode[0])
    assert told[0] == told[1]


def assert_resumes(whole: TrainConfig, parts: TrainConfig, first: int, **how: Any) -> None:
    """Check that a run that stops and goes on ends as one that was never stopped.

    Args:
        whole: is never stopped; where it has no processes, processes are compared with none too.
        parts: the same in another folder.
        first: env steps at which it stops.
        how: of `assert_same`.
    """
    train(whole, quiet=True)
    train(dataclasses.replace(parts, total_env_steps=first), quiet=True)
    train(parts, resume=parts.run_folder, quiet=True)
    assert_same(Path(whole.run_folder), Path(parts.run_folder), **how)
