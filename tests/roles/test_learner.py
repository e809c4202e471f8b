"""The learner: counters, gradients that are not finite, mixing in place, schedules, its state."""

from __future__ import annotations

import copy
import dataclasses
import time

import pytest
import torch
from algorithm_checks import minibatches_of
from core_fakes import CONSTANT, learn, make_learner, poisoned, random_batch, small_policy, spec_of
from groups import vector_of

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.errors import RunFailed
from gossamer.roles.learner import MOST_NATS
from gossamer.roles.optimizers import OptimizerConfig

PIXELS = spec_of(obs_shape=(4, 36, 36))


def batches_of(count, *, t=5, b=4, spec=None, first=0):
    return [random_batch(spec or spec_of(), t, b, seed=first + i) for i in range(count)]


@pytest.mark.parametrize(
    ("algorithm", "updates"),
    [
        (A2C(), 1),
        (A2C(num_minibatches=4), 4),
        (VTrace(passes=2, num_minibatches=2), 4),
        (PPO(passes=3, num_minibatches=2), 6),
    ],
)
def test_updates_are_steps_and_versions_are_batches(algorithm, updates):
    learner = make_learner(small_policy(), algorithm, *batches_of(2))
    decisions = 0
    for version in range(3):
        batch = learner.replay.batches[version % 2]
        batch.version.fill_(max(version - 1, 0))
        metrics = learn(learner)
        assert learner.version == version + 1
        assert learner.update == (version + 1) * updates
        decisions += int(batch.valid.sum())  # a row that resets an environment is none
        assert learner.env_steps == decisions < (version + 1) * 20
        assert learner.replay.released == version + 1
        assert metrics["lag_versions_mean"] == min(version, 1)
        steps = {float(s["step"]) for s in learner.optimizer.state.values()}
        assert steps == {float(learner.update)}


def test_the_largest_lag_of_a_batch_is_that_of_its_oldest_column():
    learner = make_learner(small_policy(), A2C(), *batches_of(1))
    learner.version = 7
    learner.replay.batches[0].version[:] = 6
    learner.replay.batches[0].version[0] = 3
    metrics = learn(learner)
    columns = learner.replay.batches[0].num_columns
    assert learner.lag_versions_max == 4.0
    assert metrics["lag_versions_mean"] == pytest.approx((columns + 3) / columns)


def test_metrics_are_means_since_the_last_call():
    learner = make_learner(small_policy(), A2C(), *batches_of(1), micro_batch_rows=6)
    expected = learner.replay.batches[0].valid.float().mean().item()
    metrics = learn(learner)
    assert metrics["learner/valid_fraction"] == pytest.approx(expected)
    assert metrics["learner/learning_rate"] == 1e-2
    assert metrics["learner/grad_norm"] > 0.0
    assert metrics["learner/nonfinite_updates"] == 0.0
    assert "learner/target_square" not in metrics
    assert "learner/grad_norm" not in learner.take_metrics(), "forgotten"


@pytest.mark.parametrize("limit", [0.0, 1e-3, 1e3])
def test_gradients_are_clipped_to_their_norm(limit):
    optimizer = dataclasses.replace(CONSTANT, max_grad_norm=limit)
    learner = make_learner(small_policy(), A2C(), *batches_of(1), optimizer=optimizer)
    learner.adapt()
    grads = [p.grad.flatten() for p in learner.policy.parameters() if p.grad is not None]
    norm = torch.cat(grads).norm().item()
    learner.combine()
    told = learner.take_metrics()["learner/grad_norm"]
    assert told > 1e-2
    assert norm == pytest.approx(limit if limit == 1e-3 else told, rel=1e-3)


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_is_of_the_sum_over_the_valid_rows_of_the_whole_minibatch(
    reduction, num_threads
):
    (batch,) = batches_of(1)
    algorithm = A2C(reduction=reduction)
    learner = make_learner(
        small_policy(), algorithm, batch, micro_batch_rows=6, num_threads=num_threads
    )
    policy = copy.deepcopy(learner.policy)
    loss, _ = algorithm.loss(policy, batch, None)
    (loss / (batch.valid.sum() if reduction == "mean" else 1)).backward()
    learner.adapt()
    for p, q in zip(policy.parameters(), learner.policy.parameters(), strict=True):
        expected = torch.zeros_like(p) if p.grad is None else p.grad  # log_std, which is empty
        torch.testing.assert_close(expected, q.grad, rtol=1e-4, atol=1e-6)
    learner.close()


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    good, bad, again = batches_of(3)
    learner = make_learner(small_policy(), A2C(), good, poisoned(bad), again)
    learner.learn_version()
    before = vector_of(learner.policy)
    metrics = learn(learner)
    assert torch.equal(vector_of(learner.policy), before)
    assert metrics["learner/nonfinite_updates"] == 1.0
    decisions = good.valid.sum() + bad.valid.sum()
    assert (learner.update, learner.version, learner.env_steps) == (2, 2, decisions)
    assert learn(learner)["learner/nonfinite_updates"] == 1.0
    after = vector_of(learner.policy)
    assert after.isfinite().all()
    assert not torch.equal(after, before)


