"""Layers of a grid of symbols, against sums written out tile by tile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from core_fakes import DISCRETE, spec_of
from gymnasium import spaces
from seen_leaves import ask, observe, seeded

from gossamer.envs.spaces import obs_format
from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.encoders import Encoders
from gossamer.policies.settings import EncoderConfig, PolicyConfig
from gossamer.policies.tiles import Tiles
from gossamer.spec import EnvSpec, Leaf

GRID = Leaf("image", "vector", (3 * 4 * 5,), tiles=12)
BESIDE = Leaf("direction", "discrete", (1,), (4,))
CONFIG = PolicyConfig(tile_size=3, hidden_sizes=(8, 6), core="lstm", core_size=5)


def spec_with(*leaves: Leaf) -> EnvSpec:
    return replace(spec_of(DISCRETE), leaves=leaves)


@pytest.mark.parametrize(
    ("name", "activation"), [("tanh", math.tanh), ("relu", lambda x: max(x, 0.0))]
)
def test_layers_are_those_of_each_tile(name: Any, activation: Any) -> None:
    layers = Tiles(GRID, replace(CONFIG, activation=name), seeded())
    x = torch.randn((7, 60), generator=seeded())
    found = layers(x).detach().numpy()
    each, anywhere = layers.each, layers.anywhere
    for row, got in zip(x.tolist(), found, strict=True):
        shared: list[float] = []
        largest = [0.0] * 6
        for tile in range(12):
            values = row[5 * tile : 5 * tile + 5]
            for weights, bias in zip(each.weight.tolist(), each.bias.tolist(), strict=True):
                shared.append(
                    max(0.0, sum(a * b for a, b in zip(weights, values, strict=True)) + bias)
                )
            for i, (weights, bias) in enumerate(
                zip(anywhere.weight.tolist(), anywhere.bias.tolist(), strict=True)
            ):
                told = sum(a * b for a, b in zip(weights, values, strict=True)) + bias
                largest[i] = max(largest[i], told)
        hidden = shared
        for layer in (layers.mlp.layers[0], layers.mlp.layers[2]):
            hidden = [
                activation(sum(a * b for a, b in zip(weights, hidden, strict=True)) + bias)
                for weights, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            ]
        np.testing.assert_allclose(got, [*hidden, *largest], rtol=1e-5, atol=1e-5)
    assert layers.feature_size == 6 + 6


def test_where_a_tile_lies_is_nothing_to_what_lies_anywhere() -> None:
    layers = Tiles(GRID, CONFIG, seeded())
    x = torch.randn((4, 12, 5), generator=seeded())
    moved = x[:, torch.randperm(12, generator=seeded())]
    one, other = (layers(y.flatten(1)) for y in (x, moved))
    torch.testing.assert_close(one[:, 6:], other[:, 6:])
    assert not torch.allclose(one[:, :6], other[:, :6])


def test_a_grid_is_told_by_its_space() -> None:
    def leaf(sizes: Any) -> Leaf:
        [found] = obs_format("", spaces.MultiDiscrete(np.array(sizes))).leaves
        return found

    grid = np.broadcast_to([3, 2], (4, 5, 2))
    assert leaf(grid) == Leaf("", "vector", (4 * 5 * 5,), tiles=20)
    other = grid.copy()
    other[3, 4] = 2, 3
    for sizes in (other, grid[0], grid[0, 0]):
        assert leaf(sizes).tiles == 0


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_grid_beside_others_has_layers_of_its_own(core: Any) -> None:
    policy = ActorCritic(spec_with(BESIDE, GRID), replace(CONFIG, core=core), generator=seeded())
    assert isinstance(policy.torso, Encoders)
    assert [type(x) for x in policy.torso.apart.values()] == [Tiles]
    assert policy.value_torso is None
    out = ask(policy, observe((BESIDE, GRID)))
    (out.action_params.sum() + out.value.sum()).backward()
    layers: Any = policy.torso.apart["/image"]
    assert all(x.grad is not None and bool(x.grad.any()) for x in layers.parameters())


def test_a_grid_alone_has_them_too() -> None:
    policy = ActorCritic(spec_with(replace(GRID, name="")), CONFIG, generator=seeded())
    assert type(policy.torso) is Tiles


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, tile_size=0),
        replace(CONFIG, core="none"),
        replace(CONFIG, torso="mlp"),
        replace(CONFIG, encoders={"image": EncoderConfig("mlp")}),
    ],
    ids=["off", "no core", "another torso", "another encoder"],
)
def test_it_goes_through_an_mlp_if_asked_for(config: PolicyConfig) -> None:
    policy = ActorCritic(spec_with(BESIDE, GRID), config, generator=seeded())
    assert not any(isinstance(x, Tiles) for x in policy.modules())


def test_an_encoder_may_have_other_sizes() -> None:
    config = replace(CONFIG, encoders={"image": EncoderConfig(hidden_sizes=(7,))})
    policy = ActorCritic(spec_with(BESIDE, GRID), config, generator=seeded())
    assert isinstance(policy.torso, Encoders)
    layers: Any = policy.torso.apart["/image"]
    assert layers.mlp.feature_size == 7
