"""Captured functions of a learner: repeated on new data they are what calling them is, and what a CPU computes."""

from __future__ import annotations

import dataclasses
import itertools

import groups
import pytest
import torch
from core_fakes import JOINT, make_learner, poisoned, random_batch, small_policy, spec_of
from groups import lock_step, vector_of
from recorder import calling, recording
from sessions import fast

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.impact import Impact
from gossamer.algorithms.laser import Laser
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace
from gossamer.errors import RunFailed
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.spec import ActionSpec
from gossamer.system import devices
from gossamer.topology.allreduce import AllReduce
from gossamer.topology.diffusion import Diffusion
from gossamer.topology.gossip import Gossip

VERSIONS = 6
ACTIONS = {
    "categorical": ActionSpec("categorical", (4,)),
    "multi_categorical": ActionSpec("multi_categorical", (3, 4)),
    "bernoulli": ActionSpec("bernoulli", (3,)),
    "gaussian": ActionSpec("gaussian", (2,), (-1.0, -2.0), (1.0, 4.0)),
    "joint": JOINT,
}
TORSOS = {"mlp": (4,), "nature": (4, 36, 36), "a3c": (4, 24, 24), "impala": (3, 8, 8)}
CORES = ("none", "lstm", "gru")
ALGORITHMS = {
    "a2c": A2C(num_minibatches=2, value_norm=True, popart=True),
    "a2c, normalised": A2C(normalize_advantage=True),
    "vtrace": VTrace(value_norm=True, scale_rewards=True),
    "vtrace, passes": VTrace(passes=2, num_minibatches=2, normalize_advantage=True),
    # Random batches are far from what the policy would do: with a smaller limit nothing would be left of them.
    "laser": Laser(num_minibatches=2, cut="cumulative", value_norm=True, max_kl_nats=20.0),
    "ppo": PPO(
        passes=2,
        num_minibatches=3,
        target_kl_nats=0.01,
        clip_value=0.2,
        value_norm=True,
        popart=True,
    ),
    "ppo, kl": PPO(passes=3, num_minibatches=2, max_kl_nats=0.05, deal="columns"),
    "impact": Impact(num_minibatches=2, target_every_updates=3, value_norm=True, popart=True),
}
OPTIMIZERS = {
    "adam": OptimizerConfig(),
    "adamw": OptimizerConfig(name="adamw", weight_decay=0.01),
    # A small epsilon makes a step of the rounding of a gradient that is nearly nothing.
    "rmsprop": OptimizerConfig(name="rmsprop", epsilon=1e-2),
    "rmsprop, momentum": OptimizerConfig(
        name="rmsprop", epsilon=1e-2, momentum=0.5, weight_decay=0.01
    ),
    "rmsprop_tf": OptimizerConfig(name="rmsprop_tf", epsilon=1e-2, momentum=0.5, weight_decay=0.01),
}
TOPOLOGIES = {
    "gossip": Gossip(),
    "gossip, lock-step": Gossip(graph="complete", max_staleness=0),
    "gossip, versions": Gossip(max_staleness=0, every="versions", mix_optimizer=True),
    "diffusion": Diffusion(adjacency="ring"),
    "allreduce": AllReduce(),
}


@pytest.fixture
def ways(monkeypatch):
    """Yield the name of each way of computing and its captured functions: on a CPU, called as on a GPU, replayed."""

    def each(recorders=None):
        yield "cpu", None
        monkeypatch.setattr(devices, "is_gpu", lambda device: True)
        yield "called", calling()
        yield "replayed", recording(recorders)
        monkeypatch.undo()

    return each


def rated(optimizer, learning_rate=1e-4):
    return dataclasses.replace(optimizer, learning_rate=(learning_rate,), schedule="linear")


def policy_of(torso, core, action, value_norm):
    settings = {"torso": torso, "fc_size": 16, "hidden_sizes": (16,), "core": core, "core_size": 8}
    past = {"last_reward": core != "none", "last_action": core != "none"}
    if core == "gru":
        settings["head_sizes"] = (12,)
    spec = spec_of(ACTIONS[action], TORSOS[torso])
    return small_policy(spec, normalize_obs=True, value_norm=value_norm, **settings, **past)