def test_a_row_that_is_not_learnt_may_be_not_finite():
    (batch,) = batches_of(1)
    assert not batch.valid.all()
    batch.reward[~batch.valid] = 1e30
    learner = make_learner(small_policy(), VTrace(), batch)
    assert learn(learner)["learner/nonfinite_updates"] == 0.0


def test_one_batch_that_is_not_finite_ends_no_run_however_many_updates_it_has():
    good, bad = batches_of(2)
    bad.reward.fill_(float("nan"))
    algorithm = PPO(passes=4, num_minibatches=2)
    learner = make_learner(small_policy(), algorithm, *[bad] * 4, good, *[bad] * 5)
    for _ in range(5):
        learner.learn_version()
    assert learner.nonfinite_updates == 4 * 8
    for _ in range(4):
        learner.learn_version()
    with pytest.raises(RunFailed, match=r"all updates of 5 batches in a row, until update 80;"):
        learner.learn_version()


def test_five_in_a_row_end_the_run():
    good, bad = batches_of(2)
    order = [*[poisoned(bad)] * 4, good, *[bad] * 5]
    learner = make_learner(small_policy(), A2C(), *order)
    for _ in range(9):
        learner.learn_version()
    assert learner.nonfinite_updates == 8
    with pytest.raises(
        RunFailed, match=r"5 batches in a row, until update 10; .*rewards are not finite"
    ):
        learner.learn_version()


def test_where_no_update_was_ever_finite_the_learning_rate_is_not_blamed():
    class Mine(A2C):
        def loss(self, policy, batch, state):
            loss, metrics = super().loss(policy, batch, state)
            return loss * float("nan"), metrics

    learner = make_learner(small_policy(), Mine(), *batches_of(1))
    for _ in range(4):
        learner.learn_version()
    with pytest.raises(
        RunFailed, match=r"until update 5; no update of the run was finite: "
    ) as told:
        learner.learn_version()
    assert "learning-rate" not in str(told.value)


def test_ppo_goes_on_after_a_skipped_update():
    good, bad = batches_of(2)
    algorithm = PPO(passes=2, num_minibatches=2, max_kl_nats=0.5)
    learner = make_learner(small_policy(), algorithm, poisoned(bad), good)
    learner.learn_version()
    learner.learn_version()
    # one poisoned row makes its column's part not finite in both passes
    assert learner.nonfinite_updates == 2
    assert vector_of(learner.policy).isfinite().all()


def test_the_schedule_counts_env_steps_of_everyone():
    optimizer = OptimizerConfig(learning_rate=(0.8,), schedule="linear", schedule_end=0.25)
    (batch,) = batches_of(1)
    learner = make_learner(
        small_policy(), A2C(num_minibatches=2), batch, optimizer=optimizer,
        total_env_steps=4 * int(batch.valid.sum()),
    )  # fmt: skip
    rates = [learn(learner)["learner/learning_rate"] for _ in range(6)]
    # none, a quarter, half, ... of all steps when each batch begins; from 0.8 to 0.2
    assert rates == pytest.approx([0.8, 0.65, 0.5, 0.35, 0.2, 0.2])


