"""What an export's check refuses, whoever has made the file, and the scores that a card tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gossamer.errors import RunFailed
from gossamer.export.card import model_card
from gossamer.export.recording import Arrays, Recording, check
from gossamer.roles.evaluation import Evaluation

T, B = 5, 3


def recording() -> Recording:
    """Steps of a policy with one number of recurrent state, whose value is the sum of what it saw in the episode."""
    obs = np.arange(T * B, dtype=np.float32).reshape(T, B, 1)
    start = np.zeros((T, B), bool)
    start[0] = True  # one episode, longer than what is recorded
    total = np.cumsum(obs, axis=0, dtype=np.float32)
    params = np.zeros((T, B, 2), np.float32)
    real = np.zeros((T, B, 1), np.float32)
    outputs = {"action": real, "value": total[..., 0], "action_params": params, "next_state": total}
    return Recording({"obs": obs, "start": start}, {**outputs, "next_last_action": real}, {})


def right(inputs: Arrays) -> Arrays:
    kept = np.where(inputs["start"][:, None], np.float32(0), inputs["state"])
    return answer(inputs, kept)


def answer(inputs: Arrays, kept: Any) -> Arrays:
    total = kept + inputs["obs"]
    b = len(total)
    zeros: Arrays = {"action": np.zeros((b, 1), np.float32), "action_params": np.zeros((b, 2), np.float32)}  # fmt: skip
    return {**zeros, "value": total[:, 0], "next_state": total}


GIVEN = {"obs": None, "start": None, "state": None}


def test_a_file_that_answers_alike_is_taken() -> None:
    agreement = check(right, GIVEN, recording())
    assert agreement.steps == T * B + T
    assert max(agreement.largest.values()) == 0.0


@pytest.mark.parametrize("output", ["action", "value", "action_params", "next_state"])
def test_a_file_that_answers_with_no_number_is_refused(output: str) -> None:
    def broken(inputs: Arrays) -> Arrays:
        said = right(inputs)
        said[output] = np.where(inputs["obs"][:, :1].reshape(-1, *[1] * (said[output].ndim - 1)) == 4.0, np.float32("nan"), said[output])  # fmt: skip
        return said

    with pytest.raises(RunFailed, match=f"{output} at step 2 is off by nan"):
        check(broken, GIVEN, recording())


def test_a_file_that_forgets_nothing_at_an_episode_s_start_is_refused() -> None:
    """Also where none of the recorded episodes ends: whoever plays a second one would find out."""

    def keeps(inputs: Arrays) -> Arrays:
        return answer(inputs, inputs["state"])

    with pytest.raises(RunFailed, match="at step 1 is off"):
        check(keeps, GIVEN, recording())


def test_a_card_tells_the_scores_of_its_episodes() -> None:
    made = {"make": "gymnasium.make", "arguments": {"id": "Any-v0", "max_episode_steps": 9}}
    run = {
        "name": "r", "algorithm": "ppo", "topology": "single", "seed": 4, "num_learners": 1, "checkpoint": "best",
        "learner": None, "absent_learners": [], "updates": 7, "env_steps": 1_234, "best_evaluation": None,
    }  # fmt: skip
    description = {
        "env_id": "Any-v0", "gossamer": "1", "protocol": "any", "environment": made, "inputs": {"obs": {}}, "run": run,
    }  # fmt: skip
    held_out = Evaluation((5.0, 7.0), (1, 1), truncated=0)
    scores = Evaluation((10.0, 20.0, 60.0, 30.0), (1, 2, 3, 4), truncated=2, held_out=held_out)
    card = model_card(description, {}, scores, seed=3, video=False)
    lines = card.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| episodes | seed |"))
    names, own, other = (
        [x.strip() for x in lines[at + i].strip("|").split("|")] for i in (0, 2, 3)
    )
    assert dict(zip(names, own, strict=True)) == {
        "episodes": "4",
        "seed": "3",
        "mean return": "30",
        "standard error": f"{np.std(scores.returns, ddof=1) / 2:.4g}",
        "standard deviation": f"{np.std(scores.returns):.4g}",
        "lowest": "10",
        "highest": "60",
        "cut by a time limit": "2",
    }
    assert other == ["2, tasks held out", "3", "6", "1", "1", "5", "7", "0"]
    assert "checkpoint best of run r" in card
