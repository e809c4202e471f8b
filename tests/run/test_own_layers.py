"""Feature layers of a user's own, made in the ways that people make them, in every way that a run uses them."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossamer
from gossamer.build import preflight
from gossamer.errors import ConfigError
from gossamer.roles.actor import Actor

LAYERS = """
import functools
import math

import torch
from torch import nn


class Wide(nn.Sequential):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(obs_shape), 16), nn.ReLU())


class Fourier(nn.Module):  # random features, drawn once: a buffer, and a number beside it
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__()
        self.register_buffer("waves", torch.randn(obs_shape[0], 16))
        self.register_buffer("drawn", torch.tensor(7))
        self.first, self.again = nn.Linear(16, 16), nn.Linear(16, 16)
        self.again.weight = self.first.weight

    def forward(self, x):
        return torch.tanh(self.again(self.first((x @ self.waves).sin())))


class Continued(nn.Module):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__()
        import gossamer
        self.inner = gossamer.load_policy("first").torso

    def forward(self, x):
        return self.inner(x)


class Lazy(nn.Sequential):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__(nn.Flatten(), nn.LazyLinear(16), nn.ReLU())


class Scaled(nn.Sequential):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__(nn.Linear(*obs_shape, 16), nn.ReLU())
        with torch.no_grad():
            self[0].weight.div_(self[0](torch.randn(64, *obs_shape)).std().item())


@functools.cache
def kept(obs_shape):
    return Wide(obs_shape)


