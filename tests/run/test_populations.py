"""Learners of one run with settings of their own: each learns with its own, and with no other's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL, rows_of, state_of

from gossamer import cli
from gossamer.config import TrainConfig, make_config
from gossamer.record.checkpoint import Checkpoint, CheckpointStore, Score
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.load_policy import whose_in_words
from gossamer.run.train import train
from gossamer.run.user_messages import learners_in_words

A_VERSION = 2 * 64


def config(folder: Path, name: str, values: Any, **settings: Any) -> TrainConfig:
    """Two learners that take turns, one optimizer step a version."""
    given = {
        **SMALL,
        "algorithm": {"name": "a2c", "num_minibatches": 1},
        "num_learners": 2,
        "placement": "inline",
        "run_folder": str(folder),
        "total_env_steps": 8 * A_VERSION,
        **settings,
    }
    return make_config("CartPole-v1", {**given, name: values})


def learners_of(folder: Path) -> list[dict[str, torch.Tensor]]:
    state = state_of(folder)
    return [policy_of(state, rank) for rank in (0, 1)]


def first_rows_of(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the first row of each learner."""
    return {row["learner"]: row for row in reversed(rows_of(folder))}


@pytest.mark.parametrize(
    ("name", "values"),
    [("algorithm.entropy_cost", (0.0, 1.0)), ("optimizer.learning_rate", (1e-4, 1e-2))],
)
def test_each_learner_learns_with_its_own(
    tmp_path: Path, name: str, values: tuple[float, float]
) -> None:
    """Learners that never talk are those of a run in which everyone has the value."""
    made: dict[str, list[dict[str, torch.Tensor]]] = {}
    for which, given in {"low": values[0], "high": values[1], "both": list(values)}.items():
        train(config(tmp_path / which, name, given), quiet=True)
        made[which] = learners_of(tmp_path / which)
    for rank, own, other in ((0, "low", "high"), (1, "high", "low")):
        held = made["both"][rank]
        assert all(torch.equal(x, held[key]) for key, x in made[own][rank].items())
        assert not all(torch.equal(x, held[key]) for key, x in made[other][rank].items())


def test_a_population_tells_who_was_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    settings: dict[str, Any] = {
        "evaluation": {"every_seconds": 1e-3, "max_time_fraction": 1.0, "episodes": 1},
        "num_learners": 3,
        "total_env_steps": 3 * 512,
        "max_episode_steps": 40,
    }
    made = config(folder, "algorithm.entropy_cost", [0.0, 0.1, 0.02], **settings)
    best = train(made).summary["best_learner"]
    assert best == state_json(folder)["policy_of"]
    scores = dict(state_json(folder)["scores"])
    assert len(scores) == 3
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("learner ")]
    assert lines == [
        f"learner {rank}: entropy_cost {cost}, evaluation {scores[rank]:.4g}"
        + " (best)" * (rank == best)
        for rank, cost in enumerate(("0", "0.1", "0.02"))
    ]
    episodes = rows_of(folder, "episodes")
    for row in rows_of(folder)[-3:]:
        own = [x["return"] for x in episodes if x["learner"] == row["learner"]][-100:]
        assert row["learner/return_mean_100"] == pytest.approx(sum(own) / len(own))
    scored = [x for x in rows_of(folder, "evaluation") if not x["confirmation"]]
    last = [x["learner"] for x in scored[-3:]]  # a candidate's may follow
    assert last[0] == best, "once more, what is shipped"
    assert set(last) == {0, 1, 2}
    # a finished run that has lost its summary
    (folder / "summary.json").unlink()
    assert train(made, resume=str(folder), quiet=True).summary["best_learner"] == best
    window = state_json(folder)["recorder"]["window"]
    held = {rank: len(returns) for rank, returns, *_ in window}
    assert held == {rank: sum(x["learner"] == rank for x in episodes) for rank in range(3)}


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_of_a_population_that_was_not_evaluated_the_best_is_who_earned_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], placement: str
) -> None:
    settings: dict[str, Any] = {
        "evaluation": {"every_seconds": 1e6, "episodes": 1},
        "num_learners": 3,
        "total_env_steps": 3 * 512,
        "placement": placement,
    }
    made = config(tmp_path / "run", "algorithm.entropy_cost", [0.5, 0.0, 0.2], **settings)
    best = train(made).summary["best_learner"]
    state = state_json(tmp_path / "run")
    earned = {rank: sum(x) / len(x) for rank, x, *_ in state["recorder"]["window"]}
    assert best == state["policy_of"] == max(earned, key=earned.__getitem__)
    # At the end everyone is, as the best one's score alone says nothing of what the others have become.
    scored = [
        x["learner"] for x in rows_of(tmp_path / "run", "evaluation") if not x["confirmation"]
    ]
    assert sorted(scored) == [0, 1, 2]
    assert scored[0] == best, "first, as time may be short"
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("learner ")]
    assert [x.endswith(" (best)") for x in lines] == [rank == best for rank in range(3)]


