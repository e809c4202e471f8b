"""Learners that mix: parameters, moments, gradients, counts and decisions of several at once."""

from __future__ import annotations

import copy
import dataclasses
import threading

import pytest
import torch
from core_fakes import CONTINUOUS, learn, make_learner, poisoned, random_batch, spec_of
from groups import join_group, lock_step, make_group, vector_of

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.errors import RunFailed
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.topology.allreduce import AllReduce
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip
from gossamer.topology.single import Single

PIXELS = spec_of(obs_shape=(4, 36, 36))


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
    alone = [make_learner(copy.deepcopy(a.policy), algorithm, *a.replay.batches) for a in learners]
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


def decisions(learners, versions):
    return sum(int(batch.valid.sum()) for a in learners for batch in a.replay.batches[:versions])


def test_env_steps_are_counted_over_everyone():
    for topology in (Diffusion(), AllReduce(), Gossip()):
        learners = make_group(topology, 3, A2C())
        lock_step(learners, 2)
        first, both = decisions(learners, 1), decisions(learners, 2)
        # without waiting one knows of the others what they have reported
        assert learners[-1].env_steps == both
        assert all(first < a.env_steps <= both for a in learners)
    own = [decisions([a], 2) for a in learners]
    assert len(set(own)) > 1
    alone = make_group(Single(), 3, A2C())
    lock_step(alone, 2)
    assert [a.env_steps for a in alone] == [3 * n for n in own], "each has a share of its own"


class Trails:
    """Gives a batch only after another learner has got its own; None: at once."""

    def __init__(self, replay, behind):
        self.replay, self.behind = replay, behind
        self.got = [threading.Event() for _ in replay.batches]

    def __getattr__(self, name):
        return getattr(self.replay, name)

    def sample(self):
        turn = self.replay.given
        assert self.behind is None or self.behind.got[turn].wait(30.0)
        self.got[turn].set()
        return self.replay.sample()


RING = Gossip(graph="ring", max_staleness=0)


@pytest.mark.parametrize("topology", [RING, Diffusion(adjacency="ring"), AllReduce()])
def test_learners_in_lock_step_count_alike_however_far_they_are_apart(topology):
    algorithm = PPO(passes=2, num_minibatches=2)
    learners = make_group(topology, 6, algorithm, batches=9)
    counts = [[] for _ in learners]
    first = learners[3]  # as far from learner 0 as can be
    first.replay = Trails(first.replay, None)
    learners[0].replay = Trails(learners[0].replay, first.replay)

    def learns(learner):
        for _ in range(9):
            learner.learn_version()
            counts[learner.rank].append(learner.env_steps)

    threads = [threading.Thread(target=learns, args=(a,)) for a in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert counts == [[decisions(learners, k + 1) for k in range(9)]] * 6


def test_nobody_waits_for_the_count_of_one_that_has_left():
    learners = make_group(RING, 3, A2C())
    lock_step(learners, 1)
    gone = learners.pop(1)
    gone.mixer.peers.boxes.mark_left(1)
    lock_step(learners, 1)
    assert [a.env_steps for a in learners] == [decisions(learners, 2) + decisions([gone], 1)] * 2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_a_group_are_those_of_one_learner_with_all_rows(reduction):
    algorithm = A2C(reduction=reduction)
    learners = make_group(AllReduce(), 2, algorithm)
    both = random_batch(spec_of(), 5, 8)
    pair = [a.replay.batches[0] for a in learners]
    assert pair[0].valid.sum() != pair[1].valid.sum()
    for name, _, lead in both.each():
        setattr(both, name, torch.cat([getattr(x, name) for x in pair], dim=lead))
    single = make_learner(copy.deepcopy(learners[0].policy), algorithm, both)
    before = vector_of(learners[0].policy)
    lock_step(learners, 1)
    alone = learn(single)
    assert torch.equal(*(vector_of(a.policy) for a in learners))
    torch.testing.assert_close(
        vector_of(learners[0].policy), vector_of(single.policy), rtol=1e-4, atol=1e-6
    )
    assert not torch.equal(vector_of(learners[0].policy), before)
    ours = learners[0].take_metrics()
    for name in ("learner/loss", "learner/entropy_nats", "learner/grad_norm"):
        assert ours[name] == pytest.approx(alone[name], rel=1e-4)


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(passes=2, num_minibatches=2, value_norm=True, popart=True),
        PPO(passes=3, num_minibatches=2, max_kl_nats=1e-5, target_kl_nats=1e-3),
        VTrace(passes=2, normalize_advantage=True),
        Impact(num_minibatches=2, target_every_updates=3, value_norm=True),
    ],
)
def test_an_all_reduced_group_stays_equal_to_the_bit(algorithm):
    learners = make_group(
        AllReduce(), 3, algorithm, normalize_obs=True, value_norm=algorithm.value_norm
    )
    for _ in range(12):
        before = learners[0].version
        lock_step(learners, 1)
        if learners[0].version > before:
            vectors = [vector_of(a.policy) for a in learners]
            assert torch.equal(vectors[0], vectors[1])
            assert torch.equal(vectors[0], vectors[2])
    assert learners[0].version >= 2
    assert len({(a.update, a.version) for a in learners}) == 1
    # What the algorithm keeps: the scale of the rate, a target policy.
    kept = [
        {
            k: x
            for k, x in a.state_dict().items()
            if k.startswith("algorithm.") and "generator" not in k
        }
        for a in learners
    ]
    assert any(".target." in name for name in kept[0]) == isinstance(algorithm, Impact)
    for other in kept[1:]:
        assert other.keys() == kept[0].keys()
        for name, x in kept[0].items():
            assert torch.equal(torch.as_tensor(other[name]), torch.as_tensor(x)), name


