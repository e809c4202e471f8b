"""Masks of actions: where environments say what they allow, and in which forms."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from masked_envs import LENGTH
from rolling import Rolling

from gossamer.envs.masks import BadMask, MaskFormat
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.envs.spaces import Misfit, draw_actions
from gossamer.errors import ConfigError, RunFailed

AUTO = EnvConfig(mask="auto")


def make(name: str, **settings: Any) -> Any:
    given = EnvConfig(**{"mask": "auto", **settings})
    return make_vec_env(f"masked_envs:{name}", num_envs=3, seed=4, settings=given)


@pytest.mark.parametrize(
    ("name", "source", "leaves"),
    [
        ("Forbids", "info", ["", "action_mask"]),
        ("Parts", "info", ["", "action_mask"]),
        ("Combined", "info", ["", "action_mask"]),
        ("Observed", "observation", ["observation", "action_mask"]),
    ],
)
def test_where_a_mask_is_found(name: str, source: str, leaves: list[str]) -> None:
    spec = read_spec(f"masked_envs:{name}", AUTO, tries=True)
    assert spec.mask_from == source
    assert [leaf.name for leaf in spec.leaves] == leaves
    assert spec.mask is not None
    assert spec.mask.shape == (spec.action.num_params,)
    assert f"actions masked as its {source} says" in spec.protocol
    assert read_spec(f"masked_envs:{name}", EnvConfig(mask="off")).mask is None


def test_nothing_is_masked_where_nothing_is_said() -> None:
    assert read_spec("CartPole-v1", AUTO).mask is None
    assert read_spec("masked_envs:Switches", AUTO).mask is None
    assert read_spec("Taxi-v4", AUTO).mask_from == "info"


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, None) for name in ("Forbids", "Observed", "Parts", "Combined")),
        ("Observed", 3),
        ("Parts", 3),
    ],
)
def test_rows_hold_what_is_allowed_and_the_last_one_everything(
    name: str, workers: int | None
) -> None:
    envs = make(name, workers=workers)
    rng = np.random.default_rng(0)
    obs = envs.start(np.zeros(3, np.int64))
    ends = 0
    for step in range(2 * LENGTH + 2):
        mask = obs["action_mask"]
        assert mask.dtype == np.bool_
        assert mask.any(axis=1).all()
        envs.send(draw_actions(envs.spec.action, 3, rng, mask))  # it raises at a forbidden one
        result = envs.recv()
        obs = result.obs
        if result.ended.any():
            ends += 1
            assert obs["action_mask"].all()
            assert step in (LENGTH - 1, 2 * LENGTH)
    assert ends == 2
    envs.close()


@pytest.mark.parametrize("name", ["Forbids", "Observed"])
def test_after_a_time_limit_the_mask_is_the_environments(name: str) -> None:
    """The value there counts, and a network may see the mask."""
    settings = EnvConfig(mask="auto")
    limited, free = (
        make_vec_env(
            f"masked_envs:{name}", num_envs=2, seed=3, settings=settings, max_episode_steps=limit
        )
        for limit in (LENGTH - 3, 0)
    )
    obs = [envs.start(np.zeros(2, np.int64)) for envs in (limited, free)]
    rng = np.random.default_rng(0)
    for _ in range(LENGTH - 3):
        action = draw_actions(limited.spec.action, 2, rng, obs[0]["action_mask"])
        for envs in (limited, free):
            envs.send(action)
        results = [envs.recv() for envs in (limited, free)]
        obs = [result.obs for result in results]
    assert results[0].truncated.all()
    assert not obs[0]["action_mask"].all()
    np.testing.assert_array_equal(obs[0]["action_mask"], obs[1]["action_mask"])
    limited.close()
    free.close()


def test_a_worker_and_a_thread_give_the_same_masks_and_they_resume() -> None:
    rows = []
    for workers in (None, 3):
        rolling = Rolling(make("Forbids", workers=workers)).start()
        rng, obs = np.random.default_rng(1), rolling.obs
        for _ in range(15):
            obs = rolling.step(
                draw_actions(rolling.envs.spec.action, 3, rng, obs["action_mask"])
            ).obs
        rows.append(rolling.rows)
        again = Rolling(make("Forbids")).resume(rolling)
        np.testing.assert_array_equal(again.obs["action_mask"], obs["action_mask"])
        again.envs.close()
        rolling.envs.close()
    for one, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(one.obs["action_mask"], other.obs["action_mask"])


def test_a_mask_that_forbids_everything_is_an_error_that_says_where() -> None:
    envs = make("Blocked")
    obs = envs.start(np.full(3, 17))
    rng = np.random.default_rng(0)
    for _ in range(2):
        envs.send(draw_actions(envs.spec.action, 3, rng, obs["action_mask"]))
        obs = envs.recv().obs
    envs.send(draw_actions(envs.spec.action, 3, rng, obs["action_mask"]))
    says = r"^environment 0, episode 17, step 3: in its infos, action_mask forbids every action$"
    with pytest.raises(RunFailed, match=says):
        envs.recv()
    envs.close()


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Shrinks", r"in its infos, action_mask has shape \(3,\); the actions need \(5,\)"),
        (
            "ObservedShrinks",
            r"in its observation, action_mask has shape \(3,\); the actions need \(5,\)",
        ),
        ("Vanishes", "in its infos, there is no action_mask"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error_that_says_where(
    name: str, told: str, workers: int | None
) -> None:
    given = EnvConfig(mask="auto", workers=workers)
    envs = make_vec_env(f"masked_envs:{name}", num_envs=1, seed=4, settings=given)
    rng, obs = np.random.default_rng(0), envs.start(np.full(1, 17))
    for _ in range(2):
        envs.send(draw_actions(envs.spec.action, 1, rng, obs["action_mask"]))
        obs = envs.recv().obs
    envs.send(draw_actions(envs.spec.action, 1, rng, obs["action_mask"]))
    with pytest.raises(RunFailed, match=f"^environment 0, episode 17, step 3: {told}$"):
        envs.recv()
    envs.close()


@pytest.mark.parametrize(
    ("name", "mask", "says"),
    [
        (
            "TooShort",
            "auto",
            r"TooShort: in its infos, action_mask has shape \(3,\); the actions need \(5,\); .*--env.mask off",
        ),
        ("Switches", "info", r"MultiDiscrete\(\[2\] \* 5\)"),
        ("Forbids", "observation", "observes no action_mask at the top of a Dict"),
    ],
)
def test_masks_that_mean_nothing_are_refused(name: str, mask: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_spec(f"masked_envs:{name}", EnvConfig(mask=mask), tries=True)


def test_a_mask_that_comes_with_steps_alone_is_refused() -> None:
    says = "the info of step has action_mask, but that of reset has none.* return it from reset too"
    with pytest.raises(ConfigError, match=says):
        read_spec("masked_envs:Late", AUTO, tries=True)
    assert read_spec("masked_envs:Late", EnvConfig(mask="off"), tries=True).mask is None


def test_masks_that_nobody_reads_are_told() -> None:
    method, below = read_spec("masked_envs:Elsewhere", AUTO, tries=True).remarks
    assert method.startswith("masked_envs:Elsewhere has a method action_masks, which is not called")
    assert below.startswith(
        "masked_envs:Elsewhere observes below/action_mask, which is not at the top"
    )
    remarks = read_spec("masked_envs:ObservedSwitches", AUTO).remarks
    assert "masks of MultiBinary actions are not read, so it is observed like" in remarks[1]
    for name in ("Elsewhere", "ObservedSwitches"):
        assert read_spec(f"masked_envs:{name}", EnvConfig(mask="off")).remarks == ()
    assert read_spec("masked_envs:Observed", AUTO).remarks == ()


@pytest.mark.parametrize(
    ("env_id", "kind", "instead"),
    [
        ("masked_envs:Switches", "MultiBinary", "make them MultiDiscrete([2] * 5), or "),
        ("masked_envs:Reals", "Box", ""),
        ("joint_envs:MasksReals", "Dict", ""),
    ],
)
def test_masks_in_infos_that_nobody_reads_are_told(env_id: str, kind: str, instead: str) -> None:
    (told,) = read_spec(env_id, AUTO).remarks
    assert told == (
        f"{env_id} has action_mask in its infos, but masks of {kind} actions are not read, so no action is forbidden; "
        f"{instead}--env.mask off says that there is none"
    )
    assert read_spec(env_id, EnvConfig(mask="off")).remarks == ()


def test_an_info_that_is_none_has_no_mask() -> None:
    assert read_spec("masked_envs:NoInfo", AUTO).mask is None


def test_an_environment_without_a_mask_is_told_at_the_first_reset() -> None:
    with pytest.raises(
        ConfigError, match=r"reset\(seed=1\): in its infos, there is no action_mask"
    ):
        read_spec("CartPole-v1", EnvConfig(mask="info"), tries=True)
    with pytest.raises(ConfigError, match=r"--env.mask info does not apply to Pong"):
        read_spec("PongNoFrameskip-v4", EnvConfig(mask="info"))


def test_combinations_are_one_choice_and_what_may_be_either_is_to_be_said() -> None:
    spec = read_spec("masked_envs:Combined", AUTO)
    assert (spec.action.kind, spec.action.sizes, spec.mask_form) == ("categorical", (12,), "joint")
    with pytest.raises(ConfigError, match=r"--env.mask-form parts, or joint"):
        read_spec("masked_envs:Square", AUTO)
    assert read_spec("masked_envs:Cube", AUTO).mask_form == "joint"
    for mask in ("auto", "info"):
        parts, joint = (
            read_spec("masked_envs:Square", EnvConfig(mask=mask, mask_form=form))
            for form in ("parts", "joint")
        )
        assert (parts.action.sizes, joint.action.sizes) == ((2, 2), (4,))
    assert read_spec("masked_envs:Combined", EnvConfig(mask="info")).mask_form == "joint"
    with pytest.raises(ConfigError, match=r"--env.mask-form joint: CartPole-v1 has no mask"):
        read_spec("CartPole-v1", EnvConfig(mask="auto", mask_form="joint"))


def test_forms() -> None:
    form = MaskFormat("info", (3, 2, 4))
    flat = np.array([1, 0, 1, 0, 1, 1, 1, 0, 0])
    parts = tuple(np.split(flat, [3, 5]))
    for said in (flat, flat.tolist(), flat.astype(bool), parts, list(parts)):
        np.testing.assert_array_equal(form.flat(said), flat.astype(bool))
    equal = MaskFormat("info", (3, 3))
    np.testing.assert_array_equal(equal.flat(flat[:6].reshape(2, 3)), flat[:6].astype(bool))
    joint = MaskFormat("info", (4, 3), joint=True)
    pairs = np.arange(12).reshape(4, 3) % 5 == 0
    np.testing.assert_array_equal(joint.flat(pairs), pairs.ravel())
    assert joint.leaf.shape == (12,)
    for bad in (pairs.ravel(), pairs.T, tuple(pairs)[:2]):
        with pytest.raises(Misfit, match=r"combinations of actions need \(4, 3\)"):
            joint.flat(bad)
    some = [flat.astype(x) for x in (bool, np.int8, np.uint8, np.int64, np.float32)]
    for said in (*some, np.repeat(some[1], 2)[::2], parts):
        masks = form.masks([form.all_allowed, form.row({"action_mask": said})])
        np.testing.assert_array_equal(masks, [np.ones(9, bool), flat.astype(bool)])
    for one in (form, joint):
        with pytest.raises(Misfit):
            one.row({"action_mask": np.array(True)})
    for bad, one in itertools.product(
        (some[1] * 2, -some[1], some[2] + 1, some[1] - 1), (form, MaskFormat("info", (9,)))
    ):
        rows = [one.all_allowed, one.row({"action_mask": bad})]
        with pytest.raises(
            BadMask, match=r"^action_mask holds other values than 0 and 1$"
        ) as caught:
            one.masks(rows)
        assert caught.value.row == 1
    for bad in (flat + 1, flat[:-1], None, "abc", [[1, 2], [3]], np.full(9, np.nan)):
        with pytest.raises(Misfit):
            form.flat(bad)
    with pytest.raises(Misfit, match=r"need \(6,\), \(2, 3\), or a tuple with .*, \[3, 3\]$"):
        equal.flat(flat)
    with pytest.raises(Misfit, match=r"need \(9,\), or a tuple with .*, \[3, 2, 4\]$"):
        form.flat(flat[:-1])


def test_random_actions_are_allowed_ones_and_each_of_them() -> None:
    spec = read_spec("masked_envs:Parts", AUTO).action
    mask = np.array([[1, 0, 1, 0, 1, 1, 1, 0, 0]] * 400, bool)
    drawn = draw_actions(spec, 400, np.random.default_rng(0), mask)
    assert [sorted(set(part)) for part in drawn.T.tolist()] == [[0, 2], [1], [0, 1]]


def test_a_mask_in_infos_leaves_no_leaf_of_its_name() -> None:
    spec = read_spec("masked_envs:Twice", EnvConfig(mask="info"))
    assert [leaf.name for leaf in spec.leaves] == ["observation", "action_mask"]


def test_of_what_nothing_is_allowed_is_said() -> None:
    rows = np.ones((3, 6), np.uint8)
    for form, forbidden, says in (
        (MaskFormat("info", (2, 3), True), slice(0, 6), "^action_mask forbids every action$"),
        (MaskFormat("info", (6,)), slice(0, 6), "^action_mask forbids every action$"),
        (
            MaskFormat("info", (2, 3, 1)),
            slice(2, 5),
            "^action_mask forbids every action of part 1$",
        ),
    ):
        assert form.masks([row.tobytes() for row in rows]).all()
        assert form.masks([]).shape == (0, 6)
        form.check(rows)
        bad = rows.copy()
        bad[1:, forbidden] = 0
        bad[2] *= 2
        for look in (form.check, lambda x, form=form: form.masks([row.tobytes() for row in x])):
            with pytest.raises(BadMask, match=says) as caught:
                look(bad)
            assert caught.value.row == 1
