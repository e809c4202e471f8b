"""An acting step as a captured function: repeated on new observations it acts as a CPU does."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from core_fakes import JOINT, CountingEnvs, small_policy, spec_of
from random_envs import RandomEnvs
from recorder import calling, recording
from sessions import fast

from gossamer.policies.settings import EncoderConfig
from gossamer.roles.actor import Actor
from gossamer.roles.evaluation import Steps, play
from gossamer.spec import ActionSpec, Leaf
from gossamer.system import devices
from gossamer.types import STORED, empty_trajectory

T, N, TRAJECTORIES = 5, 4, 2
ACTIONS = {
    "categorical": ActionSpec("categorical", (4,)),
    "multi_categorical": ActionSpec("multi_categorical", (3, 4)),
    "bernoulli": ActionSpec("bernoulli", (3,)),
    "gaussian": ActionSpec("gaussian", (2,), (-1.0, -2.0), (1.0, 4.0)),
    "joint": JOINT,
}
TORSOS = {"mlp": (4,), "nature": (4, 36, 36), "impala": (3, 8, 8)}
CORES = ("none", "lstm", "gru")


def policy_of(spec, core, **more):
    settings = {"fc_size": 16, "hidden_sizes": (16,), "core": core, "core_size": 8, **more}
    policy = small_policy(spec, normalize_obs=True, **{"value_norm": True, **settings})
    return policy.requires_grad_(False)


def collected(policy, graphs, groups=2):
    """Trajectories of an actor whose policy is another one each time, and its state afterwards."""
    envs = [RandomEnvs(policy.spec, N // groups, seed=i) for i in range(groups)]
    actor = Actor(
        envs,
        policy,
        unroll_length=T,
        seeds=list(range(groups)),
        on_episode=lambda x: None,
        graphs=graphs,
    )
    draw = torch.Generator().manual_seed(7)
    slot = empty_trajectory(
        policy.spec, unroll_length=T, num_columns=N, core_units=policy.core_units
    )
    found = []
    for version in range(TRAJECTORIES):
        for p in policy.parameters():
            p.add_(0.01 * torch.randn(p.shape, generator=draw))
        policy.observe_values(3.0 * version, 50.0 + version, 7.0)
        policy.refresh()
        actor.collect(slot, version)
        found.append({name: x.clone() for name, x, _ in slot.each()})
    return found, actor.state_dict()


@pytest.fixture
def ways(monkeypatch):
    """Yield what makes captured functions: none on a CPU, those that are called, those that are replayed."""

    def each(recorders=None):
        yield None
        monkeypatch.setattr(devices, "is_gpu", lambda device: True)
        yield calling()
        yield recording(recorders)
        monkeypatch.undo()

    return each


CASES = list(itertools.product(TORSOS, CORES, ACTIONS, (False, True)))
PAIRS = [
    ([*TORSOS][(i + j) % 3], core, action, (i + j) % 2 == 1)
    for i, core in enumerate(CORES)
    for j, action in enumerate(ACTIONS)
]
"""Cases in which any two values meet."""


@pytest.mark.parametrize(
    ("torso", "core", "action", "past"),
    fast(PAIRS, CASES),
)
def test_steps_are_replayed_as_they_are_called_and_act_as_on_a_cpu(ways, torso, core, action, past):
    more = {"torso": torso, "last_reward": past, "last_action": past}
    if action in ("gaussian", "joint") and past:
        more["noise_correlation"] = 0.5
    if core != "none" and past:
        more["head_sizes"] = (12,)
    runs = []
    for graphs in ways():
        policy = policy_of(spec_of(ACTIONS[action], TORSOS[torso]), core, **more)
        runs.append(collected(policy, graphs))
    (cpu, state), (called, state_called), (replayed, state_replayed) = runs
    for one, other in zip(called, replayed, strict=True):
        for name, x in one.items():
            assert torch.equal(x, other[name]), name
    for one, other in zip(cpu, called, strict=True):
        for name, x in one.items():
            torch.testing.assert_close(other[name], x, rtol=1e-4, atol=1e-5, msg=name)
    for name, x in state_called.items():
        same = (
            torch.equal(x, state_replayed[name])
            if isinstance(x, torch.Tensor)
            else x == state_replayed[name]
        )
        assert same, name
        if isinstance(x, torch.Tensor):
            assert x.shape == state[name].shape, name


NESTED = (
    Leaf("image", "pixels", (3, 36, 36)),
    Leaf("pair", "discrete", (2,), (4, 70)),
    Leaf("state/speed", "vector", (3,)),
)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_several_arrays_are_replayed_as_they_are_called_and_act_as_on_a_cpu(ways, core):
    spec = replace(spec_of(), leaves=NESTED)
    (cpu, _), (called, _), (replayed, state) = (
        collected(policy_of(spec, core), graphs) for graphs in ways()
    )
    for one, other, third in zip(cpu, called, replayed, strict=True):
        assert {"obs/image", "obs/pair", "obs/state/speed"} < one.keys()
        for name, x in one.items():
            assert torch.equal(other[name], third[name]), name
            torch.testing.assert_close(other[name], x, rtol=1e-4, atol=1e-5, msg=name)
    assert state["0.obs/pair"].dtype == torch.int64


@pytest.mark.parametrize(
    ("core", "leaves"),
    [("none", NESTED), ("lstm", NESTED), ("gru", spec_of().leaves)],
    ids=["several", "several, lstm", "one, gru"],
)
def test_masked_actions_are_replayed_as_they_are_called_and_none_is_forbidden(ways, core, leaves):
    mask = Leaf("action_mask", "mask", (ACTIONS["categorical"].num_params,))
    spec = replace(spec_of(ACTIONS["categorical"]), leaves=(*leaves, mask), mask_from="info")
    (cpu, _), (called, _), (replayed, _) = (
        collected(policy_of(spec, core), graphs) for graphs in ways()
    )
    for one, other, third in zip(cpu, called, replayed, strict=True):
        allowed = one["obs/action_mask"][:-1]
        assert allowed.gather(2, one["action"][..., None]).all()
        assert torch.equal(one["behavior"] < -1e8, ~allowed)
        for name, x in one.items():
            assert torch.equal(other[name], third[name]), name
            torch.testing.assert_close(other[name], x, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_layers_of_single_arrays_are_replayed_as_they_are_called(ways, core):
    mask = Leaf("action_mask", "mask", (ACTIONS["categorical"].num_params,))
    twins = [replace(leaf, name=f"{leaf.name}-2") for leaf in NESTED]
    spec = replace(
        spec_of(ACTIONS["categorical"]), leaves=(*NESTED, *twins, mask), mask_from="info"
    )
    kinds = {
        "image": "a3c",
        "image_2": "like:image",
        "pair": "one_hot",
        "pair_2": "mlp",
        "state/speed": "none",
        "action_mask": "auto",
    }
    encoders = {name: EncoderConfig(kind) for name, kind in kinds.items()}
    (cpu, _), (called, _), (replayed, _) = (
        collected(policy_of(spec, core, encoders=encoders), graphs) for graphs in ways()
    )
    for one, other, third in zip(cpu, called, replayed, strict=True):
        assert "obs/state/speed" in one, "what the network does not see is stored all the same"
        for name, x in one.items():
            assert torch.equal(other[name], third[name]), name
            torch.testing.assert_close(other[name], x, rtol=1e-4, atol=1e-5, msg=name)


KERNELS = {"none": 24, "lstm": 40}


@pytest.mark.parametrize("core", KERNELS)
def test_a_step_is_a_few_kernels(ways, core):
    recorders = []
    for graphs in ways(recorders):
        spec = spec_of(ActionSpec("categorical", (6,)), (4, 84, 84))
        collected(policy_of(spec, core, value_norm=False), graphs, groups=1)
    (recorder,) = recorders
    assert len(recorder.kernels) <= KERNELS[core], recorder.kernels


def test_an_actor_goes_on_from_its_state_where_its_functions_read(ways):
    spec = spec_of(ACTIONS["gaussian"], TORSOS["mlp"])
    for graphs in ways():
        one = policy_of(spec, "lstm", last_reward=True, last_action=True, noise_correlation=0.5)
        two = policy_of(spec, "lstm", last_reward=True, last_action=True, noise_correlation=0.5)
        actors = [
            Actor([CountingEnvs(N, action=spec.action)], policy, unroll_length=T, seeds=[seed],
                  on_episode=lambda x: None, graphs=graphs)
            for seed, policy in enumerate((one, two))
        ]  # fmt: skip
        slots = [
            empty_trajectory(spec, unroll_length=T, num_columns=N, core_units=one.core_units)
            for _ in actors
        ]
        for _ in range(4):
            actors[0].collect(slots[0], 0)
        actors[1].collect(slots[1], 0)
        assert actors[1].load_state_dict(actors[0].state_dict(), exact=True)
        for actor, slot in zip(actors, slots, strict=True):
            actor.collect(slot, 1)
        for name in STORED:
            assert torch.equal(getattr(slots[0], name), getattr(slots[1], name)), name
        assert np.isfinite(slots[0].value.numpy()).all()


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_evaluations_are_replayed_and_score_what_a_cpu_scores(ways, core, greedy):
    spec = spec_of(ACTIONS["gaussian"])
    found = []
    for graphs in ways():
        policy = policy_of(spec, core, last_reward=True, last_action=True, noise_correlation=0.5)
        steps = Steps(graphs) if graphs else None
        scores = []
        for version in range(3):
            with torch.no_grad():
                for p in policy.parameters():
                    p.add_(0.05 * version)
            envs = CountingEnvs(4, action=spec.action)
            scores.append(play(policy, envs, episodes=6, greedy=greedy, seed=version, steps=steps))
        found.append(scores)
    for scores in found[1:]:
        for one, other in zip(scores, found[0], strict=True):
            assert one.returns == pytest.approx(other.returns, rel=1e-5)
            assert one.lengths == other.lengths
    assert len({x.returns for x in found[0]}) == 3
