"""The outer step, against loops of its formulas: alone, for one learner, and for several in every topology."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from core_fakes import CONSTANT, learn, make_learner, poisoned, random_batch, small_policy, spec_of
from groups import join_group, lock_step, make_group, make_mixers, vector_of

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.roles.outer_step import OuterStep
from gossamer.topology.allreduce import AllReduce
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip
from gossamer.topology.graphs import outer_contraction
from gossamer.topology.single import Single

HEAVY = {"outer_momentum": 0.5}
SLOW = {"outer_momentum": 0.7, "outer_rate": 0.3}
FAR = {"outer_rate": 1.5}
NESTEROV = {"outer_momentum": 0.4, "outer_rate": 0.8, "outer_nesterov": True}
LINEAR = OptimizerConfig(learning_rate=(1e-2,), schedule="linear", schedule_end=0.2)
ALL = [
    Single(),
    AllReduce(),
    Gossip(),
    Gossip(graph="exponential", max_staleness=0),
    Gossip(graph="rotating", max_staleness=2, every="versions"),
    Gossip(graph="complete", missing="skip"),
    Gossip(graph="[[0.5,0.2,0.3,0],[0.1,0.8,0,0.1],[0,0.5,0.5,0],[0.3,0,0,0.7]]", remix=True),
    Diffusion(),
    Diffusion(adjacency="star", weights="uniform", every="versions"),
    Diffusion(adjacency="grid", link_drop=0.5),
]


def outer(base=CONSTANT, **settings):
    return dataclasses.replace(base, **settings)


def slow_outer_step(theta, phi, u, *, gamma, outer_momentum=0.0, outer_rate=1.0,
                    outer_nesterov=False):  # fmt: skip
    """The formulas, number by number; changes u, returns what theta becomes."""
    after = []
    for i in range(len(theta)):
        g = (theta[i] - phi[i]) / gamma
        u[i] = outer_momentum * u[i] + g
        d = g + outer_momentum * u[i] if outer_nesterov else u[i]
        after.append(theta[i] - outer_rate * gamma * d)
    return after


def numbers_of(learner):
    return [x for p in learner.policy.parameters() for x in p.detach().double().flatten().tolist()]


def put(learner, numbers):
    rest = torch.tensor(numbers)
    with torch.no_grad():
        for p in learner.policy.parameters():
            p.copy_(rest[: p.numel()].view(p.shape))
            rest = rest[p.numel() :]


class Slow:
    """A learner without an outer step, beside which the reference takes one whenever a version is over."""

    def __init__(self, learner, settings):
        self.learner, self.settings = learner, settings
        self.theta = numbers_of(learner)
        self.u = [0.0] * len(self.theta)
        self.version = learner.version

    def follow(self):
        if self.learner.version == self.version:
            return
        self.version = self.learner.version
        gamma = self.learner.optimizer.param_groups[0]["lr"]
        phi = numbers_of(self.learner)
        self.theta = slow_outer_step(self.theta, phi, self.u, gamma=gamma, **self.settings)
        put(self.learner, self.theta)


def assert_follows_the_reference(topology, size, algorithm, settings, updates):
    groups = [
        make_group(topology, size, algorithm, optimizer=outer(LINEAR, **x)) for x in (settings, {})
    ]
    for learners in groups:
        with torch.no_grad():
            for rank, learner in enumerate(learners):
                if topology.mixes == "parameters":
                    for p in learner.policy.parameters():
                        p.add_(0.01 * rank)
    slow = [Slow(learner, settings) for learner in groups[1]]
    for _ in range(updates):
        for learners in groups:
            lock_step(learners, 1)
        for reference in slow:
            reference.follow()
        for learner, reference in zip(groups[0], slow, strict=True):
            assert learner.version == reference.version
            ours = torch.tensor(numbers_of(learner))
            theirs = torch.tensor(numbers_of(reference.learner))
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
    assert groups[0][0].version >= 3
    return groups[0]


@pytest.mark.parametrize(("size", "settings"), [(1, HEAVY), (4, SLOW), (4, FAR), (1, NESTEROV)])
def test_it_is_the_reference(size, settings):
    topology = Gossip(max_staleness=0) if size > 1 else Single()
    algorithm = PPO(passes=2, num_minibatches=2)
    assert_follows_the_reference(topology, size, algorithm, settings, 12)


@pytest.mark.parametrize("topology", ALL)
def test_in_every_topology(topology):
    algorithm = VTrace(num_minibatches=2)
    assert_follows_the_reference(topology, 4, algorithm, NESTEROV, 6)


@pytest.mark.parametrize(("every", "staleness"), [("updates", "never"), ("versions", 0)])
def test_one_that_is_through_early_steps_after_the_last_mixing(every, staleness):
    algorithm = PPO(passes=2, num_minibatches=2)
    soon = dataclasses.replace(algorithm, max_kl_nats=1e-9)
    topology = Gossip(graph="complete", max_staleness=staleness, every=every)
    assert_follows_the_reference(topology, 3, [algorithm, soon, algorithm], HEAVY, 12)


@pytest.mark.parametrize(
    ("topology", "settings"),
    [
        (Diffusion(), HEAVY),
        (Diffusion(adjacency="star", every="versions"), SLOW),
        (Gossip(graph="exponential", max_staleness=0), FAR),
        (Gossip(graph="rotating", max_staleness=0), NESTEROV),
    ],
)
def test_averages_follow_the_same_recursion(topology, settings, monkeypatch):
    """As all columns of these matrices sum to 1, mixing leaves the average be."""
    phis = {}
    learners = make_group(topology, 4, A2C(), optimizer=outer(LINEAR, **settings))

    def note(learner):
        step = learner.outer_step.apply

        def noting(learning_rate):
            phis[learner.rank] = numbers_of(learner)
            step(learning_rate)

        monkeypatch.setattr(learner.outer_step, "apply", noting)

    for rank, learner in enumerate(learners):
        note(learner)
        put(learner, [x + 0.02 * rank for x in numbers_of(learner)])
    theta = np.mean([numbers_of(a) for a in learners], axis=0).tolist()
    u = [0.0] * len(theta)
    for _ in range(6):
        lock_step(learners, 1)
        (gamma,) = {a.optimizer.param_groups[0]["lr"] for a in learners}
        phi = np.mean([phis[a.rank] for a in learners], axis=0).tolist()
        theta = slow_outer_step(theta, phi, u, gamma=gamma, **settings)
        now = np.mean([numbers_of(a) for a in learners], axis=0)
        np.testing.assert_allclose(now, theta, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("topology", "size", "momentum", "rate", "nesterov", "mixings"),
    [
        (Gossip(max_staleness=0, mix_optimizer=True), 4, 0.5, 1.0, False, 1),
        (Diffusion(adjacency="star", mix_optimizer=True), 5, 0.7, 1.0, True, 1),
        (
            Diffusion(),
            6,
            0.9,
            1.0,
            True,
            2,
        ),  # 0.9, by which the mean of u falls, is no disagreement
        (Gossip(max_staleness=0), 4, 0.5, 0.8, False, 1),  # a directed ring: apart
        (Gossip(max_staleness=0), 4, 0.5, 0.8, False, 4),
        (Gossip(max_staleness=0), 5, 0.3, 0.7, True, 1),
        (Gossip(graph="complete", max_staleness=0), 4, 0.0, 1.5, False, 1),
        (Diffusion(), 6, 0.5, 1.0, False, 1),
        (Diffusion(adjacency="star", weights="uniform"), 5, 0.7, 1.0, True, 1),
        (Gossip(graph="rotating", max_staleness=0), 6, 0.5, 1.0, False, 2),  # of 3 in turn
    ],
)
def test_disagreement_shrinks_as_is_told(topology, size, momentum, rate, nesterov, mixings):
    first = torch.randn(size, 3, generator=torch.Generator().manual_seed(1)).double()
    turns = topology.turns(size, 1)
    mixes_u = topology.mix_optimizer
    told = outer_contraction(turns, mixings, momentum, rate, nesterov=nesterov, mixes_u=mixes_u)
    matrices = [[[row.get(j, 0.0) for j in range(size)] for row in turn] for turn in turns]
    held = list(first)
    steps = [OuterStep([x], momentum, rate, nesterov=nesterov) for x in held]
    apart = []
    for version in range(60):
        for step in steps:
            step.begin()
        phi = torch.stack(held)
        for i in range(version * mixings, (version + 1) * mixings):
            weights = torch.tensor(matrices[i % len(turns)]).double()
            phi = weights @ phi
            if mixes_u:
                us = [step.mixed()[0] for step in steps]
                for u, now in zip(us, weights @ torch.stack(us), strict=True):
                    u.copy_(now)
        for x, y, step in zip(held, phi, steps, strict=True):
            x.copy_(y)
            step.apply(0.1)
        apart.append((torch.stack(held) - torch.stack(held).mean(0)).norm().item())
    # Complex pairs make it swing: over many versions.
    found = (max(apart[45:60]) / max(apart[15:30])) ** (1 / 30)
    assert found == pytest.approx(told, abs=0.03)
    grows = topology == Gossip(max_staleness=0) and (momentum, mixings) == (0.5, 1)
    assert (told > 1.0) == grows


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    "topology",
    [
        Diffusion(),
        Diffusion(adjacency="star", weights="uniform"),
        Gossip(max_staleness=0),
        Gossip(graph="rotating"),
        Gossip(graph="complete", max_staleness=2),
    ],
)
def test_consensus_without_gradients_is_a_fixed_point_and_reached_again(topology, nesterov):
    gen = torch.Generator().manual_seed(1)
    first = torch.randn(5, generator=gen)
    mixers, held = make_mixers(topology, torch.stack([first] * 4).tolist())
    momentum, rate, gamma = 0.3, 0.7, 0.1
    steps = [OuterStep([x], momentum, rate, nesterov=nesterov) for x in held]
    version = iter(range(1000))

    def versions(count):
        for _ in range(count):
            for step in steps:
                step.begin()
            update = next(version)
            for mixer in mixers:
                mixer.post(update)
            for mixer in mixers:
                mixer.mix(update)
            for step in steps:
                step.apply(gamma)

    versions(10)
    for x in held:
        torch.testing.assert_close(x, first, rtol=0.0, atol=1e-5)
    us = torch.randn(4, 5, generator=gen)
    for step, u in zip(steps, us, strict=True):
        step.load_state_dict({"0": u})
    before = held[0].clone()
    versions(1)
    assert (torch.stack(held) - before).abs().max() > 0.01, "it has been left"
    versions(150)
    for step, x in zip(steps, held, strict=True):
        torch.testing.assert_close(x, held[0], rtol=0.0, atol=1e-5)
        assert step.mixed()[0].abs().max() < 1e-4
    if not (isinstance(topology, Diffusion) and topology.weights == "uniform"):
        # The average coasts by the sum of momentum, its square, ...; once more with nesterov's factor.
        coasts = rate * gamma * momentum / (1.0 - momentum) * (momentum if nesterov else 1.0)
        torch.testing.assert_close(held[0], before - coasts * us.mean(0), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("momentum", "rate", "nesterov"),
    [(0.5, 1.0, False), (0.5, 0.5, False), (0.3, 1.5, False), (0.5, 1.0, True), (0.0, 2.0, False)],
)
def test_on_a_quadratic_it_has_the_closed_forms_spectrum(momentum, rate, nesterov):
    """Of steps of gradient descent on sum h x^2 / 2, whose spectrum for momentum 0.5, rate 1 is that of l^2 - (0.5 + a) l + 0.5."""
    gamma, inner = 0.1, 3
    h = torch.tensor([0.05, 0.5, 2.0, 9.0], dtype=torch.float64)
    a = (1.0 - gamma * h) ** inner
    x = torch.zeros(4, dtype=torch.float64)
    step = OuterStep([x], momentum, rate, nesterov=nesterov)
    columns = []  # what becomes of (x, gamma u) = (1, 0) and (0, 1)
    for first in (1.0, 0.0):
        x.fill_(first)
        state = {"0": torch.full((4,), (1.0 - first) / gamma, dtype=torch.float64)}
        step.load_state_dict(state)
        step.begin()
        for _ in range(inner):
            x.sub_(gamma * h * x)
        step.apply(gamma)
        u = step.mixed()[0] if momentum else torch.zeros_like(x)
        columns.append(torch.stack([x.clone(), gamma * u]))
    for i, factor in enumerate(a.tolist()):
        found = torch.linalg.eigvals(torch.stack([c[:, i] for c in columns], 1)).numpy()
        left = rate * (1.0 - factor)
        trace = 1.0 + momentum - left * (1.0 + momentum if nesterov else 1.0)
        product = momentum * (1.0 - left if nesterov else 1.0)
        expected = np.roots([1.0, -trace, product])
        np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(expected), atol=1e-7)
        if (momentum, rate, nesterov) == (0.5, 1.0, False):
            np.testing.assert_allclose(np.poly(found).real, [1.0, -0.5 - factor, 0.5], atol=1e-9)
            if factor < 2**0.5 - 0.5:
                np.testing.assert_allclose(np.abs(found), 0.5**0.5)


@pytest.mark.parametrize("settings", [NESTEROV, FAR])
def test_an_all_reduced_group_stays_equal_to_the_bit(settings):
    algorithm = PPO(passes=2, num_minibatches=2, target_kl_nats=1e-3)
    learners = make_group(AllReduce(), 3, algorithm, optimizer=outer(**settings))
    before = vector_of(learners[0].policy)
    lock_step(learners, 12)
    assert learners[0].version == 3
    states = [a.state_dict() for a in learners]
    held = [k for k in states[0] if k.startswith(("policy.", "outer."))]
    assert any(k.startswith("outer.") for k in held) == (settings is not FAR)
    for name in held:
        ours = torch.as_tensor(states[0][name])
        assert all(torch.equal(torch.as_tensor(x[name]), ours) for x in states[1:]), name
    assert not torch.equal(vector_of(learners[0].policy), before)


@pytest.mark.parametrize("topology", [Single(), Diffusion(mix_optimizer=True), AllReduce()])
def test_the_defaults_keep_compute_and_mix_nothing(topology, monkeypatch):
    learned = []
    for never in (False, True):
        if never:
            monkeypatch.setattr(OuterStep, "begin", lambda self: None)
            monkeypatch.setattr(OuterStep, "apply", lambda self, learning_rate: None)
        learners = make_group(topology, 2, A2C())
        lock_step(learners, 4)
        assert not any(k.startswith("outer.") for k in learners[0].state_dict())
        assert "learner/outer_step_ratio" not in learners[0].take_metrics()
        learned.append([vector_of(a.policy) for a in learners])
    for ours, theirs in zip(*learned, strict=True):
        assert torch.equal(ours, theirs)
        assert not learners[0].outer_step.mixed()


@pytest.mark.parametrize("mixes", [False, True])
def test_it_is_mixed_if_what_optimizers_keep_is(mixes):
    topology = Diffusion(adjacency="complete", mix_optimizer=mixes, every="versions")
    learners = make_group(topology, 3, A2C(), optimizer=outer(**HEAVY))
    plain = make_group(dataclasses.replace(topology, mix_optimizer=False), 3, A2C())
    assert len(learners[0].mixed()) - len(plain[0].mixed()) == mixes * 3 * len(
        [*learners[0].policy.parameters()]
    ), "Adam's two averages and the outer step's"
    held = [a.outer_step.mixed() for a in learners]
    for rank, tensors in enumerate(held):
        for x in tensors:
            x.fill_(3.0 * rank)
    for learner in learners:
        learner.adapt()
    for learner in learners:
        learner.outer_step.apply = lambda learning_rate: None
        learner.combine()
    found = [x.item() for x in (tensors[-1].flatten()[0] for tensors in held)]
    assert found == pytest.approx([3.0, 3.0, 3.0] if mixes else [0.0, 3.0, 6.0])


@pytest.mark.parametrize(
    "topology", [Single(), AllReduce(), Diffusion(mix_optimizer=True), Gossip(max_staleness=0)]
)
def test_it_goes_on_from_a_saved_state(topology):
    algorithm = PPO(passes=1, num_minibatches=2)
    optimizer = outer(LINEAR, **NESTEROV)

    def group():
        return make_group(topology, 2, algorithm, optimizer=optimizer, joins=False)

    first, second = group(), group()
    join_group(first)
    lock_step(first, 4)
    for old, new in zip(first, second, strict=True):
        state = {k: copy.deepcopy(x) for k, x in old.state_dict().items()}
        new.load_state_dict(state)
        new.replay.given = old.replay.given
    join_group(second)
    for learners in (first, second):
        lock_step(learners, 4)
    for ours, theirs in zip(second, first, strict=True):
        a, b = ours.state_dict(), theirs.state_dict()
        assert a.keys() == b.keys()
        assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in a)


def test_a_state_without_it_begins_with_none():
    batches = [random_batch(spec_of(), 5, 4, seed=i) for i in range(3)]
    old = make_learner(small_policy(), A2C(), *batches)
    learn(old)
    new = make_learner(small_policy(), A2C(), *batches, optimizer=outer(**HEAVY))
    learn(new)
    assert any(x.any() for x in new.outer_step.mixed())
    new.load_state_dict(old.state_dict())
    assert not any(x.any() for x in new.outer_step.mixed())
    learn(new)
    old.load_state_dict(new.state_dict())  # nor does one without it mind
    state = new.state_dict()
    for wrong in ({**state, "outer.0": torch.zeros(1)}, {**state}):
        wrong.pop("outer.1")
        with pytest.raises(RuntimeError, match=r"outer\.[01] does not fit its parameter"):
            new.load_state_dict(wrong)


def test_before_learn_start_parameters_are_what_mixing_makes_of_them():
    both = [
        make_group(
            Gossip(max_staleness=0),
            2,
            A2C(),
            optimizer=outer(learn_start=45, **settings),
        )
        for settings in (SLOW, {})
    ]
    for learners in both:
        put(learners[1], [x + 0.1 for x in numbers_of(learners[1])])
    ways = iter((True, True, False))
    while (same := next(ways, None)) is not None:
        assert (both[0][0].env_steps < 45) == same
        for learners in both:
            lock_step(learners, 1)
        ours, theirs = (vector_of(learners[0].policy) for learners in both)
        assert torch.equal(ours, theirs) == same
        assert any(x.any() for x in both[0][0].outer_step.mixed()) != same


def test_a_version_whose_updates_were_all_skipped_coasts():
    good = random_batch(spec_of(), 5, 4, seed=1)
    bad = poisoned(random_batch(spec_of(), 5, 4, seed=2))
    learner = make_learner(small_policy(), A2C(), good, bad, optimizer=outer(**HEAVY))
    before = torch.tensor(numbers_of(learner))
    learn(learner)
    after = torch.tensor(numbers_of(learner))
    assert learn(learner)["learner/nonfinite_updates"] == 1.0
    now = torch.tensor(numbers_of(learner))
    torch.testing.assert_close(now - after, 0.5 * (after - before), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("learning_rate", [0.0, 1e-40])
def test_at_no_learning_rate_parameters_stay_as_they_are(learning_rate):
    x = torch.ones(3)
    step = OuterStep([x], 0.5, 0.5)
    step.begin()
    x.add_(1.0)
    step.apply(learning_rate)
    assert torch.equal(x, torch.full((3,), 2.0))
    assert not step.mixed()[0].any()


def test_what_it_followed_at_the_end_of_a_schedule_is_forgotten_at_the_beginning_of_another():
    """Mixing changes parameters by as much at any rate; at the end there may be a step left of a million."""
    x, y = torch.zeros(1), torch.zeros(1)
    step, again = (OuterStep([held], 0.5, 1.0) for held in (x, y))
    for change, learning_rate in ((1e-3, 1e-3), (1e-3, 1e-9)):
        step.begin()
        x.add_(change)
        step.apply(learning_rate)
    again.load_state_dict(step.state_dict())
    y.copy_(x)
    for held, followed in ((x, step), (y, again)):
        followed.begin()
        held.add_(1e-3)
        followed.apply(5e-4)
    assert torch.equal(x, y)
    assert x.item() == pytest.approx(3e-3, rel=1e-3), "not 0.5 * 1e-3 * 5e-4 / 1e-9 more"


@pytest.mark.parametrize("settings", [SLOW, NESTEROV, FAR])
def test_tensors_stay_where_and_as_they_are(settings):
    spec = spec_of(obs_shape=(4, 36, 36))
    learners = make_group(
        Diffusion(), 2, A2C(), spec=spec, fc_size=8, torso="nature", b=2,
        optimizer=outer(**settings),
    )  # fmt: skip
    params = [*learners[0].policy.parameters()]
    tensors = [*params, *learners[0].outer_step.mixed()]
    held = [(x.data_ptr(), x.stride()) for x in tensors]
    assert [x.stride() for x in tensors[len(params) :]] in ([x.stride() for x in params], [])
    lock_step(learners, 3)
    assert held == [(x.data_ptr(), x.stride()) for x in tensors]


def test_how_far_it_goes_is_told():
    x = torch.zeros(2)
    step = OuterStep([x], 0.5, 1.0)
    assert step.take_metrics() == {}
    for _ in range(2):  # changes of 5, steps of 5 and 7.5
        step.begin()
        x.add_(torch.tensor([3.0, 4.0]))
        step.apply(0.1)
    assert step.take_metrics() == {"learner/outer_step_ratio": pytest.approx(1.25)}
    assert step.take_metrics() == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"outer_momentum": 1.0}, "optimizer.outer_momentum"),
        ({"outer_momentum": -0.1}, "optimizer.outer_momentum"),
        ({"outer_rate": 0.0}, "optimizer.outer_rate"),
        ({"outer_rate": float("nan")}, "optimizer.outer_rate"),
        ({"outer_nesterov": True}, "outer_momentum is 0: --optimizer.outer-momentum 0.5, or leave"),
        ({"outer_lr": 0.5}, "did you mean optimizer.outer_rate"),
    ],
)
def test_what_makes_no_step_is_refused_in_one_line(settings, says):
    with pytest.raises(ConfigError) as refused:
        make_config("CartPole-v1", {"optimizer": settings})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_rate_that_rises_by_half_keeps_what_was_followed():
    """As one that follows the KL does."""
    x = torch.zeros(1)
    step = OuterStep([x], 0.5, 1.0)
    for learning_rate in (0.1, 0.15):
        step.begin()
        x.add_(1.0)
        step.apply(learning_rate)
    # u is -1 / 0.1, then half of that and -1 / 0.15
    assert x.item() == pytest.approx(1.0 + 1.0 + 0.15 * 5.0)
