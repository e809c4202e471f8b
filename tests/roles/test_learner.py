"""The learner: counters, gradients that are not finite, mixing in place, schedules, its state."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from core_fakes import CONSTANT, CONTINUOUS, make_learner, random_batch, small_policy, spec_of
from groups import lock_step, make_group, vector_of

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.optimizers import OptimizerConfig
from gossamer.topology import AllReduce, Diffusion, Gossip
from gossamer.types import RunFailed

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
    for version in range(3):
        batch = learner._replay.batches[version % 2]
        batch.version.fill_(max(version - 1, 0))
        metrics = learner.learn_version()
        assert learner.version == version + 1
        assert learner.update == (version + 1) * updates
        assert learner.env_steps == (version + 1) * 20
        assert learner._replay.released == version + 1
        assert metrics["lag_versions_mean"] == min(version, 1)
        steps = {float(s["step"]) for s in learner.optimizer.state.values()}
        assert steps == {float(learner.update)}


def test_metrics_are_means_since_the_last_call():
    learner = make_learner(small_policy(), A2C(), *batches_of(1), micro_batch_rows=6)
    expected = learner._replay.batches[0].valid.float().mean().item()
    metrics = learner.learn_version()
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


def poisoned(batch):
    batch.reward[batch.valid.nonzero()[0][0], batch.valid.nonzero()[0][1]] = float("nan")
    return batch


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    good, bad, again = batches_of(3)
    learner = make_learner(small_policy(), A2C(), good, poisoned(bad), again)
    learner.learn_version()
    before = vector_of(learner.policy)
    metrics = learner.learn_version()
    assert torch.equal(vector_of(learner.policy), before)
    assert metrics["learner/nonfinite_updates"] == 1.0
    assert (learner.update, learner.version, learner.env_steps) == (2, 2, 40)
    assert learner.learn_version()["learner/nonfinite_updates"] == 1.0
    after = vector_of(learner.policy)
    assert after.isfinite().all()
    assert not torch.equal(after, before)


def test_a_row_that_is_not_learnt_may_be_not_finite():
    (batch,) = batches_of(1)
    assert not batch.valid.all()
    batch.reward[~batch.valid] = 1e30
    learner = make_learner(small_policy(), VTrace(), batch)
    assert learner.learn_version()["learner/nonfinite_updates"] == 0.0


def test_five_in_a_row_end_the_run():
    good, bad = batches_of(2)
    order = [*[poisoned(bad)] * 4, good, *[bad] * 5]
    learner = make_learner(small_policy(), A2C(), *order)
    for _ in range(9):
        learner.learn_version()
    assert learner.nonfinite_updates == 8
    with pytest.raises(
        RunFailed, match=r"5 updates in a row, at update 9; .*rewards are not finite"
    ):
        learner.learn_version()


def test_ppo_goes_on_after_a_skipped_update():
    good, bad = batches_of(2)
    algorithm = PPO(passes=2, num_minibatches=2, max_kl_nats=0.5)
    learner = make_learner(small_policy(), algorithm, poisoned(bad), good)
    learner.learn_version()
    learner.learn_version()
    # one poisoned row makes its column's part not finite in both passes
    assert learner.nonfinite_updates == 2
    assert vector_of(learner.policy).isfinite().all()


def test_parameters_are_mixed_in_place():
    learners = make_group(Diffusion(), 2, A2C(), spec=PIXELS, fc_size=8, torso="nature", b=2)
    held = [[(x.data_ptr(), x.stride()) for x in a.policy.shared_tensors()] for a in learners]
    filters = [p for p in learners[0].policy.parameters() if p.dim() == 4]
    lock_step(learners, 2)
    one, two = (vector_of(a.policy) for a in learners)
    assert torch.equal(one, two), "equal weights and rank order give equal bits"
    for learner, before in zip(learners, held, strict=True):
        now = [(x.data_ptr(), x.stride()) for x in learner.policy.shared_tensors()]
        assert now == before
    assert filters
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in filters)


@pytest.mark.parametrize("action", ["categorical", "gaussian"])
def test_every_parameter_and_moment_is_mixed_by_its_weight(action):
    topology = Gossip(graph="[[0.75,0.25],[0.4,0.6]]")
    spec = spec_of() if action == "categorical" else spec_of(CONTINUOUS)
    settings = {"normalize_obs": True, "value_norm": True, "spec": spec}
    algorithm = A2C(value_norm=True)
    learners = make_group(topology, 2, algorithm, **settings)
    with torch.no_grad():
        for rank, learner in enumerate(learners):
            for i, p in enumerate(learner.policy.parameters()):
                p.add_(0.01 * (rank + 1) * (i + 1))  # log-std and value head differ too
    alone = [make_learner(copy.deepcopy(a.policy), algorithm, *a._replay.batches) for a in learners]
    lock_step(learners, 1)
    for single in alone:
        single.adapt()
        single.combine()
    adapted = [vector_of(a.policy) for a in alone]
    assert ((adapted[0] - adapted[1]).abs() > 0).float().mean() > 0.95
    for weights, learner in zip(((0.75, 0.25), (0.4, 0.6)), learners, strict=True):
        mixed = weights[0] * adapted[0] + weights[1] * adapted[1]
        torch.testing.assert_close(vector_of(learner.policy), mixed, rtol=1e-5, atol=1e-6)
        assert learner.version == 1


def test_env_steps_are_counted_over_everyone():
    for topology in (Diffusion(), AllReduce(), Gossip()):
        learners = make_group(topology, 3, A2C())
        lock_step(learners, 2)
        # without waiting one knows of the others what they have reported
        assert learners[-1].env_steps == 2 * 3 * 20
        assert all(20 * 3 < a.env_steps <= 2 * 3 * 20 for a in learners)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_a_group_are_those_of_one_learner_with_all_rows(reduction):
    algorithm = A2C(reduction=reduction)
    learners = make_group(AllReduce(), 2, algorithm)
    both = random_batch(spec_of(), 5, 8)
    pair = [a._replay.batches[0] for a in learners]
    assert pair[0].valid.sum() != pair[1].valid.sum()
    for field in dataclasses.fields(both):
        halves = [getattr(x, field.name) for x in pair]
        if halves[0] is not None:
            lead = 0 if halves[0].shape[0] == 4 else 1
            setattr(both, field.name, torch.cat(halves, dim=lead))
    single = make_learner(copy.deepcopy(learners[0].policy), algorithm, both)
    before = vector_of(learners[0].policy)
    lock_step(learners, 1)
    single.learn_version()
    assert torch.equal(*(vector_of(a.policy) for a in learners))
    torch.testing.assert_close(
        vector_of(learners[0].policy), vector_of(single.policy), rtol=1e-4, atol=1e-6
    )
    assert not torch.equal(vector_of(learners[0].policy), before)
    ours = learners[0].take_metrics()
    for name in ("learner/loss", "learner/entropy_nats", "learner/grad_norm"):
        assert ours[name] == pytest.approx(single.take_metrics().get(name, ours[name]), rel=1e-4)


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(passes=2, num_minibatches=2, value_norm=True),
        PPO(passes=3, num_minibatches=2, max_kl_nats=1e-5, target_kl_nats=1e-3),
        VTrace(passes=2, normalize_advantage=True),
    ],
)
def test_an_all_reduced_group_stays_equal_to_the_bit(algorithm):
    learners = make_group(
        AllReduce(), 3, algorithm, normalize_obs=True, value_norm=algorithm.value_norm
    )
    for _ in range(12):
        lock_step(learners, 1)
        if learners[0]._batch is None:
            vectors = [vector_of(a.policy) for a in learners]
            assert torch.equal(vectors[0], vectors[1])
            assert torch.equal(vectors[0], vectors[2])
    assert learners[0].version >= 2
    assert len({(a.update, a.version) for a in learners}) == 1
    assert len({a._state.lr_scale for a in learners}) == 1


def test_one_that_is_through_early_keeps_pace():
    # the KL of learner 1 ends its version after the first update, the others make all six
    algorithm = PPO(passes=3, num_minibatches=2, max_kl_nats=1e-4)
    learners = make_group(Diffusion(adjacency="complete"), 3, algorithm)
    learners[1].optimizer.param_groups[0]["lr"] = 1e-1
    learners[1]._base_lr = [1e-1]
    for a in (learners[0], learners[2]):
        a._base_lr = [1e-9]
    lock_step(learners, 6)
    assert [(a.update, a.version) for a in learners] == [(6, 1)] * 3


def test_a_group_skips_a_gradient_that_is_not_finite_together():
    learners = make_group(AllReduce(), 2, A2C())
    poisoned(learners[1]._replay.batches[0])
    before = vector_of(learners[0].policy)
    lock_step(learners, 1)
    assert [a.nonfinite_updates for a in learners] == [1, 1]
    assert torch.equal(vector_of(learners[0].policy), before)
    lock_step(learners, 1)
    assert torch.equal(*(vector_of(a.policy) for a in learners))
    assert not torch.equal(vector_of(learners[0].policy), before)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "rmsprop_tf"])
def test_the_optimizers_averages_are_mixed_when_asked(name):
    optimizer = OptimizerConfig(name=name, learning_rate=(1e-2,), momentum=0.5)
    groups = {
        mixes: make_group(Diffusion(mix_optimizer=mixes), 2, A2C(), optimizer=optimizer)
        for mixes in (False, True)
    }
    for mixes, learners in groups.items():
        lock_step(learners, 3)
        states = [
            torch.cat(
                [x.flatten() for s in a.optimizer.state.values() for x in s.values() if x.ndim]
            )
            for a in learners
        ]
        assert torch.equal(*states) == mixes
    # the first step is what it would be without
    first = make_group(Diffusion(mix_optimizer=True), 2, A2C(), optimizer=optimizer)
    plain = make_group(Diffusion(), 2, A2C(), optimizer=optimizer)
    lock_step(first, 1)
    lock_step(plain, 1)
    assert torch.equal(vector_of(first[0].policy), vector_of(plain[0].policy))


def test_the_schedule_counts_env_steps_of_everyone():
    optimizer = OptimizerConfig(learning_rate=(0.8,), schedule="linear", schedule_end=0.25)
    learner = make_learner(
        small_policy(), A2C(num_minibatches=2), *batches_of(1), optimizer=optimizer,
        total_env_steps=80,
    )  # fmt: skip
    rates = [learner.learn_version()["learner/learning_rate"] for _ in range(6)]
    # 0, 20, 40, ... of 80 steps when each batch begins; from 0.8 to 0.2
    assert rates == pytest.approx([0.8, 0.65, 0.5, 0.35, 0.2, 0.2])


def test_the_kl_scales_the_scheduled_rate():
    policy = small_policy()
    algorithm = PPO(passes=1, num_minibatches=1, target_kl_nats=1e3)
    learner = make_learner(policy, algorithm, *batches_of(1))
    for k in range(3):
        assert learner.learn_version()["learner/learning_rate"] == pytest.approx(0.01 * 1.5**k)


def test_value_moments_follow_the_targets():
    batch, *_ = batches_of(1)
    policy = small_policy(value_norm=True)
    algorithm = PPO(passes=1, num_minibatches=1, value_norm=True)
    learner = make_learner(policy, algorithm, batch)
    learner.adapt()
    targets = learner._minibatch.target[batch.valid].double()
    assert policy.value_moments.count == 0
    learner.combine()
    assert policy.value_moments.count == len(targets)
    torch.testing.assert_close(policy.value_moments.mean, targets.mean(), rtol=1e-5, atol=1e-6)
    expected = targets.std(correction=0).item()
    assert policy.value_scale().item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("steps", [0, 40])
def test_observation_moments_are_updated_after_a_version_until_frozen(steps):
    policy = small_policy(normalize_obs=True, normalize_steps=steps)
    learner = make_learner(policy, VTrace(passes=2), *batches_of(4))
    seen = 0
    for k, batch in enumerate(learner._replay.batches):
        learner.adapt()
        learner.combine()
        assert policy.obs_moments.count == seen, "not in the middle of a version"
        learner.adapt()
        learner.combine()
        if not steps or k * 20 < steps:
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
    two.load_state_dict(state)
    two._replay.given = 3
    for _ in range(3):
        assert one.learn_version() == two.learn_version()
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
