"""What metrics make of sums: never more than there is to know."""

from __future__ import annotations

import statistics

import pytest
import torch
from algorithm_checks import minibatches_of, state_for
from core_fakes import random_batch, small_policy, spec_of

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.base import with_deviations


def told(target, value):
    """What an update tells of targets and values, from means of float32."""
    target, value = torch.tensor(target), torch.tensor(value)
    advantage = target - value
    means = {
        "learner/target_mean": target.mean(),
        "learner/target_square": target.square().mean(),
        "learner/value_mean": value.mean(),
        "learner/error_square": advantage.square().mean(),
        "learner/advantage_mean": advantage.mean(),
        "learner/advantage_square": advantage.square().mean(),
    }
    return with_deviations({name: float(x) for name, x in means.items()})


def test_explained_variance_is_the_share_of_the_targets_that_values_know():
    target = [1.0, 2.0, 3.0, 4.0]
    assert told(target, target)["learner/explained_variance"] == pytest.approx(1.0)
    assert told(target, [2.5] * 4)["learner/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert told(target, [4.0, 3.0, 2.0, 1.0])["learner/explained_variance"] == pytest.approx(-3.0)
    # Off by a constant, which the mean of the error tells.
    assert told(target, [11.0, 12.0, 13.0, 14.0])["learner/explained_variance"] == 1.0


def test_the_deviation_of_advantages_is_from_their_mean():
    advantage = [1.0, 2.0, 3.0, 6.0]
    found = told(advantage, [0.0] * 4)["learner/advantage_std"]
    assert found == pytest.approx(statistics.pstdev(advantage))
    rounded = {"learner/advantage_mean": 0.1, "learner/advantage_square": 0.00999999}
    assert with_deviations(rounded)["learner/advantage_std"] == 0.0


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("mean", [0.1, 37.0, 900.0])
def test_targets_that_differ_by_less_than_rounding_explain_nothing_false(mean, spread):
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        target = mean + spread * torch.randn(4, generator=generator)
        value = target + 1e-3 * mean * torch.randn(4, generator=generator)
        found = told(target.tolist(), value.tolist())["learner/explained_variance"]
        assert found <= 1.0
        if spread < 1e-4 * mean:
            assert found == 0.0


@pytest.mark.parametrize("known", [(), ("value_mean",), ("value_mean", "error_square")])
def test_a_loss_may_report_some_of_them_alone(known):
    """A loss of the user's own needs only those of targets, for normalised values."""
    means = {"target_mean": 2.0, "target_square": 5.0, "value_mean": 2.0, "error_square": 0.25}
    given = {f"learner/{name}": means[name] for name in ("target_mean", "target_square", *known)}
    found = with_deviations(given)
    assert ("learner/explained_variance" in found) == ("error_square" in known)
    assert not any(name.endswith("_square") for name in found)
    assert "learner/advantage_std" not in found


def test_sums_tell_the_deviation_of_targets_that_are_far_from_zero():
    """Values are normalised by them: in float32 the deviation of returns of 1e6 +- 50 came out as 0, or as 300."""
    algorithm, state = A2C(), state_for()
    policy, batch = small_policy(spec_of()), random_batch(spec_of(), 64, 32)
    batch.terminated[:] = batch.valid[:] = True
    batch.reward[:] = 1e6 + 50.0 * torch.randn(64, 32, generator=state.generator)
    (part,) = minibatches_of(algorithm, policy, batch, state)
    sums = algorithm.loss(policy, part, state)[1]
    mean, square = (
        float(x) / float(n) for x, n in (sums[f"learner/target_{k}"] for k in ("mean", "square"))
    )
    assert (square - mean**2) ** 0.5 == pytest.approx(float(batch.reward.double().std()), rel=1e-3)
