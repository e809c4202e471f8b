"""What evaluations leave behind: whose policy is the run's, which episodes decide, and what a policy had behind it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_placement import FakePlacement

from gossamer.record.checkpoint import BEST, CANDIDATE, CheckpointStore
from gossamer.roles.acting_group import Episode
from gossamer.roles.evaluation import Evaluation
from gossamer.roles.evaluator import Source
from gossamer.run.best_policy import BestPolicy
from gossamer.run.checkpoint_contents import RunPolicies

NAMES = ["weight"]


def scored(*returns: float) -> Evaluation:
    return Evaluation(returns, (1,) * len(returns), 0)


def consider(best: BestPolicy, version: int, *returns: float) -> None:
    weight = torch.full((2,), float(version))
    best.consider(scored(*returns), Source(version), [weight], NAMES, at=(version, version))


def earned(run: Any, learner: int, value: float) -> None:
    """Let a learner have finished a training episode."""
    episode = Episode(env=0, number=0, episode_return=value, length=1, env_steps=1, truncated=False)
    run.recorder.on_episode(episode, learner, 1)


def test_until_all_independent_learners_are_evaluated_the_run_has_who_earns_most_in_training(
    supervise,
):
    """A score of one says nothing of the others."""
    run = supervise(FakePlacement([], num_hosts=3), topology={"name": "single"})
    for rank, value in enumerate((10.0, 30.0, 20.0)):
        earned(run, rank, value)
    run.scoring.load_state(RunPolicies(scores=[(0, 500.0), (2, 400.0)]))
    assert run.scoring.state({}).policy_of == 1
    run.scoring.load_state(RunPolicies(scores=[(0, 500.0), (2, 400.0), (1, 7.0)]))
    assert run.scoring.state({}).policy_of == 0


@pytest.mark.parametrize(("episodes", "confirm_episodes"), [(4, 16), (16, 4)])
def test_a_close_contest_is_played_in_as_many_episodes_as_an_evaluation_and_a_confirmation(
    supervise, episodes, confirm_episodes
):
    given = {"episodes": episodes, "confirm_episodes": confirm_episodes}
    run = supervise(FakePlacement([]), evaluation=given)
    for version, mean in ((1, 5.0), (2, 9.0)):
        run.scoring.on_evaluation(scored(mean), Source(version, 0, (version, version)), [])
    for played in (0, 4, 8, 12):
        assert run.scoring.contest().played == played
        run.scoring.decide(scored(1.0, 9.0, 4.0, 6.0), scored(2.0, 8.0, 6.0, 3.0))
    assert not run.scoring.waiting
    assert run.store.score(BEST).episodes == 16


def test_episodes_of_a_contest_are_not_those_of_a_candidate_before(tmp_path):
    """The highest score takes a candidate's place while that is played; each earns its own."""
    store = CheckpointStore(tmp_path, 3)
    recorder = SimpleNamespace(scores={}, say=lambda _: None, on_confirmation=lambda *_, **__: None)
    best = BestPolicy(store, recorder, 8)  # type: ignore[arg-type]
    consider(best, 1, 5.0)
    consider(best, 2, 9.0)
    assert best.contest(NAMES).played == 0
    best.decide(scored(0.0, 9.0, 0.0, 9.0), scored(9.0, 0.0, 9.0, 0.0))
    assert best.contest(NAMES).played == 4
    consider(best, 3, 10.0)
    contest = best.contest(NAMES)
    assert (contest.source.version, contest.played) == (3, 0)
    best.decide(scored(*[7.0, 9.0] * 4), scored(*[6.0, 5.0] * 4))
    kept = store.load(BEST)
    assert (kept.state["version"], kept.score) == (3, 8.0)
    assert store.score(CANDIDATE) is None


def test_an_evaluation_is_told_with_what_was_behind_its_policy(supervise):
    """Others have learnt on meanwhile."""
    placement = FakePlacement([], num_hosts=2)
    run = supervise(placement, topology={"name": "gossip"})
    placement.updates, placement.env_steps = 90, 900
    run.scoring.on_evaluation(scored(5.0), Source(3, None, (7, 70)), [])
    run.scoring.on_evaluation(scored(4.0), Source(4, None), [])
    rows = [(x["version"], x["updates"], x["env_steps"]) for x in run.rows("evaluation")]
    assert rows == [(3, 7, 70), (4, 90, 900)]
    assert run.store.load(BEST).updates == 7
    assert run.store.load(BEST).state["env_steps"] == 70


def test_a_run_is_expected_to_end_at_the_first_of_its_limits(supervise, monkeypatch):
    placement = FakePlacement([])
    run = supervise(placement, total_env_steps=1000, stop_after_seconds=50.0)
    monkeypatch.setattr(run.recorder, "seconds", lambda: 20.0)
    assert run.scoring.run_seconds == 50.0, "nothing is learnt yet"
    placement.env_steps = 100
    assert run.scoring.run_seconds == 50.0
    placement.env_steps = 800
    assert run.scoring.run_seconds == 25.0


def test_without_a_limit_of_time_a_run_is_expected_to_end_by_its_steps(supervise, monkeypatch):
    placement = FakePlacement([])
    run = supervise(placement, total_env_steps=1000)
    monkeypatch.setattr(run.recorder, "seconds", lambda: 20.0)
    assert run.scoring.run_seconds == math.inf
    placement.env_steps = 100
    assert run.scoring.run_seconds == 200.0