def batches_for(policy, *, replayed=0, burn_in=0):
    batches = [
        random_batch(policy.spec, 5, 6, seed=10 + i, core_units=policy.core_units)
        for i in range(VERSIONS)
    ]
    for k, batch in enumerate(batches if replayed else ()):
        if k >= 2:  # until then the replay has not enough
            batch.replayed[-replayed:] = True
            batch.burn_in = burn_in
            batch.valid[:burn_in, -replayed:] = False
    if replayed:
        batches[:2] = [batch.columns(0, 6 - replayed) for batch in batches[:2]]
    poisoned(batches[4])
    return batches


def tensors_of(learner):
    state = learner.state_dict().items()
    return {k: x.clone() for k, x in state if isinstance(x, torch.Tensor)}


def learnt(learner):
    """What a learner has come to after every version, and what it told."""
    found = []
    for _ in range(VERSIONS):
        learner.learn_version()
        found.append((tensors_of(learner), learner.take_metrics()))
    return found


def apart(one, other, scale=0.0):
    """Largest difference of two tensors, relative to their largest number, or to what these are sums of."""
    if not other.numel():
        return 0.0
    return ((one - other).abs().max() / other.abs().max().clamp(min=max(scale, 1e-3))).item()


def scale_of(name, tensors):
    """Return how large a sum of numbers around zero would be, were they all of one sign; 0: it is no such sum."""
    moments, _, kind = name.rpartition(".")
    if kind != "total":
        return 0.0
    return float((tensors[f"{moments}.squares"].max() * tensors[f"{moments}.count"]).sqrt())


def assert_alike(cpu, called, replayed):
    """What is replayed equals what is called; both are what a CPU computes, but for rounding, which grows."""
    for (one, told), (other, said) in zip(called, replayed, strict=True):
        assert told == said
        for name, x in one.items():
            assert torch.equal(x, other[name]), name
    for version, ((one, told), (other, said)) in enumerate(zip(cpu, called, strict=True)):
        early = version < 2  # afterwards pools and clipped rows have been decided by rounding
        assert told.keys() == said.keys()
        for name, x in told.items():
            # Of a few rows it is a small difference of large numbers.
            near = 1e-2 if "variance" in name or "std" in name else 1e-4
            assert said[name] == pytest.approx(x, rel=1e-3 if early else 1e-2, abs=near), name
        for name, x in one.items():
            # A row that is kept, or learnt from, for rounding alone changes gradients by all that it says.
            if x.is_floating_point() and (early or not name.startswith("optimizer.")):
                exact = early and name.startswith(("policy.", "rank"))
                limit = 1e-5 if exact else 2e-3 if early else 5e-2
                assert apart(other[name], x, scale_of(name, one)) <= limit, name


def learn_in_all_ways(ways, algorithm, torso, core, action, optimizer, recorders=None, **columns):
    found = []
    for _, graphs in ways(recorders):
        policy = policy_of(torso, core, action, algorithm.value_norm)
        learner = make_learner(
            policy,
            algorithm,
            *batches_for(policy, **columns),
            # Where two pixels are the largest of a pool, rounding decides which of them learns.
            optimizer=rated(optimizer, 1e-6 if torso == "impala" else 1e-4),
            total_env_steps=2000,
            graphs=graphs,
        )
        found.append(learnt(learner))
        assert learner.nonfinite_updates > 0
    assert_alike(*found)


PARTS = ALGORITHMS, TORSOS, CORES, ACTIONS, OPTIMIZERS
CASES = list(itertools.product(*PARTS))


def is_shown(case):
    """Choose a case for each algorithm with each core, in which each core meets everything else, too."""
    algorithm, torso, core, action, optimizer = map(
        lambda part, x: list(part).index(x), PARTS, case
    )
    i, first = algorithm + optimizer, 0 if algorithm < 4 else 2
    rest = i % 4, i % 3, (algorithm + 2 * optimizer) % 5
    return (torso, core, action) == rest and first <= optimizer < first + 3


def test_every_core_meets_everything_in_a_case_that_is_shown():
    shown = [case for case in CASES if is_shown(case)]
    core = PARTS.index(CORES)
    for i, part in enumerate(PARTS):
        met = itertools.product(CORES, part) if i != core else zip(CORES, CORES, strict=True)
        assert {(case[core], case[i]) for case in shown} == set(met)


@pytest.mark.parametrize(
    ("algorithm", "torso", "core", "action", "optimizer"),
    fast(filter(is_shown, CASES), CASES),
)
def test_a_learners_functions_are_replayed_as_they_are_called(
    ways, algorithm, torso, core, action, optimizer
):
    learn_in_all_ways(ways, ALGORITHMS[algorithm], torso, core, action, OPTIMIZERS[optimizer])


