"""What is evaluated is normalised by the moments that it comes with."""

from __future__ import annotations

import math

import torch
from core_fakes import CountingEnvs, small_policy

from gossamer.links.stopping import StopSignal
from gossamer.roles.evaluation import EvaluationEpisodes
from gossamer.roles.evaluator import Evaluator, Source

SETTINGS = {"normalize_obs": True, "value_norm": True}


class Keeper:
    """Wants nothing confirmed."""

    run_seconds, waiting, has_begun = math.inf, False, False

    def on_evaluation(self, result, source, params): ...


def test_the_newest_parameters_are_evaluated_with_their_moments():
    learnt = small_policy(seed=1, **SETTINGS)
    obs = 50.0 + 9.0 * torch.randn((6, 4, 4), generator=torch.Generator().manual_seed(2))

    def read(into):
        for target, x in zip(into, learnt.shared_tensors(), strict=True):
            target.copy_(x.detach())
        return Source(int(learnt.obs_moments.count))

    evaluator = Evaluator(
        small_policy(seed=5, **SETTINGS), learnt.shared_tensors(),
        [EvaluationEpisodes(CountingEnvs, 2)], read, StopSignal(), greedy=True, seed=3,
        every_seconds=0.0, max_time_fraction=1.0, confirm_episodes=2,
    )  # fmt: skip
    evaluator.report_to(Keeper())
    for shift in (0.0, 30.0):  # the first time, and once more
        learnt.observe(obs + shift, torch.ones((5, 4), dtype=torch.bool))
        learnt.observe_values(40.0 + shift, 900.0 + 40.0 * shift, 4)
        learnt.refresh()
        evaluator.evaluate_newest()
        assert torch.equal(evaluator.policy.normalize(obs), learnt.normalize(obs))
        assert evaluator.policy.value_scale() == learnt.value_scale() != 1.0
        assert evaluator.policy.value_mean == learnt.value_mean
    evaluator.close()
