"""Actions that are a Dict or a Tuple: how a policy's become the environment's, and their masks."""

from __future__ import annotations

from typing import Any

import joint_envs
import numpy as np
import pytest
from gymnasium import spaces
from rolling import assert_resumes

from gossamer.envs.masks import mask_format
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.envs.spaces import Misfit, action_format, check_actions, draw_actions
from gossamer.errors import ConfigError, RunFailed

AUTO = EnvConfig(mask="auto")
NAMES = ["Joint", "Pair", "Forbidding", "ObservedParts"]


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("name", ["Joint", "Pair"])
def test_every_drawn_action_is_one_of_the_space_and_resumes(name: str, workers: int | None) -> None:
    """Environments raise where it is none."""

    def make() -> Any:
        given = EnvConfig(workers=workers)
        return make_vec_env(f"joint_envs:{name}", num_envs=2, seed=1, settings=given)

    assert_resumes(make, before=7, after=9)


def test_what_is_read_of_a_space() -> None:
    spec = read_spec("joint_envs:Joint", EnvConfig(), tries=True).action
    assert [name for name, _ in spec.parts] == ["aim", "legs/move", "switches"]
    assert (spec.dtype, spec.shape, spec.choices) == ("float32", (5,), (3,))
    spec = read_spec("joint_envs:Pair", EnvConfig(), tries=True).action
    assert [name for name, _ in spec.parts] == ["0", "1", "2"]
    assert (spec.dtype, spec.shape, spec.choices) == ("int64", (4,), (3, 2, 3, 4))


def test_one_and_several() -> None:
    form = action_format("x", joint_envs.Joint.action_space)
    rows = draw_actions(form.spec, 4, np.random.default_rng(0))
    rows[:, :2] *= 9.0  # outside its bounds, where a Box is clipped
    alone, together = form.decode(rows), form.batch and form.batch(rows)
    assert together is not None
    for i, one in enumerate(alone):
        assert joint_envs.Joint.action_space.contains(one)
        assert one["legs"]["move"] == together["legs"]["move"][i] == rows[i, 2] + 1
        np.testing.assert_array_equal(one["aim"], together["aim"][i])
        np.testing.assert_array_equal(one["switches"], rows[i, 3:])
    assert together["aim"].shape == (4, 2)


