"""Layers chosen for single leaves, against networks of one array, slow references and equal networks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import nested_envs
import own_encoders
import pytest
import torch
import torch.nn.functional as F
from core_fakes import DISCRETE, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st
from seen_leaves import ask, observe, seeded
from torch import nn

from gossamer.envs.spaces import obs_format
from gossamer.errors import ConfigError
from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.encoders import Embedding, Encoders, refuse_encoders, seen_leaves
from gossamer.policies.settings import EncoderConfig, PolicyConfig
from gossamer.spec import EnvSpec, Leaf

EVERYTHING = obs_format("", nested_envs.Everything.observation_space).leaves
IMAGE = Leaf("image", "pixels", (3, 40, 36))
LEFT, RIGHT = replace(IMAGE, name="left-eye"), replace(IMAGE, name="right-eye")
VECTOR, OTHER = Leaf("state/speed", "vector", (4,)), Leaf("state/place", "vector", (4,))
NUMBERS = Leaf("numbers", "discrete", (2,), (3, 5))
MASK = Leaf("action_mask", "mask", (3,))
SMALL = PolicyConfig(fc_size=16, hidden_sizes=(12, 10))


def spec_with(*leaves: Leaf) -> EnvSpec:
    return replace(spec_of(DISCRETE), leaves=leaves)


def chosen(**encoders: str | EncoderConfig) -> PolicyConfig:
    """Return settings with encoders, in whose names / is written as __."""
    made = {
        name.replace("__", "/"): EncoderConfig(x) if isinstance(x, str) else x
        for name, x in encoders.items()
    }
    return replace(SMALL, encoders=made)


def policy_of(config: PolicyConfig, *leaves: Leaf) -> ActorCritic:
    return ActorCritic(spec_with(*leaves), config, generator=seeded())


def see(policy: ActorCritic) -> dict[str, Any]:
    obs = {**observe(tuple(x for x in policy.spec.leaves if x.kind != "mask"))}
    for leaf in policy.spec.leaves:
        if leaf.kind == "mask":
            obs[leaf.name] = torch.arange(18 * leaf.shape[0]).view(3, 6, -1) % 4 != 1
    return {leaf.name: obs[leaf.name] for leaf in policy.spec.leaves}


@pytest.mark.parametrize("kind", ["nature", "impala", "a3c", "elite", "mlp"])
def test_a_kind_of_one_image_is_that_torso(kind: Any) -> None:
    asked = EncoderConfig(
        kind, fc_size=0 if kind == "mlp" else 8, hidden_sizes=(9,) * (kind == "mlp")
    )
    leaf = replace(IMAGE, shape=(3, 44, 44))
    torso = replace(SMALL, torso=kind, fc_size=8, hidden_sizes=(9,))
    encoded = policy_of(chosen(image=asked), leaf)
    named, lone = policy_of(torso, leaf), policy_of(torso, replace(leaf, name=""))
    obs = see(encoded)
    for got, expected in zip(ask(encoded, obs), ask(named, obs), strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(ask(encoded, obs).features, ask(lone, obs["image"]).features)
    assert [*encoded.state_dict()] == [*named.state_dict()]


def test_the_torso_is_the_default_of_images_alone() -> None:
    config = replace(chosen(left_eye="a3c"), torso="impala")
    torso = policy_of(config, LEFT, RIGHT, VECTOR).torso
    kinds = {name: type(x).__name__ for name, x in torso.images.items()}  # type: ignore[union-attr]
    assert kinds == {"/left-eye": "Convolutions", "/right-eye": "Impala"}
    auto, nature = (policy_of(chosen(left_eye=x), LEFT, VECTOR) for x in ("auto", "nature"))
    assert [x.shape for x in auto.parameters()] == [x.shape for x in nature.parameters()]


@pytest.mark.parametrize(("name", "activation"), [("tanh", torch.tanh), ("relu", F.relu)])
def test_an_mlp_of_its_own_meets_the_others_in_one_layer(name: Any, activation: Any) -> None:
    config = chosen(state__speed=EncoderConfig("mlp", hidden_sizes=(7,)))
    config = replace(config, join_size=6, activation=name)
    torso = Encoders((VECTOR, OTHER, NUMBERS), config, seeded())
    obs = {x.name: observe((x,), 1)[x.name][0] for x in (VECTOR, OTHER, NUMBERS)}
    expected: list[torch.Tensor] = []
    for row in range(6):
        number = [
            float(i == n)
            for k, n in zip((3, 5), obs["numbers"][row], strict=True)
            for i in range(k)
        ]
        x = torch.cat([obs["state/place"][row], torch.tensor(number)])
        for layer in (0, 2):
            x = activation(F.linear(x, *torso.mlp.layers[layer].parameters()))  # type: ignore[union-attr]
        own = torso.apart["/state/speed"].layers[0]  # type: ignore[index,union-attr]
        y = activation(F.linear(obs["state/speed"][row], *own.parameters()))
        expected.append(F.relu(F.linear(torch.cat([x, y]), *torso.join.parameters())))  # type: ignore[union-attr]
    torch.testing.assert_close(torso(obs), torch.stack(expected))
    assert torso.feature_size == 6
    assert Encoders((VECTOR, OTHER), replace(config, core="gru"), seeded()).feature_size == 10 + 7


@pytest.mark.parametrize(
    ("image", "speed", "separate"),
    [("none", "mlp", True), ("none", "auto", True), ("mlp", "auto", False), ("none", "own_encoders:Keeps", False)],
)  # fmt: skip
def test_networks_of_mlps_alone_have_a_tower_for_the_value(
    image: str, speed: str, separate: bool
) -> None:
    policy = policy_of(chosen(image=image, state__speed=speed), IMAGE, VECTOR, OTHER)
    assert (policy.value_torso is not None) is separate


@pytest.mark.parametrize("leaf", [IMAGE, VECTOR, NUMBERS])
def test_leaves_that_are_alike_share_layers(leaf: Leaf) -> None:
    pair = [replace(leaf, name=name) for name in ("a-one", "b")]
    own: Any = {"pixels": "nature", "vector": "mlp", "discrete": "embedding"}[leaf.kind]
    shared = policy_of(chosen(a_one="like:b", b=own), *pair)
    apart = policy_of(chosen(a_one=own, b=own), *pair)
    names = {"pixels": "images", "vector": "apart", "discrete": "discrete"}
    homes = [f"torso.{names[leaf.kind]}./{x.name}." for x in pair]
    held = shared.state_dict()
    assert any(homes[1] in name for name in held)
    assert not any(homes[0] in name for name in held)
    apart.load_state_dict({name: held.get(name.replace(homes[0], homes[1]), x) for name, x in apart.state_dict().items()})  # fmt: skip
    if apart.value_torso is not None:
        apart.value_torso = None
        shared.value_torso = None
        apart.value_head = copy.deepcopy(shared.value_head)
    obs = see(shared)
    outputs = [ask(policy, obs) for policy in (shared, apart)]
    torch.testing.assert_close(outputs[0].features, outputs[1].features)
    for out in outputs:
        out.features.square().sum().backward()
    of = dict(apart.named_parameters())
    for name, parameter in shared.named_parameters():
        if homes[1] in name:
            each = [of[name.replace(homes[1], home)].grad for home in homes]
            assert all(x.abs().sum() > 0 for x in each)  # type: ignore[union-attr]
            torch.testing.assert_close(parameter.grad, each[0] + each[1], rtol=1e-4, atol=1e-4)  # type: ignore[operator]
    assert len(shared.shared_tensors()) == len(shared.shared_names())


def test_an_embedding_of_unit_vectors_is_zeros_and_a_one() -> None:
    size = sum(NUMBERS.sizes)
    hot = Encoders((VECTOR, NUMBERS), chosen(numbers="one_hot"), seeded())
    embedded = Encoders((VECTOR, NUMBERS), chosen(numbers=EncoderConfig("embedding", embedding_size=size)), seeded())  # fmt: skip
    layer = embedded.discrete["/numbers"]
    assert isinstance(layer, Embedding)
    layer.weight.data = torch.eye(size)
    ours, theirs = (x.mlp.layers[0].weight.data for x in (hot, embedded))  # type: ignore[union-attr]
    theirs.zero_()
    theirs[:, : 4 + 3] = ours[:, : 4 + 3]
    theirs[:, 4 + size + 3 :] = ours[:, 4 + 3 :]
    embedded.mlp.layers[2].load_state_dict(hot.mlp.layers[2].state_dict())  # type: ignore[union-attr]
    obs = {x.name: observe((x,))[x.name].flatten(0, 1) for x in (VECTOR, NUMBERS)}
    torch.testing.assert_close(embedded(obs), hot(obs))


def test_numbers_with_an_mlp_of_their_own_are_encoded_first() -> None:
    many = replace(NUMBERS, sizes=(3, 70))
    for leaf, asked, width in (
        (NUMBERS, EncoderConfig("mlp"), 8),
        (NUMBERS, EncoderConfig("mlp", embedding_size=4), 2 * 4),
        (many, EncoderConfig("mlp"), 2 * 32),
        (many, EncoderConfig("one_hot"), 73),
    ):
        torso = Encoders((leaf,), chosen(numbers=asked), seeded())
        layers = torso.mlp if asked.name == "one_hot" else torso.apart["/numbers"]
        assert layers.layers[0].weight.shape[1] == width  # type: ignore[union-attr]
        rows = observe((leaf,))["numbers"].flatten(0, 1)
        assert torso({"numbers": rows}).shape == (18, 10)


@pytest.mark.parametrize("kind", ["auto", "mlp"])
def test_up_to_64_values_are_zeros_and_a_one_and_more_are_embedded(kind: Any) -> None:
    for values, width in ((64, 64), (65, 32)):
        leaf = Leaf("number", "discrete", (1,), (values,))
        torso = Encoders((leaf,), chosen(number=kind), seeded())
        layers: Any = torso.mlp if kind == "auto" else torso.apart["/number"]
        assert layers.layers[0].weight.shape[1] == width


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_without_leaves_it_is_the_network_of_an_environment_that_lacks_them(data: Any) -> None:
    names = st.sets(st.sampled_from([x.name for x in EVERYTHING]), max_size=len(EVERYTHING) - 1)
    out = data.draw(names)
    left = [x for x in EVERYTHING if x.name not in out]
    config = chosen(**{name.replace("/", "__"): "none" for name in out})
    some, all_there = policy_of(SMALL, *left), policy_of(config, *EVERYTHING)
    held = some.state_dict()
    assert [*held] == [*all_there.state_dict()]
    assert all(torch.equal(x, held[name]) for name, x in all_there.state_dict().items())
    obs = see(all_there)
    valid = torch.ones((2, 6), dtype=torch.bool)
    for _ in range(2):
        outs = ask(some, {x.name: obs[x.name] for x in left}), ask(all_there, obs)
        assert all(torch.equal(a, b) for a, b in zip(*outs, strict=True))
        for policy in (some, all_there):
            policy.observe(obs, valid)
            policy.refresh()


@pytest.mark.parametrize("leaf", [IMAGE, VECTOR, NUMBERS, MASK])
def test_layers_of_the_users_own_are_given_their_leaf(leaf: Leaf) -> None:
    name = leaf.name.replace("/", "__")
    policy = policy_of(chosen(**{name: "own_encoders:Keeps"}), OTHER, leaf)
    own: Any = policy.torso.apart[f"/{leaf.name}"]  # type: ignore[union-attr,index]
    assert isinstance(own, own_encoders.Keeps)
    assert own.shape == leaf.shape
    obs = see(policy)
    ask(policy, obs).value.sum().backward()
    normalised: Any = policy.normalize(obs)
    assert torch.equal(own.saw, normalised[leaf.name].flatten(0, 1))
    assert own.saw.dtype == (torch.float32 if leaf in (IMAGE, VECTOR) else obs[leaf.name].dtype)
    assert own.layer.weight.grad is not None
    again = policy_of(chosen(**{name: "own_encoders:Keeps"}), OTHER, leaf)
    assert all(map(torch.equal, policy.parameters(), again.parameters())), "drawn from the seed"


def test_layers_of_the_users_own_begin_differently_for_each_leaf() -> None:
    kind = "own_encoders:Keeps"
    policy = policy_of(chosen(left_eye=kind, right_eye=kind), LEFT, RIGHT, VECTOR)
    apart: Any = policy.torso.apart  # type: ignore[union-attr]
    left, right = (apart[f"/{x}"].layer.weight for x in ("left-eye", "right-eye"))
    assert left.shape == right.shape
    assert not torch.equal(left, right)


@pytest.mark.parametrize("kind", ["auto", "mlp"])
@pytest.mark.parametrize(
    "beside", [VECTOR, IMAGE, replace(VECTOR, name=""), replace(IMAGE, name="")]
)
def test_a_mask_is_seen_only_if_it_is_named(kind: Any, beside: Leaf) -> None:
    blind, sighted = (
        policy_of(SMALL, beside, MASK),
        policy_of(chosen(action_mask=kind), beside, MASK),
    )
    assert set(blind.normalizers) == set(sighted.normalizers) == {beside.name}
    for policy, sees in ((blind, False), (sighted, True)):
        obs = see(policy)
        out = ask(policy, obs)
        assert (out.action_params[~obs["action_mask"]] < -1e8).all()
        changed = {**obs, "action_mask": torch.ones_like(obs["action_mask"])}
        assert torch.equal(ask(policy, changed).value, out.value) is not sees


def test_a_mask_beside_numbers_is_ones_and_zeros_among_them() -> None:
    torso = Encoders((MASK, VECTOR), chosen(action_mask="auto"), seeded())
    flat = Encoders((replace(VECTOR, shape=(7,)),), SMALL, seeded())
    mask = torch.tensor([[True, False, True]])
    x = torch.randn(1, 4)
    expected = flat({VECTOR.name: torch.cat([torch.tensor([[1.0, 0.0, 1.0]]), x], dim=1)})
    assert torch.equal(torso({"action_mask": mask, VECTOR.name: x}), expected)


def test_every_kind_acts_in_half_precision() -> None:
    config = chosen(
        left_eye="a3c", right_eye="like:left-eye", state__speed="mlp", action_mask="mlp", numbers="embedding", pair="own_encoders:Keeps"
    )  # fmt: skip
    leaves = (LEFT, RIGHT, VECTOR, OTHER, NUMBERS, replace(NUMBERS, name="pair"), MASK)
    policy = policy_of(config, *leaves)
    obs = see(policy)
    before = ask(policy, obs)
    policy.set_precision(torch.bfloat16, inference=True)
    after = ask(policy, obs)
    assert after.value.dtype == torch.float32
    torch.testing.assert_close(after.features, before.features, rtol=0.1, atol=0.1)


def test_whole_numbers_and_a_mask_beside_an_image_act_in_half_precision() -> None:
    policy = policy_of(chosen(action_mask="auto"), IMAGE, NUMBERS, MASK)
    obs = see(policy)
    before = ask(policy, obs)
    policy.set_precision(torch.bfloat16, inference=True)
    torch.testing.assert_close(ask(policy, obs).features, before.features, rtol=0.1, atol=0.1)


def test_names_from_settings_are_not_told_apart_by_hyphens() -> None:
    policy = policy_of(chosen(left_eye="none"), LEFT, RIGHT)
    assert set(policy.normalizers) == {"right-eye"}


KINDS = st.sampled_from(
    [
        "auto",
        "nature",
        "impala",
        "a3c",
        "elite",
        "mlp",
        "one_hot",
        "embedding",
        "none",
        "like:a",
        "like:b",
        "like:c",
        "own_encoders:Keeps",
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([IMAGE, VECTOR, NUMBERS, MASK]), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("abcd"), KINDS, max_size=4),
    st.sampled_from(["none", "gru"]),
)
def test_any_layers_compute_and_learn_or_are_refused(
    kinds: list[Leaf], asked: dict[str, str], core: Any
) -> None:
    leaves = tuple(replace(leaf, name=name) for leaf, name in zip(kinds, "abcd", strict=False))
    config = replace(chosen(**asked), core=core, core_size=4, join_size=8)
    try:
        torso = Encoders(leaves, config, seeded())
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(error).startswith("policy.encoders")  # noqa: PT017
        return
    rng = torch.Generator().manual_seed(2)
    obs: dict[str, torch.Tensor] = {}
    for leaf in seen_leaves(leaves, config):
        x = torch.rand((3, *leaf.shape), generator=rng)
        whole = {"discrete": (3 * x).long(), "mask": x < 0.5}
        obs[leaf.name] = whole.get(leaf.kind, x)
    out = torso(obs)
    assert out.shape == (3, torso.feature_size)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in torso.parameters())
    again = Encoders(leaves, config, seeded())
    assert torch.equal(again(obs), out)


REFUSED: list[tuple[PolicyConfig, tuple[Leaf, ...], str]] = [
    (chosen(imge="nature"), (IMAGE, VECTOR), "policy.encoders.imge is nature, but this environment does not observe imge; it observes image, state/speed"),
    (chosen(state__speed="nature"), (IMAGE, VECTOR), "state/speed is a vector of 4 numbers; allowed: auto, mlp, none, like:LEAF, module:NAME"),
    (chosen(image="embedding"), (IMAGE, VECTOR), "policy.encoders.image is embedding, but image is an image of 40 x 36 with 3 channels; allowed: auto, nature"),
    (chosen(numbers="impala"), (IMAGE, NUMBERS), "numbers is 2 whole numbers of 3, 5 values; allowed: auto, one_hot, embedding, mlp, none"),
    (chosen(action_mask="one_hot"), (IMAGE, MASK), "policy.encoders.action_mask is one_hot, but action_mask is a mask"),
    (chosen(image="like:picture"), (IMAGE, VECTOR), "policy.encoders.image is like:picture, but picture is not observed"),
    (chosen(image="like:image"), (IMAGE, VECTOR), "image is the leaf itself"),
    (chosen(left_eye="like:x"), (LEFT, RIGHT), "x is not observed; right_eye would do"),
    (chosen(image="like:state/speed"), (IMAGE, VECTOR), "leaves that share layers have to be alike"),
    (chosen(state__speed="like:state/place"), (VECTOR, OTHER), "state/place has no layers of its own; use --policy.encoders.state/place mlp"),
    (chosen(left_eye="like:right-eye", right_eye="none"), (LEFT, RIGHT, VECTOR), "right_eye is not seen; use --policy.encoders.right_eye auto"),
    (chosen(left_eye="like:right_eye", right_eye="like:image"), (LEFT, RIGHT, IMAGE), "right_eye is like image; use --policy.encoders.left_eye like:image"),
    (chosen(left_eye=EncoderConfig("like:right_eye", fc_size=3)), (LEFT, RIGHT), "policy.encoders.left_eye.fc_size is 3, but"),
    (chosen(state__speed=EncoderConfig(hidden_sizes=(8, 9))), (VECTOR, OTHER), "policy.encoders.state/speed.hidden_sizes is 8 9, but state/speed is in the mlp that numbers share, without such a size; leave it out, or use --policy.encoders.state/speed mlp"),
    (chosen(image=EncoderConfig("impala", hidden_sizes=(8,))), (IMAGE, VECTOR), "hidden_sizes is 8, but image has impala, without such a size"),
    (chosen(numbers=EncoderConfig(embedding_size=8)), (NUMBERS, VECTOR), "use --policy.encoders.numbers embedding"),
    (chosen(image="elite", numbers="none"), (replace(IMAGE, shape=(3, 4, 4)), NUMBERS), "policy.encoders.image elite is too deep for images of 4 x 4; use --policy.encoders.image impala or mlp"),
    (chosen(image="none", state__speed="none"), (IMAGE, VECTOR), "leaves out all that this environment observes (image, state/speed), a mask by itself; leave one in: --policy.encoders.image auto"),
    (chosen(image="nature"), (replace(IMAGE, name=""),), "policy.encoders.image is nature, but Fake-v0 observes one array, whose layers have no name; use --policy.torso nature"),
    (chosen(image="none"), (replace(IMAGE, name=""), MASK), "observes one array"),
    (replace(chosen(image="nature"), torso="own_encoders:Keeps"), (IMAGE, VECTOR), "policy.torso is own_encoders:Keeps, which is given all that is observed; leave one of the two out"),
    (chosen(image="own_encoders:Missing"), (IMAGE, VECTOR), "own_encoders:Missing is not a torso"),
    (chosen(image="own_encoders:Boasts"), (IMAGE, VECTOR), "own_encoders:Boasts has feature_size 9, but returns [2, 5] for 2 observations; it must return [2, 9]"),
    (chosen(numbers="own_encoders:OfFloats"), (NUMBERS, VECTOR), "own_encoders:OfFloats fails on [N, 2] of int64: RuntimeError"),
    (chosen(action_mask="own_encoders:OfFloats"), (MASK, VECTOR), "own_encoders:OfFloats fails on [N, 3] of bool: RuntimeError"),
    (replace(SMALL, torso="own_encoders:OfFloats"), (IMAGE, VECTOR), "own_encoders:OfFloats fails on {image: [N, 3, 40, 36], state/speed: [N, 4]} of float32: AttributeError"),
    (chosen(numbers="nature"), (replace(NUMBERS, shape=(1,), sizes=(7,)),), "numbers is 1 whole number of 7 values; allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "leaves", "says"), REFUSED, ids=[x[2][-40:] for x in REFUSED])
def test_what_does_not_fit_is_refused(
    config: PolicyConfig, leaves: tuple[Leaf, ...], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        policy_of(config, *leaves)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_torso_from_a_program_is_tried_too() -> None:
    with pytest.raises(ConfigError, match=r"torso must be a torch\.nn\.Module that maps"):
        ActorCritic(spec_with(VECTOR), SMALL, torso=nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"torso has feature_size 9, but returns \[2, 5\]"):
        ActorCritic(spec_with(replace(VECTOR, name="")), SMALL, torso=own_encoders.Boasts((4,)))


def test_trying_a_torso_leaves_it_and_torchs_stream_as_they_were() -> None:
    torso = own_encoders.Normalises((4,))
    held = {name: x.clone() for name, x in torso.state_dict().items()}
    state = torch.get_rng_state()
    policy = ActorCritic(
        spec_with(replace(VECTOR, name="")), SMALL, torso=torso, generator=seeded()
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.torso is torso
    assert torso.training
    assert torso.norm.training
    assert not torso.frozen.training
    assert all(torch.equal(x, held[name]) for name, x in torso.state_dict().items())


def test_a_residual_network_beside_numbers_begins_small() -> None:
    image = replace(IMAGE, shape=(3, 64, 64))
    config, pixels = chosen(image="impala"), torch.randn((8, 3, 64, 64), generator=seeded())
    beside = Encoders((image, VECTOR), config, seeded()).images["/image"]
    alone = Encoders((image,), config, seeded()).images["/image"]
    assert beside(pixels).std() < 0.5 * alone(pixels).std()
    bare = policy_of(replace(SMALL, torso="impala"), replace(image, name="")).torso
    pairs = zip(alone.parameters(), bare.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs), "alone it begins as it is published"


def test_a_torso_of_the_users_own_has_no_encoders() -> None:
    spec = spec_with(IMAGE, VECTOR)
    with pytest.raises(ConfigError, match="there is a torso"):
        refuse_encoders(spec, chosen(image="a3c"), own_encoders.Keeps((3,)))
    refuse_encoders(spec, SMALL, own_encoders.Keeps((3,)))