def test_before_learn_start_only_the_moments_learn():
    first, second, third = batches_of(3)
    steps = int(first.valid.sum()) + 1
    policy = small_policy(normalize_obs=True, value_norm=True)
    before = {name: x.clone() for name, x in policy.named_parameters()}
    algorithm = PPO(passes=2, num_minibatches=2, value_norm=True, popart=True, target_kl_nats=1e3)
    learner = make_learner(
        policy,
        algorithm,
        first,
        second,
        third,
        optimizer=OptimizerConfig(learn_start=steps, schedule="constant"),
    )
    for seen in (int(first.valid.sum()), int(first.valid.sum() + second.valid.sum())):
        learn(learner)
        assert all(torch.equal(x, before[name]) for name, x in policy.named_parameters())
        assert policy.obs_moments.count == seen
        assert policy.value_moments.count == 2 * seen, "of both passes"
        assert not any(learner.optimizer.state.values())
        state = learner.state_dict()
        assert state["algorithm.lr_scale"] == 1.0, "one that is resumed here goes on alike"
        assert state["algorithm.kl_nats"] == 0.0
    assert learn(learner)["learner/learning_rate"] == pytest.approx(5e-4)
    changed = {name for name, x in policy.named_parameters() if not torch.equal(x, before[name])}
    assert changed == {name for name, x in before.items() if x.numel()}


@pytest.mark.parametrize("popart", [False, True])
def test_new_moments_leave_values_alone_with_popart(popart):
    batch, *rest = batches_of(3)
    policy = small_policy(normalize_obs=False, value_norm=True)
    algorithm = PPO(passes=2, num_minibatches=2, value_norm=True, popart=popart)
    learner = make_learner(policy, algorithm, batch, *rest)
    inputs = [getattr(rest[0], name) for name in ("obs", "starts", "core_state")]
    for _ in range(3):
        while len(learner.dealt) != 1:
            learner.adapt()
            learner.combine()
        learner.adapt()  # the last one
        before, scale = policy(*inputs).value, policy.value_scale().clone()
        learner.combine()
        assert policy.value_scale() != scale
        after = policy(*inputs).value
        assert torch.allclose(after, before, rtol=1e-4, atol=1e-4) == popart


def test_a_target_policy_has_the_moments_with_which_learning_begins():
    first, second = batches_of(2)
    policy = small_policy(normalize_obs=True, value_norm=True)
    algorithm = Impact(passes=2, num_minibatches=2, value_norm=True, target_every_updates=100)
    optimizer = OptimizerConfig(learn_start=1, schedule="constant")
    learner = make_learner(policy, algorithm, first, second, optimizer=optimizer)
    learn(learner)
    moments = {k: x.clone() for k, x in policy.state_dict().items() if "moments" in k}
    learn(learner)
    assert moments
    for name, x in moments.items():
        assert torch.equal(learner.state_dict()[f"algorithm.tensors.target.{name}"], x), name
        assert not torch.equal(policy.state_dict()[name], x), "the policy's have moved on"


def test_the_kl_scales_the_scheduled_rate():
    policy = small_policy()
    algorithm = PPO(passes=1, num_minibatches=1, target_kl_nats=1e3)
    learner = make_learner(policy, algorithm, *batches_of(1))
    for k in range(3):
        assert learn(learner)["learner/learning_rate"] == pytest.approx(0.01 * 1.5**k)


def test_value_moments_follow_the_targets():
    batch, *_ = batches_of(1)
    policy = small_policy(value_norm=True)
    algorithm = PPO(passes=1, num_minibatches=1, value_norm=True)
    learner = make_learner(policy, algorithm, batch)
    (minibatch,) = minibatches_of(algorithm, policy, batch)
    targets = minibatch.target[batch.valid].double()
    learner.adapt()
    assert policy.value_moments.count == 0
    learner.combine()
    assert policy.value_moments.count == len(targets)
    torch.testing.assert_close(policy.value_moments.total, targets.sum(), rtol=1e-5, atol=1e-6)
    expected = targets.std(correction=0).item()
    assert policy.value_scale().item() == pytest.approx(expected, rel=1e-4)


def test_value_moments_do_not_hold_targets_that_make_an_update_infinite():
    batch, *_ = batches_of(1)
    batch.reward.mul_(1e25)
    policy = small_policy(value_norm=True)
    learner = make_learner(policy, A2C(value_norm=True), batch)
    learner.learn_version()
    assert (learner.nonfinite_updates, policy.value_moments.count) == (1, 0)


