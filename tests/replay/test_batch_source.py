"""Batches of online and replayed columns: what is in them, in which order, and on after a restart."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from core_fakes import (
    gradient_and_losses_of,
    gradient_of,
    make_learner,
    random_batch,
    small_policy,
    spec_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_fakes import B, T, make_mix, make_replay, same, sample, take, trajectory_of

from gossamer.algorithms.base import unroll
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.vtrace import VTrace
from gossamer.build.roles import LearnerBundle
from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.circular import CircularSettings
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.run.placements.host_learners import HostLearners
from gossamer.system.signs_of_life import Wait
from gossamer.types import STORED, as_batch, empty_trajectory


@pytest.mark.parametrize(
    "network", [{}, {"core": "gru", "core_size": 4}, {"core": "lstm", "core_size": 4}]
)
@pytest.mark.parametrize("shape", [(4,), (3, 36, 36)])
def test_a_replayed_column_gives_the_gradient_that_it_gave_online(network, shape):
    spec = spec_of(obs_shape=shape)
    policy = small_policy(spec, **network)
    online = random_batch(spec, T, B, seed=3, core_units=policy.core_units)
    replay = make_replay(spec, UniformSettings(), capacity=B, core_units=policy.core_units)
    replay.add(trajectory_of(online), None)
    again = as_batch(
        empty_trajectory(spec, unroll_length=T, num_columns=B, core_units=policy.core_units)
    )
    sample(replay, again)
    again = again.take(torch.argsort(again.entry))
    assert again.replayed.all()
    for name in STORED:
        assert torch.equal(getattr(again, name), getattr(online, name)), name
    impact = Impact(num_minibatches=1)
    for algorithm in (VTrace(), Laser(entropy_cost=(0.0,)), impact):
        one, told = gradient_and_losses_of(policy, algorithm, online, 10**6)
        other, said = gradient_and_losses_of(policy, algorithm, again, 10**6)
        assert torch.equal(one, other)
        assert one.abs().max() > 1e-4
        for term in ("loss", "policy_loss", "value_loss", "target_mean", "grad_norm"):
            assert told[f"learner/{term}"] == said[f"learner/{term}"] != 0.0, term


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize(
    "algorithm",
    [VTrace(), Laser(entropy_cost=(0.0,), max_kl_nats=1e6), Impact(num_minibatches=1)],
)
def test_rows_of_burn_in_only_warm_up_the_recurrent_state(core, algorithm):
    """As if the column began behind them, from the state in which the present policy leaves them."""
    policy = small_policy(spec_of(), core=core, core_size=4)
    online = random_batch(policy.spec, T, B, seed=3, core_units=policy.core_units)
    rows = 2
    warm = replace(
        online, valid=online.valid.clone(), burn_in=rows, replayed=torch.ones(B, dtype=torch.bool)
    )
    warm.valid[:rows] = False
    with torch.no_grad():
        state = unroll(policy, online, slice(0, rows)).core_state
    kept = {
        name: getattr(online, name)[rows:]
        for name in STORED
        if name != "core_state" and getattr(online, name).shape[0] >= T
    }
    later = replace(
        online,
        **kept,
        core_state=state,
        last_action=online.action[rows - 1],
        last_reward=online.reward[rows - 1],
    )
    one = gradient_of(policy, algorithm, warm, 10**6)
    other = gradient_of(policy, algorithm, later, 10**6)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert one.abs().max() > 1e-4
    # Beside online columns, and cut in other places: the same.
    half = replace(warm, valid=warm.valid.clone(), replayed=warm.replayed.clone())
    half.replayed[: B // 2] = False
    half.valid[:, : B // 2] = online.valid[:, : B // 2]
    whole = gradient_of(policy, algorithm, half, 10**6)
    parts = gradient_of(policy, algorithm, half, T)
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_online_columns_beside_a_burn_in_have_the_gradient_that_they_have_alone(core):
    """What leads to the state behind those rows is learnt too."""
    policy = small_policy(spec_of(), core=core, core_size=4)
    batch = random_batch(policy.spec, T, B, seed=3, core_units=policy.core_units)
    mixed = replace(batch, burn_in=2, replayed=torch.arange(B) >= B // 2)
    mixed.valid[:2, mixed.replayed] = False
    online = batch.columns(0, B // 2)
    assert not online.starts[2].any(), "episodes go on behind them"
    parts = [mixed, online, mixed.columns(B // 2, B)]
    whole, *apart = (gradient_of(policy, VTrace(reduction="sum"), x, 10**6) for x in parts)
    torch.testing.assert_close(whole, sum(apart), rtol=1e-4, atol=1e-5)


def test_only_replayed_columns_have_rows_of_burn_in():
    mix, _, _ = make_mix(UniformSettings(), columns=8, burn_in=2)
    for k in range(6):
        batch = mix.sample()
        if k < 2:
            assert not batch.burn_in
        else:
            assert batch.burn_in == 2
            assert batch.replayed.tolist() == [False] * B + [True] * 8
            assert not batch.valid[:2, B:].any()
            assert batch.valid[:2, :B].any()
            assert batch.valid[2:, B:].any()
        mix.release()


def test_batches_are_online_columns_first_and_whole_once_there_is_enough():
    mix, queue, _ = make_mix(UniformSettings(), columns=8)
    sizes, ages = [], []
    for k in range(12):
        batch = mix.sample()
        sizes.append(batch.num_columns)
        assert (batch.version[:B] == k).all()
        assert not batch.replayed[:B].any()
        assert batch.replayed[B:].all()
        assert (batch.version[B:] < k).all(), (
            "an unroll is not replayed in the batch that it is online in"
        )
        assert len(set(batch.entry[B:].tolist())) == len(batch.entry[B:]), "none twice in a batch"
        ages += (k - batch.version[B:]).tolist()
        mix.release()
    assert sizes == [B, B] + [B + 8] * 10
    assert min(ages) == 1
    assert max(ages) == 5, "of 20 places, four overwritten each time"
    assert queue.released == list(range(12))


def test_metrics_count_what_was_learnt_since_they_were_last_asked_for():
    mix, *_ = make_mix(UniformSettings(), columns=8)
    for count in (5, 4):
        ages: list[int] = []
        for _, (online, *versions), _ in take(mix, count):
            ages += [online - x for x in versions[B - 1 :]]
        metrics = mix.take_metrics()
        assert metrics["replay/ratio"] == pytest.approx(len(ages) / (count * B))
        assert metrics["replay/age_updates"] == pytest.approx(np.mean(ages))
    assert mix.take_metrics() == {}


def test_nothing_is_replayed_before_learn_start():
    mix, *_ = make_mix(UniformSettings(learn_start=3 * B * T + 1))
    sizes = [mix.sample().num_columns for _ in range(1)]
    mix.release()
    for _ in range(5):
        sizes.append(mix.sample().num_columns)
        mix.release()
    assert sizes == [B, B, B, B, 2 * B, 2 * B]


def test_every_column_of_a_circular_replay_comes_as_often():
    """Three times each, beside the one online: IMPACT's buffer of K = 4."""
    mix, *_ = make_mix(CircularSettings(), columns=3 * B, capacity=4 * B)
    seen: dict[int, list[int]] = {}
    for k in range(20):
        batch = mix.sample()
        for entry in batch.entry[B:].tolist():
            seen.setdefault(entry, []).append(k)
        mix.release()
    whole = [batches for batches in seen.values() if 3 < batches[0] < 16]
    assert len(whole) > 8 * B
    assert all(len(set(batches)) == len(batches) == 3 for batches in whole)


