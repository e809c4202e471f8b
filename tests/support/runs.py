"""Tiny runs, and what two of them have in common."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from gossamer.config import TrainConfig, make_config
from gossamer.record.checkpoint import CheckpointStore

SMALL_ATARI: dict[str, Any] = {
    "num_envs": 4,
    "unroll_length": 8,
    "policy": {"fc_size": 32, "normalize_steps": 64},
    "checkpoint_every_seconds": 0.0,
    "evaluation": {"every_seconds": 0.0},
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


def returns_of(folder: Path) -> list[tuple[int, float, int]]:
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return [(row["env"], row["return"], row["length"]) for row in rows]


def assert_same(one: Path, other: Path) -> None:
    a, b = state_of(one), state_of(other)
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
    assert returns_of(one) == returns_of(other)