@pytest.mark.parametrize("steps", [0, 40])
def test_observation_moments_are_updated_after_a_version_until_frozen(steps):
    policy = small_policy(normalize_obs=True, normalize_steps=steps)
    learner = make_learner(policy, VTrace(passes=2), *batches_of(4))
    seen = 0
    for batch in learner.replay.batches:
        learner.adapt()
        learner.combine()
        assert policy.obs_moments.count == seen, "not in the middle of a version"
        learner.adapt()
        learner.combine()
        if not steps or seen < steps:
            seen += int(batch.valid.sum())
        assert policy.obs_moments.count == seen


@pytest.mark.parametrize("name", ["adam", "rmsprop", "rmsprop_tf"])
def test_it_continues_from_its_state(name):
    optimizer = OptimizerConfig(name=name, learning_rate=(1e-2,), momentum=0.5)

    def make(seed):
        policy = small_policy(seed=seed, value_norm=True, normalize_obs=True)
        algorithm = PPO(passes=2, num_minibatches=2, target_kl_nats=0.01, value_norm=True)
        made = make_learner(policy, algorithm, *batches_of(6), optimizer=optimizer, seed=seed)
        assert made.state_dict()["version"] == 0
        return made

    one, two = make(1), make(2)
    for _ in range(3):
        one.learn_version()
    state = {
        k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in one.state_dict().items()
    }
    one.take_metrics()
    two.load_state_dict(state)
    two.replay.given = 3
    for _ in range(3):
        assert learn(one) == learn(two)
    ours, theirs = one.state_dict(), two.state_dict()
    assert ours.keys() == theirs.keys()
    for key, x in ours.items():
        assert torch.equal(x, theirs[key]) if isinstance(x, torch.Tensor) else x == theirs[key], key
    assert ours["version"] == 6
    assert ours["algorithm.lr_scale"] != 1.0


def test_loading_keeps_memory_formats():
    learners = [make_learner(small_policy(PIXELS, fc_size=8), A2C(), *batches_of(1, spec=PIXELS, b=2))
                for _ in range(2)]  # fmt: skip
    learners[0].learn_version()
    flat = {
        k: x.contiguous().clone() if isinstance(x, torch.Tensor) else x
        for k, x in learners[0].state_dict().items()
    }
    learners[1].load_state_dict(flat)
    for p in learners[1].policy.parameters():
        if p.dim() == 4:
            assert learners[1].optimizer.state[p]["exp_avg"].stride() == p.stride()
            assert p.is_contiguous(memory_format=torch.channels_last)


def test_a_state_in_the_middle_of_a_version_is_refused():
    learner = make_learner(small_policy(), A2C(num_minibatches=2), *batches_of(1))
    learner.adapt()
    learner.combine()
    with pytest.raises(AssertionError, match="being learnt"):
        learner.state_dict()


def test_a_kl_that_no_checkpoint_could_hold_is_bounded(monkeypatch):
    learner = make_learner(small_policy(), PPO(passes=1, num_minibatches=1), *batches_of(2))
    loss = PPO.loss

    def far(self, *given):
        total, sums = loss(self, *given)
        value, count = sums["learner/mean_kl_nats"]
        sums["learner/mean_kl_nats"] = [torch.full_like(value, float("inf")), count]
        return total, sums

    learner.learn_version()
    assert learner.state_dict()["algorithm.kl_nats"] < 1.0
    monkeypatch.setattr(PPO, "loss", far)
    learner.learn_version()
    assert learner.state_dict()["algorithm.kl_nats"] == MOST_NATS


@pytest.mark.parametrize(("target_kl_nats", "scale"), [(0.0, 1.0), (1e-6, 1.0 / 1.5)])
def test_a_resumed_rate_that_no_longer_follows_the_kl_is_the_scheduled_one(target_kl_nats, scale):
    """Nobody would take back what was adapted before."""
    before, after = (
        make_learner(
            small_policy(), PPO(passes=1, num_minibatches=1, target_kl_nats=x), *batches_of(1)
        )
        for x in (1e-6, target_kl_nats)
    )
    before.learn_version()
    after.load_state_dict(before.state_dict())
    assert learn(after)["learner/learning_rate"] == pytest.approx(0.01 * scale)


def test_batches_in_a_row_that_are_not_finite_are_counted_across_a_resume():
    """A run that ends and is resumed every few batches would go on for ever."""
    (bad,) = batches_of(1)
    bad.reward.fill_(float("nan"))
    first, second = (make_learner(small_policy(), A2C(), bad) for _ in range(2))
    for _ in range(4):
        first.learn_version()
    second.load_state_dict(first.state_dict())
    with pytest.raises(RunFailed, match="5 batches in a row"):
        second.learn_version()