def test_one_that_is_through_early_keeps_pace():
    # the KL of learner 1 ends its version after the first update, the others make all six
    algorithm = PPO(passes=3, num_minibatches=2)
    soon = dataclasses.replace(algorithm, max_kl_nats=1e-9)
    learners = make_group(Diffusion(adjacency="complete"), 3, [algorithm, soon, algorithm])
    lock_step(learners, 2)
    assert [not a.dealt for a in learners] == [False, True, False]
    lock_step(learners, 4)
    assert [(a.update, a.version) for a in learners] == [(6, 1)] * 3


@pytest.mark.parametrize("max_staleness", [0, 2, "never"])
def test_once_a_version_learners_learn_alone_and_mix_at_its_end(max_staleness):
    rows = [[0.5, 0.5, 0.0], [0.0, 0.75, 0.25], [0.2, 0.0, 0.8]]
    topology = Gossip(graph=str(rows), max_staleness=max_staleness, every="versions")
    algorithm = PPO(passes=2, num_minibatches=2)
    learners = make_group(topology, 3, algorithm)
    alone = [make_learner(copy.deepcopy(a.policy), algorithm, *a.replay.batches) for a in learners]
    for version in (1, 2):
        lock_step(learners, 3)
        for single in alone:
            single.learn_version()
        assert all(a.mixer.rounds == version - 1 for a in learners)
        lock_step(learners, 1)
        assert [(a.update, a.version) for a in learners] == [(4 * version, version)] * 3
        thetas = torch.stack([vector_of(a.policy) for a in alone])
        mixed = torch.tensor(rows, dtype=torch.float64) @ thetas
        for learner, single, expected in zip(learners, alone, mixed, strict=True):
            torch.testing.assert_close(vector_of(learner.policy), expected)
            single.policy.load_state_dict(learner.policy.state_dict())
            single.policy.refresh()


