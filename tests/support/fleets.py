"""Tiny runs of several learners in processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runs import SMALL

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