KINDS = {
    "circular": (CircularSettings(),),
    "uniform": (UniformSettings(),),
    "two": (UniformSettings(), EliteSettings(candidate_multiplier=2.0)),
    "attentive": (AttentiveSettings(candidate_multiplier=3.0, anneal_updates=20),),
    "elite insertion": (EliteSettings(insert="elite", elite_batch=2, strategy="nearest"),),
}


@pytest.mark.parametrize(("kind", "ahead"), list(zip(KINDS, (0, 1, 2, 1, 2), strict=True)))
def test_a_thread_of_its_own_changes_nothing(kind, ahead):
    runs = []
    for threaded in (False, True):
        mix, queue, policy = make_mix(*KINDS[kind], ahead=ahead, threaded=threaded)
        runs.append(take(mix, 25, policy))
        mix.state_dict()  # when all is done
        mix.close()
        assert sorted(queue.released) == list(range(25))
    assert same(*runs)


def test_uniform_batches_are_the_same_however_far_ahead_they_are_picked():
    runs = []
    for ahead in (0, 1):
        mix, _, policy = make_mix(UniformSettings(), ahead=ahead)
        runs.append(take(mix, 12, policy))
    assert same(*runs)


@pytest.mark.parametrize(("kind", "ahead"), list(zip(KINDS, (2, 1, 0, 2, 1), strict=True)))
def test_it_goes_on_as_if_it_had_never_stopped(kind, ahead):
    one, _, policy = make_mix(*KINDS[kind], ahead=ahead)
    take(one, 9, policy)
    saved = {
        k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in one.state_dict().items()
    }
    weights = [p.detach().clone() for p in policy.parameters()]
    expected = take(one, 10, policy)
    other, queue, policy = make_mix(*KINDS[kind], ahead=ahead)
    with torch.no_grad():
        for p, x in zip(policy.parameters(), weights, strict=True):
            p.copy_(x)
    queue.given = 9
    other.load_state_dict(saved)
    assert same(take(other, 10, policy), expected)


def test_what_fails_beside_the_learner_is_told_to_it():
    mix, *_ = make_mix(UniformSettings(), threaded=True)
    mix.sample()
    mix.release()
    mix.shares[0].replay.shards.ring.write = None
    with pytest.raises(TypeError, match="not callable"):
        take(mix, 3)
    mix.close()


