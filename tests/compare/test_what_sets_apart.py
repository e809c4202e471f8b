"""Which settings set runs apart, and which leave them seeds of one thing."""

from __future__ import annotations

import pytest

from gossamer.compare.grouping import group_by_settings


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("seed", False),
        ("env.task_seed", False),
        ("evaluation.every_seconds", False),
        ("cluster.cpus_per_learner", False),
        ("checkpoint_every_seconds", False),
        ("tensorboard", False),
        ("env.frame_stack", True),
        ("num_envs", True),
        ("total_env_steps", True),
        ("optimizer.learning_rate", True),
    ],
)
def test_what_changes_how_a_run_learns_sets_it_apart_and_nothing_else(
    name: str, apart: bool
) -> None:
    runs = [{"env_id": "CartPole-v1", name: value} for value in (1, 2)]
    assert len(group_by_settings(runs).members) == (2 if apart else 1)
