"""Observations that hold several arrays: what a policy sees of them, and what is said of those that it cannot see."""

from __future__ import annotations

from typing import Any

import counting_envs
import nested_envs
import numpy as np
import pytest
from gymnasium import spaces
from rolling import Rolling, random_actions

from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.envs.spaces import Misfit, obs_format
from gossamer.errors import ConfigError, RunFailed
from gossamer.spec import Leaf, leaves_of

EVERYTHING = (
    Leaf("image", "pixels", (3, 40, 36)),
    Leaf("pair/0", "discrete", (1,), (3,)),
    Leaf("pair/1", "discrete", (2,), (4, 70)),
    Leaf("switches", "vector", (4,)),
    Leaf("type", "vector", (2,)),
)


def make(name: str, workers: int = 0) -> Any:
    return make_vec_env(
        f"nested_envs:{name}", num_envs=4, seed=3, settings=EnvConfig(workers=workers)
    )


def test_each_array_is_a_leaf_in_the_order_of_the_space() -> None:
    spec = read_spec("nested_envs:Everything", EnvConfig(), tries=True)
    assert spec.leaves == EVERYTHING
    vectors = read_spec("nested_envs:Vectors", EnvConfig(), tries=True)
    assert [(x.name, x.kind, x.shape) for x in vectors.leaves] == [
        ("state/position", "vector", (3,)),
        ("state/speed", "vector", (4,)),
        ("time", "vector", (1,)),
    ]
    assert not vectors.is_bare


def test_what_no_network_can_take_is_left_out_and_told_once() -> None:
    spec = read_spec("nested_envs:Everything", EnvConfig())
    assert "not observed: mission (Text), pair/2 (Text)" in spec.protocol
    assert spec.remarks == ()


@pytest.mark.parametrize(("shape", "axes"), [((2, 40, 41, 3), (0, 3, 1, 2)), ((2, 3, 40, 41), ())])
def test_stacked_pictures_are_one_picture_whose_frames_lie_in_its_channels(shape, axes) -> None:
    camera = spaces.Box(0, 255, shape, np.uint8, seed=1)
    form = obs_format("here", spaces.Dict({"camera": camera}))
    (leaf,) = form.leaves
    assert (leaf.name, leaf.kind, leaf.shape) == ("camera", "pixels", (6, 40, 41))
    frames, batch = camera.sample(), form.empty(1)
    form.write(batch, 0, {"camera": frames})
    expected = frames.transpose(axes) if axes else frames
    assert np.array_equal(batch["camera"][0], expected.reshape(6, 40, 41))


def test_observations_are_written_leaf_by_leaf() -> None:
    env = nested_envs.Everything()
    form = obs_format("here", env.observation_space)
    obs, _ = env.reset(seed=1)
    batch: Any = form.empty(2)
    for x in batch.values():
        x.fill(99)
    form.write(batch, 1, obs)
    assert {name: x.dtype.name for name, x in batch.items()} == {
        leaf.name: leaf.dtype for leaf in EVERYTHING
    }
    np.testing.assert_array_equal(batch["image"][1], obs["image"].transpose(2, 0, 1))
    assert batch["pair/0"][1].tolist() == [obs["pair"][0] - 5]
    assert batch["pair/1"][1].tolist() == [obs["pair"][1][0], obs["pair"][1][1] + 3]
    np.testing.assert_array_equal(batch["switches"][1], obs["switches"])
    np.testing.assert_array_equal(batch["type"][1], obs["type"])
    assert all((x[0] == 99).all() for x in batch.values()), "other rows stay"


def test_a_lone_number_in_an_array_is_that_of_one_observation() -> None:
    """As training takes it; a policy that has learnt from such observations acts on them."""
    places = {"at": spaces.Discrete(3), "speed": spaces.Box(-1.0, 1.0, (3,))}
    form = obs_format("some:env", spaces.Dict(places))
    one = {"at": np.array([2]), "speed": np.ones(3, np.float32)}
    row = form.empty(1)
    form.write(row, 0, one)
    assert leaves_of(row)["at"].tolist() == [[2]]
    assert form.count(one) is None
    for count in (1, 2):
        several = {"at": np.full(count, 2), "speed": np.ones((count, 3), np.float32)}
        assert form.count(several) == count


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": np.zeros(3, np.float32)}, r"its type: it has shape \(3,\), declared is \(2,\)"),
        ({"pair": (9, np.array([0, 0]), "x")}, r"its pair/0: it is 9, outside Discrete"),
        ({"pair": (5,)}, r"its pair/1: there is no 1 in it"),
        ({"image": np.zeros((40, 36, 3))}, r"its image: it is float64, declared is uint8"),
    ],
)
def test_a_leaf_that_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    env = nested_envs.Everything()
    form = obs_format("here", env.observation_space)
    obs, _ = env.reset(seed=1)
    with pytest.raises(Misfit, match=says):
        form.write(form.empty(1), 0, {**obs, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_key_that_is_missing_later_ends_the_run_by_name(workers: int) -> None:
    envs = make("Forgets", workers)
    rolling, actions = Rolling(envs).start(), random_actions(envs, 2)
    rolling.step(actions[0])
    says = r"environment 0 failed in episode 0: its step .*its state/speed: there is no 'speed'"
    with pytest.raises(RunFailed, match=says):
        rolling.step(actions[1])
    envs.close()


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Dict({"a/b": spaces.Discrete(2)}), r"observes 'a/b'; keys must be words without"),
        (spaces.Dict({"a.b": spaces.Discrete(2)}), r"observes 'a\.b'"),
        (
            spaces.Dict({"a-b": spaces.Discrete(2), "a_b": spaces.Discrete(2)}),
            r"observes 'a-b' and 'a_b', which settings could not tell apart",
        ),
        (spaces.Dict({"a": spaces.Text(3)}), r"that is not supported"),
    ],
)
def test_names_that_nobody_could_spell_are_refused(
    monkeypatch: pytest.MonkeyPatch, space: Any, says: str
) -> None:
    made = lambda: counting_envs.Spaces(space, spaces.Discrete(2))  # noqa: E731
    monkeypatch.setattr(counting_envs, "made", made, raising=False)
    with pytest.raises(ConfigError, match=says):
        read_spec("counting_envs:made", EnvConfig())


def test_workers_play_the_same_and_bring_episodes_back() -> None:
    here, there = make("Everything"), make("Everything", workers=2)
    one, other = Rolling(here).start(), Rolling(there).start()
    for action in random_actions(here, 12):
        a, b = one.step(action), other.step(action)
        for name, x in leaves_of(a.obs).items():
            assert x.dtype == leaves_of(b.obs)[name].dtype
            np.testing.assert_array_equal(x, leaves_of(b.obs)[name], name)
    back = Rolling(make("Everything", workers=2)).resume(one)
    for name, x in leaves_of(one.obs).items():
        np.testing.assert_array_equal(x, leaves_of(back.obs)[name], name)
    for envs in (here, there, back.envs):
        envs.close()