def test_a_time_out_beside_the_learner_is_told_while_that_waits(monkeypatch):
    mix, *_ = make_mix(UniformSettings(), threaded=True)
    waits, look = threading.Event(), Wait.look
    monkeypatch.setattr(Wait, "look", lambda self: waits.set() or look(self))
    mix.sample()
    mix.release()

    def fails(*_):
        assert waits.wait(20.0)
        raise TimeoutError("the disk did not answer")

    mix.shares[0].replay.ready = fails
    with pytest.raises(TimeoutError, match="did not answer"):
        take(mix, 3)
    mix.close()


def test_what_fails_to_close_leaves_nothing_open():
    mix, *_ = make_mix(UniformSettings(), threaded=True)
    began = threading.Event()

    def fails(*_):
        began.set()
        raise TypeError("not callable")

    mix.shares[0].replay.shards.ring.write = fails
    mix.sample()
    assert began.wait(20.0)
    closed = []

    class Closes:
        def close(self):
            closed.append(self)

    good, bad = Closes(), Closes()
    bad.close = mix.close
    links = dict.fromkeys(("plan", "policy", "queue", "board", "gate", "stop"))
    actors = Closes(), Closes()
    parts = [
        LearnerBundle(learner=x, actor=y, **links) for x, y in zip((bad, good), actors, strict=True)
    ]
    with pytest.raises(TypeError, match="not callable"):
        HostLearners(parts, None, exact=False, config=None).close()
    assert closed == [actors[0], good, actors[1]]


@settings(max_examples=20)
@given(
    capacity=st.integers(B, 30),
    columns=st.integers(1, 12),
    strategy=st.sampled_from(["nearest", "stratified", "least_used", "stratified_least_used"]),
    insert=st.sampled_from(["fifo", "elite"]),
    multiplier=st.floats(1.0, 6.0),
)
def test_no_replay_hangs_loses_or_overfills(capacity, columns, strategy, insert, multiplier):
    kind = EliteSettings(
        strategy=strategy,
        insert=insert,
        candidate_multiplier=multiplier,
        anneal_updates=12,
        elite_batch=3,
    )
    mix, *_ = make_mix(kind, columns=columns, capacity=capacity)
    replay = mix.shares[0].replay
    for k in range(10):
        batch = mix.sample()
        assert batch.num_columns in (B, B + columns)
        if batch.num_columns > B and columns <= min(capacity, k * B):
            assert len(set(batch.entry[B:].tolist())) == columns
        mix.release()
        assert replay.held == min(capacity, (k + 1) * B)
        held = replay.shards.ring.fields["version"][: replay.held]
        assert int(held.max()) == k, "the newest is there"
        if insert == "fifo":
            newest = [n for n in range(k + 1) for _ in range(B)][-capacity:]
            assert sorted(held.tolist()) == newest


def test_the_least_moved_candidates_are_taken():
    """Columns of which the policy now says what it said then, among others it has moved from."""
    spec = spec_of()
    replay = make_replay(
        spec, EliteSettings(strategy="nearest", candidate_multiplier=10.0), capacity=12
    )
    same_now = lambda trajectory: trajectory.obs[:-1].repeat(1, 1, 2)  # noqa: E731
    moved = lambda trajectory: same_now(trajectory) + 1.0  # noqa: E731
    for i in range(3):
        batch = random_batch(spec, T, B, seed=i)
        batch.version.fill_(i)
        replay.add(trajectory_of(batch), same_now if i == 1 else moved)
    into = as_batch(empty_trajectory(spec, unroll_length=T, num_columns=B, core_units=0))
    sample(replay, into, same_now)
    assert (into.version == 1).all()


def test_attentive_sampling_takes_what_is_like_the_newest_state():
    spec = spec_of()
    replay = make_replay(
        spec, AttentiveSettings(strategy="nearest", candidate_multiplier=10.0), capacity=12
    )
    constant = lambda trajectory: trajectory.obs[:-1].repeat(1, 1, 2)  # noqa: E731
    for i, level in enumerate((5.0, 1.0, 0.0)):
        batch = random_batch(spec, T, B, seed=i)
        batch.obs.fill_(level)
        batch.version.fill_(i)
        replay.add(trajectory_of(batch), constant)
    into = as_batch(empty_trajectory(spec, unroll_length=T, num_columns=2 * B, core_units=0))
    sample(replay, into, constant)
    assert sorted(into.version.tolist()) == [1] * B + [2] * B


def test_a_learner_counts_online_steps_and_observes_online_columns():
    policy = small_policy(normalize_obs=True)
    batch = random_batch(spec_of(), T, 6)
    batch = replace(batch, obs=batch.obs.clone())
    batch.replayed[2:] = True
    batch.obs[:, 2:] += 1000.0
    batch.version[2:] = -100
    learner = make_learner(policy, Laser(), batch)
    learner.learn_version()
    assert not batch.valid[:, :2].all()
    assert learner.env_steps == batch.valid[:, :2].sum()
    assert learner.lag_versions_max == 0.0
    mean, _ = policy.obs_moments.mean_std(1e-4)
    online = batch.obs[:T, :2][batch.valid[:, :2]].double().mean(0)
    np.testing.assert_allclose(mean.numpy(), online.numpy(), rtol=1e-6)