def state_json(folder: Path) -> dict[str, Any]:
    return CheckpointStore(folder / "checkpoints", 0).load("last").state


def test_only_learners_that_never_talk_are_told_apart(tmp_path: Path) -> None:
    score = {"evaluation": {"every_seconds": 1e-3, "max_time_fraction": 1.0, "episodes": 1}}
    for name in ("gossip", "allreduce"):
        made = config(tmp_path / name, "topology.name", name, **score, max_episode_steps=5)
        assert train(made, quiet=True).summary["best_learner"] is None
        assert learners_in_words(made, {0: 1.0}, lambda _: None, 0) == []
    made = config(tmp_path / "many", "num_learners", 40)
    told = learners_in_words(made, {rank: float(rank) for rank in range(40)}, lambda _: None, 39)
    assert told[0] == "learner 24: evaluation 24"
    assert told[-1] == "learner 39: evaluation 39 (best)"
    assert len(told) == 16
    # until all have been evaluated the best is who earned most, and that is told
    told = learners_in_words(made, {0: 500.0}, float, 39)
    assert told[0] == "learner 24: return 24"
    assert told[-1] == "learner 39: return 39 (best)"
    made = config(tmp_path / "silent", "optimizer.learning_rate", [1e-3, 1e-4])
    assert learners_in_words(made, {}, lambda rank: 10.0 * rank, 1) == [
        "learner 0: learning_rate 0.001, return 0",
        "learner 1: learning_rate 0.0001, return 10 (best)",
    ]


def test_learners_that_gossip_have_losses_and_rates_of_their_own(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "topology": {"name": "gossip"},
        "optimizer.learning_rate": [1e-3, 2e-3],
        "total_env_steps": A_VERSION,
    }
    for given in (0.0, 1.0, [0.0, 1.0]):
        made = config(tmp_path / str(given), "algorithm.entropy_cost", given, **settings)
        train(made, quiet=True)
    low, high, both = (first_rows_of(tmp_path / name) for name in ("0.0", "1.0", "[0.0, 1.0]"))
    assert both[0]["learner/loss"] == low[0]["learner/loss"]
    assert both[1]["learner/loss"] == high[1]["learner/loss"]
    entropy = both[1]["learner/entropy_nats"]
    assert entropy > 0.0
    assert both[1]["learner/loss"] == pytest.approx(low[1]["learner/loss"] - entropy, abs=1e-5)
    assert [both[rank]["learner/learning_rate"] for rank in (0, 1)] == [1e-3, 2e-3]