REPLAYING = {
    "vtrace": VTrace(policy_cloning_cost=0.01, value_cloning_cost=0.005, value_norm=True),
    "laser": Laser(num_minibatches=2),
    "impact": Impact(num_minibatches=2, target_every_updates=3),
}


@pytest.mark.parametrize(
    ("algorithm", "core"),
    fast(
        [("vtrace", "gru"), ("laser", "lstm"), ("impact", "none"), ("impact", "lstm")],
        itertools.product(REPLAYING, CORES),
    ),
)
def test_replays_that_have_enough_are_another_layout(ways, algorithm, core):
    burn_in = 2 if core != "none" else 0
    learn_in_all_ways(
        ways, REPLAYING[algorithm], "mlp", core, "categorical", OPTIMIZERS["adam"],
        replayed=2, burn_in=burn_in,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    fast(
        zip(TOPOLOGIES, ("laser", "a2c", "vtrace", "a2c", "ppo"), strict=True),
        itertools.product(TOPOLOGIES, ("a2c", "vtrace", "ppo", "laser")),
    ),
)
def test_groups_mix_between_what_is_replayed(ways, topology, algorithm):
    found = []
    for _, graphs in ways():
        # On a GPU a message waits in the host's memory, as other learners may be anywhere.
        learners = groups.make_group(
            TOPOLOGIES[topology], 3, ALGORITHMS[algorithm], normalize_obs=True, batches=6,
            value_norm=ALGORITHMS[algorithm].value_norm, optimizer=rated(OPTIMIZERS["adam"]), graphs=graphs,
        )  # fmt: skip
        updates = learners[0].updates_per_version
        states = []
        for _ in range(5):
            lock_step(learners, updates)
            told = {k: x for a in learners for k, x in a.take_metrics().items()}
            states.append(({f"rank {a.rank}": vector_of(a.policy) for a in learners}, told))
        found.append(states)
    assert_alike(*found)


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo", "impact"])
def test_what_is_captured_goes_on_from_a_checkpoint(ways, algorithm):
    """Loading writes where the functions read."""
    for way, graphs in ways():
        if way != "replayed":
            continue
        one, two = (
            make_learner(policy, ALGORITHMS[algorithm], *batches_for(policy), graphs=graphs, seed=seed,
                         optimizer=rated(OPTIMIZERS["adam"]))
            for seed in (1, 2)
            for policy in [policy_of("mlp", "lstm", "categorical", ALGORITHMS[algorithm].value_norm)]
        )  # fmt: skip
        for _ in range(4):
            one.learn_version()
        for _ in range(3):  # both have been captured
            two.learn_version()
        state = {
            k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in one.state_dict().items()
        }
        two.load_state_dict(state)
        two.replay.given = one.replay.given
        for _ in range(3):
            one.learn_version()
            two.learn_version()
        for name, x in tensors_of(one).items():
            assert torch.equal(x, tensors_of(two)[name]), name


def test_five_updates_in_a_row_that_are_not_finite_end_the_run(ways):
    for way, graphs in ways():
        policy = policy_of("mlp", "none", "categorical", False)
        batches = batches_for(policy)
        bad = poisoned(random_batch(policy.spec, 5, 6, seed=3))
        learner = make_learner(policy, VTrace(), *batches[:4], *[bad] * 5, graphs=graphs)
        for _ in range(8):
            learner.learn_version()
        with pytest.raises(RunFailed, match="5 batches in a row"):
            learner.learn_version()
        assert all(p.isfinite().all() for p in policy.parameters()), way


KERNELS = {"none": 225, "lstm": 483}
"""Most kernels of a version of one update, its moments and what follows from them included: V-trace, a Nature CNN."""


@pytest.mark.parametrize("core", KERNELS)
def test_an_update_is_a_few_hundred_kernels(ways, core):
    recorders = []
    for way, graphs in ways(recorders):
        if way == "replayed":
            spec = spec_of(ActionSpec("categorical", (6,)), (4, 84, 84))
            policy = small_policy(spec, normalize_obs=True, core=core, core_size=8)
            batches = [
                random_batch(spec, 16, 2, seed=i, core_units=policy.core_units) for i in range(2)
            ]
            learner = make_learner(
                policy, VTrace(), *batches, optimizer=OptimizerConfig(), graphs=graphs
            )
            for _ in range(4):
                learner.learn_version()
    kernels = sum(len(recorder.kernels) for recorder in recorders)
    assert kernels <= KERNELS[core]