def test_rewards_that_are_finite_are_not_blamed():
    learner = make_learner(small_policy(), A2C(), *batches_of(1))
    learner.learn_version()
    with torch.no_grad():
        learner.policy.value_head.bias.fill_(float("inf"))
    for _ in range(4):
        learner.learn_version()
    with pytest.raises(RunFailed, match=r"until update 6; try a smaller --optimizer.learning-rate"):
        learner.learn_version()


def test_an_algorithm_that_reports_other_metrics_later_is_told():
    later = []

    @dataclasses.dataclass(frozen=True)
    class Fickle(A2C):
        def loss(self, policy, batch, state):
            loss, metrics = super().loss(policy, batch, state)
            return loss, metrics | {name: (torch.ones(()), 1.0) for name in later}

    learner = make_learner(small_policy(), Fickle(), *batches_of(1))
    learner.learn_version()
    later.append("own/late")
    with pytest.raises(RunFailed, match="other metrics than in its first update: own/late; report"):
        learner.learn_version()


@pytest.mark.parametrize("name", ["adam", "rmsprop_tf"])
def test_a_state_without_the_optimizers_averages_begins_them_anew(name):
    optimizer = OptimizerConfig(name=name, learning_rate=(1e-2,), schedule="constant")
    fresh, used = (
        make_learner(small_policy(), A2C(), *batches_of(1), optimizer=optimizer) for _ in range(2)
    )
    used.learn_version()
    used.load_state_dict(fresh.state_dict())
    fresh.learn_version()
    used.learn_version()
    torch.testing.assert_close(vector_of(used.policy), vector_of(fresh.policy))


def test_what_an_algorithm_prepares_counts_as_learning():
    class Slow(A2C):
        def prepare(self, policy, batch, state):
            time.sleep(0.2)
            return super().prepare(policy, batch, state)

    learner = make_learner(small_policy(), Slow(), *batches_of(1))
    learn(learner)
    assert learner.seconds["learn"] >= 0.2


class Spoilt(PPO):
    """PPO whose loss returns one thing in place of another."""

    def loss(self, policy, batch, state):
        return self.spoilt(*super().loss(policy, batch, state))


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        (
            lambda loss, _: loss,
            r"returns a tensor of shape \[\] and float32; it must return the loss and its metrics",
        ),
        (lambda _, metrics: (0.5, metrics), "returns as loss float"),
        (
            lambda loss, metrics: (loss.repeat(3), metrics),
            r"returns as loss a tensor of shape \[3\]",
        ),
        (lambda loss, metrics: (loss.detach(), metrics), "returns a loss without gradients"),
        (
            lambda loss, metrics: (loss, {**metrics, "own/x": loss}),
            r"reports own/x as a tensor .*; it must be \(sum, count\)",
        ),
        (
            lambda loss, metrics: (loss, {**metrics, "own/x": (loss.repeat(3), 3)}),
            r"reports own/x as \(a tensor of shape \[3\] and float32, int\)",
        ),
    ],
)
def test_a_loss_that_returns_something_else_is_told_as_such(spoilt, told):
    algorithm = type("Mine", (Spoilt,), {"spoilt": staticmethod(spoilt)})()
    learner = make_learner(small_policy(), algorithm, *batches_of(1))
    with pytest.raises(RunFailed, match=f"loss of Mine {told}"):
        learn(learner)


@pytest.mark.parametrize(
    "dealt", [[0, 1], torch.tensor([0, 20]), torch.tensor([-1]), torch.tensor([0.0])]
)
def test_columns_that_are_dealt_and_are_none_are_told_as_such(dealt):
    class Mine(A2C):
        def dealt(self, num_columns, num_online, state):
            yield dealt

    learner = make_learner(small_policy(), Mine(), *batches_of(1))
    with pytest.raises(RunFailed, match=r"dealt of Mine .* int64 numbers from 0 to 3"):
        learn(learner)


@pytest.mark.parametrize("method", ["prepare", "part"])
def test_a_batch_that_is_not_returned_is_told_as_such(method):
    algorithm = type("Mine", (PPO,), {method: lambda *_: None})()
    learner = make_learner(small_policy(), algorithm, *batches_of(1))
    with pytest.raises(RunFailed, match=f"{method} of Mine returns NoneType; it must return"):
        learn(learner)