def test_a_run_saved_with_a_plain_number_is_resumed_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there were lists of entropy costs, settings held one number."""
    folder = tmp_path / "run"
    train(config(folder, "algorithm.entropy_cost", 0.02, total_env_steps=A_VERSION), quiet=True)
    saved = json.loads((folder / "config.json").read_text())
    assert saved["algorithm"]["entropy_cost"] == [0.02]
    saved["algorithm"]["entropy_cost"] = 0.02
    (folder / "config.json").write_text(json.dumps(saved))
    longer = config(folder, "algorithm.entropy_cost", 0.02, total_env_steps=2 * A_VERSION)
    assert 0 <= train(longer, resume=str(folder)).summary["env_steps"] - 2 * A_VERSION < A_VERSION
    err = capsys.readouterr().err
    assert "changed: total_env_steps" in err
    assert "entropy_cost" not in err


def told_by_eval(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    """What `gossamer eval` says of whose policy it played, in words and as JSON."""
    capsys.readouterr()
    asked = ["eval", str(folder), "--episodes", "1", *words]
    assert cli.main(asked) == cli.main([*asked, "--json"]) == 0
    *_, line, row = capsys.readouterr().out.splitlines()
    return line.partition(", 1 episode,")[0], json.loads(row)["learner"]


def test_eval_tells_whose_policy_it_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score = {"evaluation": {"every_seconds": 1e-3, "max_time_fraction": 1.0, "episodes": 1}}
    for name, settings in {"gossip": score, "single": score, "silent": {}}.items():
        made = config(
            tmp_path / name,
            "topology.name",
            "gossip" if name == "gossip" else "single",
            **{"max_episode_steps": 5, **settings},
        )
        train(made, quiet=True)
    assert told_by_eval(tmp_path / "gossip", capsys) == (
        "checkpoint last, average of 2 learners",
        "average",
    )
    words = ("--checkpoint", "best")
    assert told_by_eval(tmp_path / "gossip", capsys, *words) == (
        "checkpoint best, average of 2 learners",
        "average",
    )
    for path in ("gossip", "single"):
        said = told_by_eval(tmp_path / path, capsys, "--learner", "1")
        assert said == ("checkpoint last, learner 1 of 2", 1)
    for words in ((), ("--checkpoint", "best")):
        text, rank = told_by_eval(tmp_path / "single", capsys, *words)
        assert text.endswith(f", learner {rank} of 2, the best evaluated")
    said = "checkpoint last, learner 0 of 2, which earned most in training"
    assert told_by_eval(tmp_path / "silent", capsys) == (said, 0)
    train(config(tmp_path / "one", "num_learners", 1), quiet=True)
    assert told_by_eval(tmp_path / "one", capsys) == ("checkpoint last", 0)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"scores": [[0, 9.0], [1, 5.0]], "best_learner": 0}, ", the best evaluated"),
        ({"scores": [[0, 9.0]], "best_learner": 1}, ", which earned most in training"),
        ({"scores": [], "best_learner": 1}, ", which earned most in training"),
        ({"scores": [], "best_learner": None}, ""),
        ({"scores": [[0, 9.0]]}, ", the best evaluated"),  # before it was saved by its name
        ({"scores": [[1, 9.0]], "best_learner": 1, "absent": [[0, 1]]}, ", the best evaluated"),
        (
            {"scores": [[0, 9.0]], "best_learner": 1, "absent": [[0, 0]]},
            ", which earned most in training",
        ),
    ],
)
def test_eval_tells_why_a_learner_is_the_one(
    tmp_path: Path, state: dict[str, Any], why: str
) -> None:
    best = state.get("best_learner", 0) or 0
    held = {**state, "num_learners": 2, "policy_of": best}
    made = config(tmp_path, "topology.name", "single")
    text = whose_in_words(Checkpoint(1, {}, held, tmp_path), None, made)
    assert text == f"learner {best} of 2{why}, "


def test_an_average_says_of_how_many_it_is(tmp_path: Path) -> None:
    held = {"num_learners": 4, "policy_of": None, "absent": [[1, 0], [3, 0]]}
    made = config(tmp_path, "topology.name", "gossip", num_learners=4)
    found = Checkpoint(1, {}, held, tmp_path)
    assert whose_in_words(found, None, made) == "average of 2 of 4 learners, "
    assert (
        whose_in_words(replace(found, state={**held, "absent": []}), None, made)
        == "average of 4 learners, "
    )


def evaluated(folder: Path) -> list[int]:
    return [row["learner"] for row in rows_of(folder, "evaluation")]


def test_resumed_who_has_waited_longest_is_evaluated_first(tmp_path: Path) -> None:
    each = {"num_learners": 3, "max_episode_steps": 5}
    score = {"every_seconds": 1e-9, "max_time_fraction": 1.0, "episodes": 1}
    steps = 3 * 50 * 2  # of the 64 rows of a batch every sixth is a reset
    made = config(
        tmp_path / "run",
        "topology.name",
        "single",
        evaluation=score,
        **{**each, "total_env_steps": steps},
    )
    train(made, quiet=True)
    before = evaluated(tmp_path / "run")
    assert set(before[:-3]) == {0}
    assert before[-3:] == [0, 1, 2]  # the end's, which no checkpoint has
    train(replace(made, total_env_steps=6 * steps), resume=str(tmp_path / "run"), quiet=True)
    assert evaluated(tmp_path / "run")[len(before) :][:3] == [1, 2, 0]


def test_the_best_evaluation_is_kept_when_it_came_after_the_last_checkpoint(tmp_path: Path) -> None:
    made = config(tmp_path / "run", "num_learners", 1, total_env_steps=128)
    train(made, quiet=True)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 1)
    last = store.load("last")
    store.save_scored(
        "best", last.updates, last.tensors, {"version": 1, "learner": 0}, Score(499.0, 20)
    )
    for total in (128, 256):
        longer = replace(made, total_env_steps=total)
        (tmp_path / "run" / "summary.json").unlink()
        result = train(longer, resume=str(tmp_path / "run"), quiet=True)
        assert result.summary["best_evaluation"] == 499.0
        assert result.summary["best_evaluation_episodes"] == 20
