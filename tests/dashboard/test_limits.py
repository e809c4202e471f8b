"""What is said to limit a run: whom others wait for, and advice that fits its settings."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer.dashboard.limits import Busy, sentence

LOCK_STEP = {"share/learn": 0.6, "share/wait_learner": 0.3, "share/wait_actor": 0.7}
LEARNING = {"share/learn": 0.95, "share/wait_learner": 0.05, "share/wait_actor": 0.6}


def config(algorithm: str, num_learners: int = 1, passes: int = 3) -> dict[str, Any]:
    chosen = {"name": algorithm, "passes": passes}
    return {"algorithm": chosen, "num_learners": num_learners, "placement": "local"}


HALF, ALL, CROWDED = Busy(2, 1.0, 0.0), Busy(2, 1.8, 0.0), Busy(2, 0.9, 1.0)
TURNS = "Acting and learning take turns. Overlap them: --lag 1"


@pytest.mark.parametrize(
    ("shares", "settings", "cores", "says"),
    [
        (LOCK_STEP, config("ppo"), HALF, f"{TURNS}; the run uses 1.0 of 2 cores"),
        (LOCK_STEP, config("ppo"), ALL, TURNS),
        (LOCK_STEP, config("a2c"), HALF, f"{TURNS} with algorithm:vtrace, as a2c does not"),
        (LEARNING, config("ppo"), HALF, "the run uses 1.0 of 2 cores: several learners"),
        (LEARNING, config("ppo", 2), HALF, "cores: more --learner-threads if the network is large"),
        (LEARNING, config("ppo"), ALL, "with more cores, several learners"),
        (LEARNING, config("ppo"), CROWDED, "the run uses 0.9 of 2 cores, other programs 1.0"),
        (LEARNING, config("ppo"), ALL, "try fewer --algorithm.passes"),
        (LEARNING, config("ppo", passes=1), ALL, "try a smaller network"),
        ({}, config("ppo"), None, "not known yet"),
    ],
)
def test_advice_fits_the_run(
    shares: dict[str, float], settings: dict[str, Any], cores: Busy | None, says: str
) -> None:
    told = sentence(shares, settings, cores)
    assert says in told
    assert "idle" not in told, "what others use is not idle"
