"""Observations of several arrays as networks are given them, drawn from a fixed seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gossamer.policies.actor_critic import ActorCritic
from gossamer.spec import Leaf, Obs, leaves_of


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def draw(leaf: Leaf, rows: int, columns: int, rng: np.random.Generator) -> torch.Tensor:
    shape = (rows, columns, *leaf.shape)
    if leaf.kind == "pixels":
        return torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))
    if leaf.kind == "discrete":
        return torch.from_numpy(rng.integers(0, leaf.sizes, shape))
    return torch.from_numpy(rng.normal(3.0, 2.0, size=shape).astype(np.float32))


def observe(leaves: tuple[Leaf, ...], rows: int = 3, columns: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {leaf.name: draw(leaf, rows, columns, rng) for leaf in leaves}


def ask(policy: ActorCritic, obs: Obs[torch.Tensor]) -> Any:
    rows, columns = next(iter(leaves_of(obs).values())).shape[:2]
    starts = torch.zeros((rows, columns), dtype=torch.bool)
    return policy(obs, starts, policy.initial_state(columns))
