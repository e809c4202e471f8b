"""Tiny runs of several learners in processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runs import SMALL, assert_same

from gossamer.config import TrainConfig, make_config

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"name": "allreduce"},
    "gossip in step": {"name": "gossip", "max_staleness": 0},
    "diffusion": {"name": "diffusion", "adjacency": "complete", "link_drop": 0.3},
    "diffusion once a version": {"name": "diffusion", "every": "versions"},
}


def config(folder: Path, topology: dict[str, Any], steps: int, **settings: Any) -> TrainConfig:
    given = {
        **SMALL,
        "num_learners": 3,
        "topology": topology,
        "learner_threads": 1,
        "run_folder": str(folder),
        "total_env_steps": steps,
        **settings,
    }
    return make_config("CartPole-v1", given)


def _order(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["learner"], row["env"], row["env_steps"]


def assert_same_rows(one: Path, other: Path) -> None:
    """Processes tell their episodes in any order."""
    for folder in (one, other):
        path = folder / "episodes.jsonl"
        lines = sorted(path.read_text().splitlines(), key=lambda x: _order(json.loads(x)))
        path.write_text("\n".join(lines) + "\n")
    assert_same(one, other)


def pids_of(folder: Path) -> list[int]:
    try:
        rows = json.loads((folder / "processes.json").read_text())
    except (OSError, ValueError):
        return []
    return [row["pid"] for row in rows if row["role"] == "learner"]
