"""Every kind of policy answers the same from an ONNX file and from a torch program, to 1e-5."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from random_envs import RandomEnvs
from sessions import slow

from gossamer.build.roles import build_trained_policy
from gossamer.config import kinds, make_config
from gossamer.envs.interface import interface_of
from gossamer.envs.spaces import action_format
from gossamer.export.metadata import describe
from gossamer.export.recording import TOLERANCE, check, record
from gossamer.export.step import OneStep
from gossamer.spec import EnvSpec, one_leaf

# One process imports what exports to ONNX, which takes seconds.
pytestmark = pytest.mark.xdist_group("export")

ACTIONS = {
    "categorical": spaces.Discrete(3, start=-1),
    "multi_categorical": spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, 5]])),
    "whole": spaces.Box(np.array([[1, -3]]), np.array([[2, 0]]), dtype=np.int32),
    "bernoulli": spaces.MultiBinary((2, 2)),
    "gaussian": spaces.Box(np.float32([-0.5, -2.0]), np.float32([0.5, 4.0])),
    "gaussian64": spaces.Box(
        np.array([[-np.inf, -0.1]]), np.array([[0.3, np.inf]]), dtype=np.float64
    ),
}
VECTOR, PIXELS = (5,), (4, 36, 44)
TORSOS = {"mlp": VECTOR, "nature": PIXELS, "impala": PIXELS, "a3c": PIXELS, "elite": PIXELS}
CORES = {
    "none": {},
    "lstm": {"core": "lstm", "core_size": 6},
    "gru": {"core": "gru", "core_size": 6, "head_sizes": (5,)},
}
PAST = {"last_action": True, "last_reward": True}
CASES: list[Any] = [
    ("laser", "impala", "none", "multi_categorical", {"last_action": True}),
    ("ppo", "mlp", "gru", "gaussian64", {"scale_actions": True, "core_layers": 2, **PAST}),
    ("a2c", "mlp", "lstm", "bernoulli", {"last_action": True}),
    ("impact", "mlp", "none", "whole", {"separate_value": False, **PAST}),
    ("vtrace", "elite", "none", "gaussian", {"squash": True, "normalize_obs": False}),
]
PROGRAMS: list[Any] = [
    ("vtrace", "nature", "none", "categorical", {}),
    ("impact", "a3c", "none", "bernoulli", {}),
]
"""Of these a torch program alone is made in every run of the tests: to ONNX it takes four times as long, and plain convolutions
and categorical actions go there in `test_export_command`. With `CASES` there is every algorithm, torso, core and kind of action."""
SLOW: list[Any] = [
    ("a2c", "mlp", "none", "categorical", {}),
    ("a2c", "mlp", "none", "whole", {"last_action": True}),
    ("ppo", "mlp", "none", "gaussian", {"squash": True}),
    ("vtrace", "elite", "none", "gaussian64", {"normalize_obs": False}),
    ("impact", "mlp", "none", "multi_categorical", {"separate_value": False, "last_reward": True}),
    ("vtrace", "nature", "lstm", "categorical", PAST),
    ("laser", "impala", "gru", "multi_categorical", {"last_action": True}),
    ("ppo", "nature", "gru", "gaussian", {"last_action": True}),
]


def cases() -> list[Any]:
    rest = itertools.product(TORSOS, CORES, ACTIONS)
    algorithms = itertools.cycle(kinds("algorithm"))
    every = [(next(algorithms), *case, PAST if case[1] != "none" else {}) for case in rest]
    quick = [("onnx pt2", *case) for case in CASES] + [("pt2", *case) for case in PROGRAMS]
    return [*quick, *(slow("onnx pt2", *case) for case in [*PROGRAMS, *SLOW, *every])]


def test_the_quick_cases_leave_nothing_out() -> None:
    for i, known in enumerate((kinds("algorithm"), TORSOS, CORES, ACTIONS)):
        assert {case[i] for case in [*CASES, *PROGRAMS]} == set(known)


def make_policy(algorithm: str, torso: str, core: str, action: str, settings: dict[str, Any]):
    shape = TORSOS[torso]
    spec = EnvSpec(
        "Any-v0",
        one_leaf("pixels" if shape == PIXELS else "vector", shape),
        action_format("Any-v0", ACTIONS[action]).spec,
        "any",
        100,
    )
    network = {"torso": torso, "hidden_sizes": [12], "fc_size": 24, **CORES[core], **settings}
    config = make_config("CartPole-v1", {"algorithm": algorithm, "policy": network})
    own = spaces.Box(0, 255, PIXELS, np.uint8) if shape == PIXELS else spaces.Box(-10, 10, VECTOR)
    interface = interface_of("Any-v0", {}, own, ACTIONS[action])
    policy = build_trained_policy(config, spec, interface).requires_grad_(False).eval()
    gen = torch.Generator().manual_seed(1)
    envs = RandomEnvs(spec, 16, seed=2)
    steps = 4 if core == "none" else 30  # what a core holds needs some to settle
    obs = torch.from_numpy(np.stack([envs.obs() for _ in range(steps)]))
    policy.observe(obs, torch.ones(steps - 1, 16, dtype=torch.bool))
    policy.observe_values(160.0, 4_000.0, 100)
    policy.refresh()
    for x in policy.parameters():  # biases, which begin at 0, have to be exported too
        x.add_(0.01 * torch.randn(x.shape, generator=gen))
    taken = policy.distribution(torch.zeros(steps, 16, spec.action.num_params)).sample(gen)
    past = [taken, torch.zeros(steps, 16)]  # it is fed what it has chosen, not one action alone
    starts, state = torch.zeros(steps, 16, dtype=torch.bool), policy.initial_state(16)
    # Features of about 1, as trained networks have them: of larger ones float32 tells the last digits less well.
    layer = [x for x in policy.torso.modules() if isinstance(x, torch.nn.Linear)][-1]
    seen: list[torch.Tensor] = []
    with layer.register_forward_hook(lambda _, __, out: seen.append(out)):
        policy(obs, starts, state, *past)
    layer.weight.div_(seen[0].std())
    # Parameters of about 1 around 0, so that every action is the likeliest one now and then.
    policy.action_head.weight.div_(
        policy(obs, starts, state, *past).action_params.std((0, 1)).mean().clamp(min=0.3)
    )
    policy.action_head.bias.sub_(
        policy(obs, starts, state, *past).action_params.mean((0, 1))[: len(policy.action_head.bias)]
    )
    return policy


@pytest.mark.parametrize(("made", "algorithm", "torso", "core", "action", "settings"), cases())
def test_a_file_answers_as_the_policy_does(
    made: str, algorithm: str, torso: str, core: str, action: str, settings: dict[str, Any]
) -> None:
    pytest.importorskip("onnxruntime")
    from gossamer.export.onnx_file import onnx_bytes, onnx_step
    from gossamer.export.program import has_old_exporters, program_bytes, program_step

    if core != "none" and has_old_exporters():
        pytest.skip("an older torch exports no recurrent core to ONNX")
    policy = make_policy(algorithm, torso, core, action, settings)
    interface = policy.interface
    step = OneStep(policy, interface.action).eval()
    recording = record(policy, RandomEnvs(policy.spec, 3), steps=50)
    description = describe(step, interface, {})
    how = "squashed" if "squash" in settings else "scaled" if "scale_actions" in settings else ""
    real = policy.spec.action.num_gaussian > 0
    assert description["action"].get("real_numbers") == ((how or "clipped") if real else None)
    if interface.action["dtype"].startswith("int"):
        chosen = recording.outputs["action"].reshape(150, -1)
        assert len(np.unique(chosen, axis=0)) > 1, "the policy does choose"
    assert np.unique(recording.outputs["value"]).size > 100
    forms = {"onnx": (onnx_bytes, onnx_step), "pt2": (program_bytes, program_step)}
    for make, take in map(forms.__getitem__, made.split()):
        agreement = check(take(make(step, description)), description["inputs"], recording)
        assert set(agreement.largest) >= {"value", "action_params"}
        assert ("next_state" in agreement.largest) == (core != "none")
        assert max(agreement.largest.values()) <= TOLERANCE


def test_an_old_torch_is_named_where_it_cannot_export(monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.export.program import unexportable

    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    assert "is old" not in str(unexportable("torch.onnx.export", ValueError("a shape")))
    monkeypatch.setattr(torch, "__version__", "2.9.0+cpu")
    told = str(unexportable("torch.onnx.export", ValueError("a shape")))
    assert told.endswith(": a shape; torch 2.9.0+cpu is old, and 2.13 exports every network")