class Pixels(nn.Module):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__()
        c, h, w = obs_shape
        self.conv = nn.Conv2d(c + 1, 4, 8, 4)
        self.fc = nn.Linear(4 * (h // 4 - 1) * (w // 4 - 1), 16)

    def forward(self, x):
        rows = torch.linspace(-1.0, 1.0, x.shape[2], device=x.device).reshape(1, 1, -1, 1)
        x = torch.cat([x, rows.expand(len(x), 1, *x.shape[2:])], 1)
        return self.fc(self.flat(self.conv(x).relu())).relu()

    def flat(self, x):
        return x.reshape(len(x), -1)


class Weighed(nn.Module):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__()
        self.one = nn.utils.weight_norm(nn.Linear(math.prod(obs_shape), 16))
        self.two, self.three = nn.Linear(16, 16), nn.LazyLinear(16)

    def forward(self, x):
        return self.three(self.two(self.one(x.flatten(1))).relu()).relu()


class Viewing(Pixels):
    def flat(self, x):
        return x.view(len(x), -1)
"""
CHANGING = """
import torch
from torch import nn


class Layers(nn.Module):
    feature_size = 16

    def __init__(self, obs_shape):
        super().__init__()
        self.first, self.second = nn.Linear(*obs_shape, 16), LAYER

    def forward(self, x):
        x = self.second(self.first(x))
        return x[0] if isinstance(x, tuple) else x
"""
TINY: dict[str, Any] = {
    "algorithm": {"name": "ppo", "passes": 2, "num_minibatches": 2},
    "placement": "inline",
    "device": "cpu",
    "num_envs": 2,
    "unroll_length": 8,
    "total_env_steps": 64,
    "evaluation.every_seconds": 0.0,
    "checkpoint_every_seconds": 0.0,
    "optimizer.schedule": "constant",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    (tmp_path / "layers.py").write_text(LAYERS)
    yield tmp_path
    sys.modules.pop("layers", None)


def trained(run: str, torso: str, env_id: str = "CartPole-v1", **settings: Any) -> Any:
    given = {**TINY, "policy.torso": f"layers:{torso}", "run_folder": run, **settings}
    return gossamer.train(env_id, quiet=True, **given)


def tensors_of(run: str) -> dict[str, torch.Tensor]:
    return gossamer.load_policy(run).state_dict()


def assert_alike(one: str, other: str) -> None:
    for name, x in tensors_of(one).items():
        torch.testing.assert_close(tensors_of(other)[name], x, rtol=0.0, atol=0.0, msg=name)


def test_layers_may_be_those_of_a_run_with_layers_of_its_own() -> None:
    trained("first", "Wide")
    trained("second", "Continued")
    assert "torso.inner.1.weight" in tensors_of("second")


@pytest.mark.parametrize("torso", ["Lazy", "Scaled"])
def test_layers_that_need_numbers_as_they_are_made_can_be_loaded(torso: str) -> None:
    """On torch's meta device there are none."""
    trained("whole", torso, total_env_steps=128)
    torch.rand(3)  # torch's own stream is elsewhere now
    trained("part", torso)
    assert gossamer.evaluate("part", episodes=1).lengths
    gossamer.train(resume="part", total_env_steps=128, quiet=True)
    assert_alike("whole", "part")


def test_a_function_that_returns_the_same_layers_each_time_shares_none() -> None:
    trained("one", "Wide")
    trained("other", "kept")
    trained("again", "kept")
    assert_alike("other", "again")
    obs, starts = torch.randn(1, 5, 4), torch.zeros(1, 5, dtype=torch.bool)
    first = gossamer.load_policy("other")
    before = first(obs, starts, first.initial_state(5)).value.clone()
    trained("seed2", "kept", seed=2)
    gossamer.load_policy("seed2")
    assert torch.equal(first(obs, starts, first.initial_state(5)).value, before)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_layers_of_a_network_that_is_too_large_are_refused_before_that_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of these a weight is computed from others, and a lazy one does not begin as the one that was made."""
    trained("run", "Weighed")
    made = gossamer.load_policy("run").torso
    assert not torch.equal(made.two.weight, made.three.weight)
    monkeypatch.setattr(preflight, "free_memory", lambda: 6 << 30)
    with pytest.raises(
        ConfigError, match=r"a network of [\d,]+ parameters takes about [\d,.]+ GiB"
    ):
        trained("large", "Weighed", **{"policy.core": "lstm", "policy.core_size": 1 << 14})
    assert not Path("large").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_that_look_at_how_images_lie_or_make_floats_of_their_own(precision: str) -> None:
    runs = {torso: torso.lower() for torso in ("Pixels", "Viewing")}
    for torso, run in runs.items():
        trained(run, torso, "cases_envs:Picture", precision=precision)
        assert gossamer.evaluate(run, episodes=1).lengths
    obs = np.random.default_rng(1).integers(0, 256, (3, 40, 44, 3), dtype=np.uint8)
    policy, other = (gossamer.load_policy(run) for run in runs.values())
    other.load_state_dict(policy.state_dict())
    other.refresh()
    values: list[torch.Tensor] = []
    for one in (policy, other):
        one.act(obs)
        rows = torch.from_numpy(obs).permute(0, 3, 1, 2)[None]  # as trajectories hold them
        values.append(one(rows, torch.zeros(1, 3, dtype=torch.bool), one.initial_state(3)).value)
    torch.testing.assert_close(values[1], values[0])


def test_layers_act_in_bf16_as_they_learn() -> None:
    """Weights that were cast for acting alone met floats that the layers make; normalisation was rounded there."""
    from gossamer.build.roles import build_policy
    from gossamer.config import make_config
    from gossamer.envs.interface import read_interface

    config = make_config("cases_envs:Picture", {**TINY, "policy.torso": "layers:Pixels"})
    spec, _ = read_interface(config.env_id, config.env)
    policy = build_policy(config, spec)
    learns, acts = policy, copy.deepcopy(policy).requires_grad_(False)
    learns.set_precision(torch.bfloat16)
    acts.set_precision(torch.bfloat16, inference=True)
    obs = torch.randint(0, 256, (2, 3, *spec.obs_shape), dtype=torch.uint8)
    starts, state = torch.zeros(2, 3, dtype=torch.bool), policy.initial_state(3)
    with learns.accumulating():
        value = learns(obs, starts, state).value
    torch.testing.assert_close(acts(obs, starts, state).value, value.detach(), rtol=0.0, atol=0.0)


def test_buffers_of_layers_are_part_of_what_acts_and_is_kept_as_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained("one", "Fourier", seed=1, **{"evaluation.every_seconds": 1e-3})
    for which in ("last", "best"):
        assert torch.equal(
            gossamer.load_policy("one", which).state_dict()["torso.waves"],
            tensors_of("one")["torso.waves"],
        )
    gossamer.train(resume="one", total_env_steps=256, quiet=True)
    behaviour: list[torch.Tensor] = []
    loaded, collect = gossamer.load_policy("one"), Actor.collect

    def noting(actor: Actor, slot: Any, version: int) -> None:
        collect(actor, slot, version)
        if not behaviour:
            start = loaded.initial_state(slot.num_columns)
            found = loaded(slot.obs[:1], slot.starts[:1], start).action_params[0]
            behaviour.extend([slot.behavior[0].clone(), found.detach()])

    monkeypatch.setattr(Actor, "collect", noting)
    trained("two", "Fourier", seed=2, init_from="one")
    torch.testing.assert_close(*behaviour)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("nn.Dropout(0.5)", r"layer torso\.second \(Dropout\) is random"),
        ("nn.RReLU()", r"layer torso\.second \(RReLU\) is random"),
        ("nn.BatchNorm1d(16)", r"layer torso\.second \(BatchNorm1d\) normalises by whatever else"),
        ("nn.LazyBatchNorm1d()", r"layer torso\.second \(.*BatchNorm1d\) normalises by"),
        ("nn.LSTM(16, 16, 2, dropout=0.1)", r"layer torso\.second \(LSTM\) is random"),
        (
            "nn.TransformerEncoderLayer(16, 2)",
            r"layer torso\.second\.self_attn .* use a dropout of 0, or",
        ),
    ],
)
def test_layers_that_compute_something_else_each_time_are_refused(
    folder: Path, layer: str, said: str
) -> None:
    module = f"changing_{len(layer)}"
    (folder / f"{module}.py").write_text(CHANGING.replace("LAYER", layer))
    given = {**TINY, "policy.torso": f"{module}:Layers", "run_folder": "run"}
    with pytest.raises(ConfigError, match=said):
        gossamer.train("CartPole-v1", quiet=True, **given)
    assert not (folder / "run").exists()
    # As it is kept it is one function; and what drops nothing is.
    (folder / f"{module}_kept.py").write_text(CHANGING.replace("LAYER", f"{layer}.eval()"))
    if "Lazy" not in layer:
        given["policy.torso"] = f"{module}_kept:Layers"
        gossamer.train("CartPole-v1", quiet=True, **given)


def test_a_run_that_was_trained_with_such_layers_is_still_played(folder: Path) -> None:
    """An older version took them; a policy that is loaded drops nothing."""
    text = CHANGING.replace("LAYER", "nn.Dropout(0.5)")
    (folder / "once_dropping.py").write_text(text.replace("0.5", "0.0"))
    given = {**TINY, "policy.torso": "once_dropping:Layers", "run_folder": "run"}
    gossamer.train("CartPole-v1", quiet=True, **given)
    (folder / "once_dropping.py").write_text(text)
    del sys.modules["once_dropping"]
    assert gossamer.evaluate("run", episodes=1).mean >= 1.0
    gossamer.train(resume="run", total_env_steps=128, quiet=True)


def test_layers_that_drop_nothing_are_taken(folder: Path) -> None:
    text = CHANGING.replace("LAYER", "nn.Sequential(nn.Dropout(0.0), nn.LayerNorm(16))")
    (folder / "dropping_none.py").write_text(text)
    gossamer.train("CartPole-v1", quiet=True, **TINY, **{"policy.torso": "dropping_none:Layers"})
