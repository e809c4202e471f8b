"""What is said to limit a run: whom others wait for, and advice that fits its settings."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer.dashboard.limits import sentence

LOCK_STEP = {"share/learn": 0.6, "share/wait_learner": 0.3, "share/wait_actor": 0.7}
LEARNING = {"share/learn": 0.95, "share/wait_learner": 0.05, "share/wait_actor": 0.6}


def config(algorithm: str, num_learners: int = 1) -> dict[str, Any]:
    return {"algorithm": {"name": algorithm}, "num_learners": num_learners, "placement": "local"}


@pytest.mark.parametrize(
    ("shares", "settings", "used", "says"),
    [
        (LOCK_STEP, config("ppo"), 0.5, "try --lag 1, or fewer passes"),
        (LOCK_STEP, config("a2c"), 0.5, "try --lag 1 with algorithm:vtrace, as a2c does not"),
        (LOCK_STEP, config("ppo"), 0.5, "; 50% of the cores are idle"),
        (LEARNING, config("ppo"), 0.5, "50% of the cores are idle: several learners"),
        (LEARNING, config("ppo", 2), 0.5, "idle: more --learner-threads if the network is large"),
        (LEARNING, config("ppo"), 0.9, "with more cores, several learners"),
        ({}, config("ppo"), None, "not known yet"),
    ],
)
def test_advice_fits_the_run(
    shares: dict[str, float], settings: dict[str, Any], used: float | None, says: str
) -> None:
    assert says in sentence(shares, settings, used)