def test_once_a_version_one_that_is_through_early_mixes_too():
    algorithm = PPO(passes=3, num_minibatches=2)
    soon = dataclasses.replace(algorithm, max_kl_nats=1e-9)
    topology = Gossip(every="versions")
    learners = make_group(topology, 2, [algorithm, soon])
    lock_step(learners, 1)  # nobody waits: learner 1 goes on to its next version
    assert [(a.version, a.mixer.rounds) for a in learners] == [(0, 0), (1, 1)]
    in_step = dataclasses.replace(topology, max_staleness=0)
    learners = make_group(in_step, 2, [algorithm, soon])
    lock_step(learners, 6)
    assert [(a.version, a.mixer.rounds, a.mixer.messages) for a in learners] == [(1, 1, 1)] * 2


@pytest.mark.parametrize("topology", [AllReduce(), Diffusion(adjacency="complete"), Gossip()])
@pytest.mark.parametrize(
    "algorithm",
    [
        A2C(value_norm=True),
        VTrace(passes=2, value_norm=True),
        Impact(num_minibatches=2, value_norm=True),
    ],
)
def test_value_moments_of_a_group_hold_the_whole_version(topology, algorithm):
    learners = make_group(topology, 2, algorithm, value_norm=True)
    rows = [int(a.replay.batches[0].valid.sum()) for a in learners]
    lock_step(learners, algorithm.updates_per_batch)
    passes = getattr(algorithm, "passes", 1)  # each sees every row once
    counts = [a.policy.value_moments.count.item() for a in learners]
    if isinstance(topology, Gossip):  # two in a directed ring: each has heard the other's
        assert counts[1] == passes * sum(rows) / 2
    else:
        assert counts == [passes * sum(rows) / 2] * 2
    held = [a.policy.value_moments.count.item() for a in learners]
    lock_step(learners, algorithm.updates_per_batch)
    if not isinstance(topology, Gossip):  # nothing of the first version is counted again
        assert [a.policy.value_moments.count.item() for a in learners] == [
            x + passes * sum(int(a.replay.batches[1].valid.sum()) for a in learners) / 2
            for x in held
        ]


def test_an_algorithm_that_yields_more_than_it_says_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Twice(A2C):
        def dealt(self, num_columns, num_online, state):
            return iter([None, None])

    for learners in (make_group(Diffusion(), 2, Twice()), make_group(Single(), 1, Twice())):
        with pytest.raises(AssertionError, match="dealt yields more"):
            lock_step(learners, 1)


def test_env_steps_never_go_back():
    learners = make_group(Gossip(), 3, A2C())
    lock_step(learners, 2)
    states = [a.state_dict() for a in learners]
    before = max(a.env_steps for a in learners)
    again = make_group(Gossip(), 3, A2C(), joins=False)
    for learner, state in zip(again, states, strict=True):
        learner.load_state_dict(state)
        learner.env_steps = before
    join_group(again)
    lock_step(again, 1)
    assert all(a.env_steps >= before for a in again)
    assert again[-1].env_steps == before + decisions(again, 1)


def test_all_reduced_rates_follow_the_number_of_learners():
    for scaling, factor in (("none", 1.0), ("sqrt", 4.0**0.5), ("linear", 4.0)):
        (learner, *_) = make_group(AllReduce(lr_scaling=scaling), 4, A2C())
        learner.adapt()
        assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * factor)


def test_a_group_skips_a_gradient_that_is_not_finite_together():
    learners = make_group(AllReduce(), 2, A2C())
    poisoned(learners[1].replay.batches[0])
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


def test_more_metrics_than_travel_beside_gradients_are_told():
    @dataclasses.dataclass(frozen=True)
    class Talkative(A2C):
        def loss(self, policy, batch, state):
            loss, metrics = super().loss(policy, batch, state)
            return loss, metrics | {f"own/{i}": (torch.ones(()), 1.0) for i in range(30)}

    says = r"reports \d+ metrics; where gradients are averaged there is room for 31: report fewer"
    with pytest.raises(RunFailed, match=says):
        lock_step(make_group(AllReduce(), 2, Talkative()), 1)
    learners = make_group(Diffusion(), 2, Talkative())
    lock_step(learners, 1)
    assert learners[0].take_metrics()["own/29"] == 1.0