def test_actions_that_are_none_are_refused() -> None:
    spec = read_spec("joint_envs:Joint", EnvConfig())
    right = draw_actions(spec.action, 2, np.random.default_rng(0))
    check_actions(right, 2, spec)
    for column, wrong in ((2, 3.0), (2, -1.0), (2, 0.5), (3, 2.0), (0, np.nan)):
        rows = right.copy()
        rows[1, column] = wrong
        with pytest.raises(ValueError, match="joint_envs:Joint"):
            check_actions(rows, 2, spec)
    with pytest.raises(ValueError, match="expected float32"):
        check_actions(right.astype(np.int64), 2, spec)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({}), "an action space that is not supported, Dict"),
        (spaces.Text(3), "an action space that is not supported, Text"),
        (spaces.Dict({"a": spaces.Text(3)}), "space whose part a is not supported, Text"),
        (
            spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))}),
            "space whose part a/1 is not supported, Text",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({})}),
            "whose part b is not supported, Dict",
        ),
        (spaces.Dict({"a.b": spaces.Discrete(3)}), r"takes 'a.b'; keys must be words"),
        (
            spaces.Tuple((spaces.Discrete(2**24 + 1), spaces.Box(-1, 1, (1,)))),
            "one of 16,777,217 values in the part 0 of an action, beside real numbers",
        ),
    ],
)
def test_what_no_policy_can_take(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action_format("x", space)


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("name", ["Forbidding", "ObservedParts"])
def test_masks_of_parts(name: str, workers: int | None) -> None:
    given = EnvConfig(mask="auto", workers=workers)
    envs = make_vec_env(f"joint_envs:{name}", num_envs=2, seed=1, settings=given)
    assert envs.spec.mask is not None
    rng = np.random.default_rng(0)
    obs: Any = envs.start(np.zeros(2, np.int64))
    for _ in range(12):
        mask = obs["action_mask"]
        assert mask.shape == (2, sum(envs.spec.action.choices))
        envs.send(draw_actions(envs.spec.action, 2, rng, mask))
        obs = envs.recv().obs
    envs.close()


def test_a_part_without_a_mask_is_free() -> None:
    form = mask_format("x", "info", joint_envs.Pair.action_space)
    row = form.flat((np.array([1, 0, 1]), None, None))
    assert row.tolist() == [True, False, True] + [True] * 9
    row = form.flat((None, (np.array([0, 1]), np.array([1, 1, 0]))))
    assert row.tolist() == [True] * 3 + [False, True, True, True, False] + [True] * 4
    row = form.flat((None, np.array([0, 1, 1, 1, 0])))
    assert row.tolist() == [True] * 3 + [False, True, True, True, False] + [True] * 4
    row = form.flat((None, (None, np.array([1, 1, 0]))))
    assert row.tolist() == [True] * 7 + [False] + [True] * 4
    for wrong in (np.ones(12), (np.ones(2),)):
        with pytest.raises(Misfit):
            form.flat(wrong)
    with pytest.raises(Misfit, match=r"^action_mask of 1 has shape \(4,\); the actions need"):
        form.flat((None, np.ones(4), None))
    form.refuse_strays((None, (np.ones(2), np.ones(3)), None))
    for stray in (np.ones(12), ([1, 1, 1], None, None, [1]), {"x": np.ones(3)}):
        with pytest.raises(Misfit, match="it must be a Dict or Tuple as the action is"):
            form.refuse_strays(stray)
        with pytest.raises(Misfit, match="it must be a Dict or Tuple as the action is"):
            form.flat(stray)
    with pytest.raises(Misfit, match="is None"):
        form.flat(None)


def test_a_mask_that_is_misspelt_in_mid_episode_ends_the_run() -> None:
    envs = make_vec_env("joint_envs:Misspelling", num_envs=1, seed=1, settings=AUTO)
    rng = np.random.default_rng(0)
    obs: Any = envs.start(np.zeros(1, np.int64))
    for _ in range(2):
        envs.send(draw_actions(envs.spec.action, 1, rng, obs["action_mask"]))
        obs = envs.recv().obs
    envs.send(draw_actions(envs.spec.action, 1, rng, obs["action_mask"]))
    with pytest.raises(
        RunFailed,
        match="episode 0, step 3: in its infos, action_mask says something of legs/mvoe; it must be a Dict",
    ):
        envs.recv()
    envs.close()


def test_combinations_of_parts_of_a_dict_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--env\.mask-form joint: .* whose masks are of each part"
    ):
        mask_format("x", "info", joint_envs.Pair.action_space, joint=True)


def test_choices_have_the_type_of_their_space() -> None:
    for space in (spaces.Discrete(3, dtype=np.int32), spaces.Discrete(3, start=2, dtype=np.int16)):
        (taken,) = action_format("x", space).decode(np.array([1]))
        assert taken.dtype == space.dtype
        assert taken == 1 + space.start


def test_a_box_beyond_int64_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="not supported"):
        action_format("x", spaces.Box(2**63, 2**63 + 3, (1,), np.uint64))


def test_a_part_of_which_nothing_is_allowed_is_named() -> None:
    envs = make_vec_env("joint_envs:AllForbidden", num_envs=2, seed=1, settings=AUTO)
    rng = np.random.default_rng(0)
    obs: Any = envs.start(np.zeros(2, np.int64))
    for step in range(2):
        envs.send(draw_actions(envs.spec.action, 2, rng, obs["action_mask"]))
        if step == 0:
            obs = envs.recv().obs
    with pytest.raises(
        RunFailed,
        match=r"episode 0, step 2: in its infos, action_mask forbids every action of legs/move$",
    ):
        envs.recv()


def test_a_mask_of_real_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match="says something of aim; it must be a Dict or Tuple as"):
        read_spec("joint_envs:Wrong", AUTO)
