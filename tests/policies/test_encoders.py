"""Layers for observations that hold several arrays, against what one array and slow references say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nested_envs
import pytest
import torch
from core_fakes import DISCRETE, spec_of
from seen_leaves import ask, observe, seeded

from gossamer.envs.spaces import obs_format
from gossamer.errors import ConfigError
from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.encoders import EMBEDDING_SIZE, Embedding, Encoders, OneHot
from gossamer.policies.settings import PolicyConfig

VECTORS = obs_format("", nested_envs.Vectors.observation_space).leaves
EVERYTHING = obs_format("", nested_envs.Everything.observation_space).leaves


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_dict_of_vectors_is_its_flattened_array(core: Any) -> None:
    config = PolicyConfig(core=core, core_size=8)
    nested = ActorCritic(replace(spec_of(), leaves=VECTORS), config, generator=seeded())
    flat = ActorCritic(spec_of(obs_shape=(8,)), config, generator=seeded())
    one, other = list(nested.parameters()), list(flat.parameters())
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), "the same weights"
    obs = observe(VECTORS)
    array = torch.cat([obs[leaf.name] for leaf in VECTORS], dim=-1)
    valid = torch.ones((2, 6), dtype=torch.bool)
    for _ in range(2):
        for a, b in zip(ask(nested, obs), ask(flat, array), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        for policy, x in ((nested, obs), (flat, array)):
            policy.observe(x, valid)
            policy.refresh()


def test_whole_numbers_are_zeros_and_a_one() -> None:
    x = torch.tensor([[0, 4], [2, 0]])
    expected = torch.zeros(2, 8)
    for row, numbers in enumerate(x.tolist()):
        for first, number in zip((0, 3), numbers, strict=True):
            expected[row, first + number] = 1.0
    assert torch.equal(OneHot((3, 5))(x), expected)


def test_streams_meet_in_one_layer_but_before_a_core() -> None:
    config = PolicyConfig(fc_size=16, hidden_sizes=(12, 10))
    joined = Encoders(EVERYTHING, config, seeded())
    assert joined.feature_size == config.join_size == 256
    apart = Encoders(EVERYTHING, replace(config, core="lstm"), seeded())
    assert apart.feature_size == 10 + 16
    assert [tuple(x.shape) for x in apart.discrete.parameters()] == [(74, EMBEDDING_SIZE)]
    first = next(p for p in apart.mlp.parameters() if p.ndim == 2)  # type: ignore[union-attr]
    assert first.shape[1] == 3 + 2 * EMBEDDING_SIZE + 4 + 2


def test_convolutions_without_an_image_are_refused() -> None:
    says = "policy.torso nature needs images, this environment observes state/position, state/speed"
    with pytest.raises(ConfigError, match=says):
        Encoders(VECTORS, PolicyConfig(torso="nature"))


def test_an_embedding_is_the_row_of_each_number() -> None:
    layer = Embedding((4, 70), seeded())
    weight = layer.weight
    got = layer(torch.tensor([[3, 69], [0, 0]]))
    torch.testing.assert_close(got[0], torch.cat([weight[3], weight[4 + 69]]))
    torch.testing.assert_close(got[1], torch.cat([weight[0], weight[4]]))


def test_every_leaf_counts_and_gets_a_gradient() -> None:
    spec = replace(spec_of(DISCRETE), leaves=EVERYTHING)
    policy = ActorCritic(spec, PolicyConfig(fc_size=16), generator=seeded())
    obs = observe(EVERYTHING)
    before = ask(policy, obs)
    (before.value.sum() + before.action_params.square().sum()).backward()
    for leaf in EVERYTHING:
        changed = {**obs, leaf.name: obs[leaf.name].flip(0)}
        assert not torch.equal(ask(policy, changed).value, before.value), leaf.name
    for name, parameter in policy.torso.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_learners_share_the_moments_of_every_leaf() -> None:
    policy = ActorCritic(replace(spec_of(), leaves=EVERYTHING), PolicyConfig(fc_size=16))
    names = policy.shared_names()
    state = policy.state_dict()
    for name, tensor in zip(names, policy.shared_tensors(), strict=True):
        assert state[name].data_ptr() == tensor.data_ptr(), name
    for leaf in ("image", "switches", "type"):
        assert f"obs_moments./{leaf}.count" in names
    assert not any("pair" in x for x in names if x.startswith("obs_moments"))
    policy.observe(observe(EVERYTHING), torch.ones((2, 6), dtype=torch.bool))
    counts = {name: float(x.count) for name, x in policy.normalizers.items()}
    assert counts == {"image": 6.0, "switches": 12.0, "type": 12.0}
