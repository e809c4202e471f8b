"""Evaluations play what the settings, or whoever asks for them, say: in training and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL

import gossamer
from gossamer.build import evaluation_tasks
from gossamer.build.plan import make_plan
from gossamer.build.roles import build_evaluator, build_policy
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.links.stopping import StopSignal
from gossamer.record.checkpoint import CheckpointStore
from gossamer.roles.evaluation import Evaluation
from gossamer.roles.evaluator import Evaluator, Source
from gossamer.run.train import train


class Keeper:
    """Keeps the results of evaluations."""

    waiting, run_seconds = False, 1e9

    def __init__(self) -> None:
        self.results: list[Evaluation] = []

    def on_evaluation(self, result: Evaluation, *_: Any) -> None:
        self.results.append(result)

    def film(self, *_: Any) -> None: ...


def evaluator_of(**settings: Any) -> tuple[Evaluator, Keeper]:
    """Return the evaluator of a run, of a policy that has learnt nothing."""
    given = {"num_envs": 2, "device": "cpu", "evaluation.episodes": 3, "policy.hidden_sizes": [8]}
    config = make_config("CartPole-v1", {**given, **settings})
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    policy = build_policy(config, spec)

    def read(into: list[torch.Tensor]) -> Source:
        for x, y in zip(into, policy.shared_tensors(), strict=True):
            x.copy_(y.detach())
        return Source(3)

    made, keeper = (
        build_evaluator(config, make_plan(config, spec), policy, read, StopSignal()),
        Keeper(),
    )
    assert made is not None
    made.report_to(keeper)  # type: ignore[arg-type]
    return made, keeper


def played(**settings: Any) -> Evaluation:
    """Return what an evaluation of a run plays."""
    evaluator, keeper = evaluator_of(**settings)
    evaluator.evaluate_newest()
    evaluator.close()
    (result,) = keeper.results
    return result


def test_evaluations_of_a_run_act_as_its_settings_say() -> None:
    greedy, sampled = (played(**{"evaluation.greedy": x}) for x in (True, False))
    assert len(greedy.returns) == len(sampled.returns) == 3
    assert greedy.returns != sampled.returns
    assert played(seed=2).returns != sampled.returns


def test_evaluations_of_a_run_end_episodes_where_training_does() -> None:
    found = played(max_episode_steps=4)
    assert (found.lengths, found.truncated) == ((4, 4, 4), 3)


@pytest.mark.parametrize(("asked", "played_in_all"), [(11, 11), (1, 3)])
def test_a_candidate_is_confirmed_in_as_many_episodes_as_asked_for(
    asked: int, played_in_all: int
) -> None:
    evaluator, _ = evaluator_of(**{"evaluation.confirm_episodes": asked})
    assert evaluator.confirming_episodes == played_in_all
    evaluator.close()


@pytest.mark.parametrize("fraction", [0.5, 0.01])
def test_evaluations_of_a_run_may_take_the_share_of_its_time_that_is_asked_for(
    fraction: float,
) -> None:
    settings = {"evaluation.max_time_fraction": fraction, "evaluation.every_seconds": 60.0}
    evaluator, _ = evaluator_of(**settings)
    assert evaluator.budget == pytest.approx(fraction * 60.0)
    evaluator.close()


def test_the_best_policy_is_chosen_in_episodes_that_nobody_scores_it_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else `gossamer eval` would find again the luck by which it was chosen."""
    seeds, make = list[tuple[int, int]](), evaluation_tasks.make_vec_env

    def notes(*args: Any, **kwargs: Any) -> Any:
        seeds.append((kwargs["seed"], kwargs["rank"]))
        return make(*args, **kwargs)

    monkeypatch.setattr(evaluation_tasks, "make_vec_env", notes)
    played()
    config = make_config("CartPole-v1")
    spec = read_spec(config.env_id, config.env, 0)
    for trial in evaluation_tasks.build_trials(config, spec):
        trial.open().close()
    choosing, scoring = seeds
    assert choosing[0] == scoring[0]
    assert choosing[1] != scoring[1]
    assert max(choosing[1], scoring[1]) < 0, "learners begin with 0"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two learners on their own, with several checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    learns = {"name": "a2c", "num_minibatches": 1}
    alone = {"num_learners": 2, "topology": {"name": "single"}, "same_start": False}
    given = {**SMALL, **alone, "algorithm": learns, "placement": "inline", "total_env_steps": 64}
    given |= {"keep_checkpoints": 0, "optimizer": {"schedule": "constant", "learning_rate": [0.05]}}
    train(make_config("CartPole-v1", {**given, "run_folder": str(folder)}), quiet=True)
    gossamer.train(resume=folder, quiet=True, total_env_steps=256)
    return folder


@pytest.mark.parametrize(
    "asked", [{"sample": True}, {"seed": 7}, {"learner": 1}, {"checkpoint": 0}]
)
def test_eval_plays_whose_policy_and_how_it_is_asked_for(run: Path, asked: dict[str, Any]) -> None:
    if "checkpoint" in asked:
        first, *_ = CheckpointStore(run / "checkpoints", 0).list()
        asked = {"checkpoint": first}
    usual = gossamer.evaluate(run, episodes=4, learner=0, seed=1)
    other = gossamer.evaluate(run, episodes=4, **{"learner": 0, "seed": 1, **asked})
    assert usual == gossamer.evaluate(run, episodes=4, learner=0, seed=1)
    assert other.returns != usual.returns
    assert other == gossamer.evaluate(run, episodes=4, **{"learner": 0, "seed": 1, **asked})


@pytest.mark.parametrize("learner", [2, -1])
def test_a_learner_that_a_run_has_not_is_refused(run: Path, learner: int) -> None:
    with pytest.raises(ConfigError, match=f"learner is {learner}, but the run has 2: --learner 1"):
        gossamer.evaluate(run, episodes=1, learner=learner)
