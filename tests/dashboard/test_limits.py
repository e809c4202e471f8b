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


HALF, ALL, CROWDED = Busy(2, 1.0, 0.0, 2), Busy(2, 1.8, 0.0, 2), Busy(2, 0.9, 1.0, 2)
SHARED, ONE = Busy(64, 0.9, 0.0, 1), Busy(1, 0.7, 0.2, 1)
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
        (
            LEARNING,
            config("ppo"),
            CROWDED,
            "Other programs, or runs, keep this machine busy: the run uses 0.9 of 2 cores, other programs 1.0. ",
        ),
        (LEARNING, config("ppo"), ALL, "try fewer --algorithm.passes"),
        (LEARNING, config("ppo", passes=1), ALL, "try a smaller network"),
        (LEARNING, config("ppo", 2), SHARED, "or a GPU"),  # idle cores that it may not use
        (LOCK_STEP, config("ppo"), SHARED, "as they must on one core"),
        (
            LOCK_STEP,
            config("ppo"),
            Busy(2, 0.9, 1.0, 1),
            "other programs 1.0. Acting and learning take turns, as they must",
        ),
        (LEARNING, config("ppo"), ONE, "the run uses 0.7 of 1 core, other programs 0.2"),
        (LOCK_STEP, config("ppo") | {"lag": "1"}, ALL, "wait for each other: the learner 30%"),
        (LOCK_STEP, config("ppo") | {"lag": "free"}, ALL, "Actor-bound"),
        ({}, config("ppo"), None, "Not known yet"),
    ],
)
def test_advice_fits_the_run(
    shares: dict[str, float], settings: dict[str, Any], cores: Busy | None, says: str
) -> None:
    told = sentence(shares, settings, cores)
    assert says in told
    assert "idle" not in told, "what others use is not idle"
    assert told[0].isupper()


def test_a_run_that_ended_early_will_tell_no_more() -> None:
    told = sentence({}, config("ppo"), ended=True)
    assert told.startswith("Not known: ")
    assert "yet" not in told
    assert "the run ended" in told
