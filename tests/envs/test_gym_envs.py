import re
import time

import counting_envs
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from rolling import Rolling, assert_resumes, assert_same_rows, random_actions

from gossamer.envs.making import nearest_ids
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.seeding import episode_seed
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError, RunFailed

DEFAULTS = EnvConfig()


def make(env_id, num_envs=3, settings=DEFAULTS, **options):
    return make_vec_env(env_id, num_envs=num_envs, seed=7, settings=settings, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_no_frame_is_lost_or_repeated(workers):
    settings = EnvConfig(workers=workers)
    rolling = Rolling(make("counting_envs:Counting", 4, settings)).start()
    assert (rolling.obs[:, 1] == 0).all()
    episode, steps = np.zeros(4, int), np.zeros(4, int)
    ended = np.zeros(4, bool)
    for action in random_actions(rolling.envs, 60):
        row = rolling.step(action)
        for i in range(4):
            if ended[i]:
                episode[i], steps[i] = episode[i] + 1, 0
            else:
                steps[i] += 1
            seed = episode_seed(7, 0, i, int(episode[i]))
            length = counting_envs.LENGTHS[seed % 4]
            ended[i] = steps[i] == length
            last = -1 if steps[i] == 0 else action[i]
            assert row.obs[i].tolist() == [seed // 65536, steps[i], seed % 65536, last]
            assert row.reward[i] == steps[i]
            assert row.terminated[i] == (ended[i] and seed % 2 == 1)
            assert row.truncated[i] == (ended[i] and seed % 2 == 0)
            assert row.ended[i] == ended[i]
    assert row.obs.dtype == np.float32
    assert row.reward.dtype == np.float64
    rolling.envs.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_rewards_are_those_that_were_paid(workers):
    rolling = Rolling(make("counting_envs:PaysMuch", 2, EnvConfig(workers=workers))).start()
    rows = [rolling.step(action) for action in random_actions(rolling.envs, 10)]
    rolling.envs.close()
    assert [row.reward.tolist() for row in rows] == [[16_777_217.0] * 2, [-16_777_216.0] * 2] * 5


def test_what_was_observed_stays_until_the_next_step_begins():
    envs = make("counting_envs:Counting", settings=EnvConfig(workers=1))
    rolling = Rolling(envs).start()
    first, kept = rolling.obs, rolling.obs.copy()
    time.sleep(0.05)
    np.testing.assert_array_equal(first, kept)
    rows = [rolling.step(action) for action in random_actions(envs, 5)]
    assert all(row.obs.any() for row in rows)
    for name in ("reward", "terminated", "truncated", "ended"):
        assert not np.shares_memory(getattr(rows[0], name), getattr(rows[1], name)), name
    envs.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "counting_envs:Counting"])
def test_same_seed_same_thousand_rows_and_another_seed_differs(env_id):
    runs = []
    for seed in (7, 7, 8):
        rolling = Rolling(make_vec_env(env_id, num_envs=2, seed=seed, settings=EnvConfig())).start()
        for action in random_actions(rolling.envs, 1000):
            rolling.step(action)
        runs.append(rolling.rows)
    assert_same_rows(runs[0], runs[1])
    assert any((a.obs != b.obs).any() for a, b in zip(runs[0], runs[2], strict=True))


def test_a_halved_group_is_the_whole_group():
    whole = Rolling(make("CartPole-v1", 4)).start()
    halves = [Rolling(make("CartPole-v1", 2, first_env=first)).start() for first in (0, 2)]
    for action in random_actions(whole.envs, 100):
        row = whole.step(action)
        parts = [half.step(action[i : i + 2]) for half, i in zip(halves, (0, 2), strict=True)]
        for name in row._fields:
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(getattr(row, name), joined)


@pytest.mark.parametrize("before", [0, 1, 3, 60, 137])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "counting_envs:Counting"])
def test_resuming_short_episodes_is_exact(env_id, before):
    _, lengths = assert_resumes(lambda: make(env_id, 5), before, 80)
    assert before < 60 or len(lengths) > 1


def test_resuming_acrobot_is_exact_across_truncations():
    whole, _ = assert_resumes(lambda: make("Acrobot-v1", 3, max_episode_steps=170), 400, 200)
    assert any(row.truncated.any() for row in whole.rows)


def test_resuming_right_on_an_end_begins_the_next_episode():
    first = Rolling(make("counting_envs:Counting", 1)).start()
    while not first.ended[0]:
        first.step(np.zeros(1, np.int64))
    second = Rolling(make("counting_envs:Counting", 1)).resume(first)
    row = second.step(np.zeros(1, np.int64))
    assert row.obs[0, 1] == 0
    assert second.episodes[0] == 1
    assert row.obs[0, 2] == episode_seed(7, 0, 0, 1) % 65536


def test_resuming_mujoco_is_exact():
    pytest.importorskip("mujoco")
    assert_resumes(lambda: make("HalfCheetah-v5", 2, max_episode_steps=50), 120, 60)


def test_resuming_with_workers_is_exact():
    settings = EnvConfig(workers=2)
    assert_resumes(lambda: make("counting_envs:Counting", 4, settings), 37, 20)


def test_workers_and_thread_give_the_same_rows():
    rows = []
    for workers in (0, 1, 2):
        rolling = Rolling(make("CartPole-v1", 4, EnvConfig(workers=workers))).start()
        for action in random_actions(rolling.envs, 60):
            rolling.step(action)
        rolling.envs.close()
        rows.append(rolling.rows)
    assert_same_rows(rows[0], rows[1])
    assert_same_rows(rows[0], rows[2])


def test_the_final_observation_of_a_truncation_is_the_true_one():
    rolling = Rolling(make("CartPole-v1", 1, max_episode_steps=4)).start()
    single = gymnasium.make("CartPole-v1", disable_env_checker=True)
    single.reset(seed=episode_seed(7, 0, 0, 0))
    for _ in range(4):
        row = rolling.step(np.ones(1, np.int64))
        expected = single.step(1)[0]
    assert row.truncated[0]
    assert not row.terminated[0]
    assert row.ended[0]
    np.testing.assert_array_equal(row.obs[0], np.float32(expected))
    assert rolling.envs.spec.max_episode_steps == 4


def test_time_limits_are_the_environments_own_or_a_thousand():
    assert read_spec("CartPole-v1", EnvConfig()).max_episode_steps == 500
    assert read_spec("CartPole-v1", EnvConfig(), 900).max_episode_steps == 900
    assert read_spec("counting_envs:Silent", EnvConfig()).max_episode_steps == 1000
    rolling = Rolling(make("counting_envs:Silent", 1)).start()
    for t in range(1000):
        assert rolling.step(np.zeros(1, np.int64)).truncated[0] == (t == 999)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_stuck_guard_truncates_and_really_resets(workers):
    rolling = Rolling(
        make("counting_envs:Silent", 2, EnvConfig(stuck_steps=5, workers=workers))
    ).start()
    seen = []
    for _ in range(13):
        row = rolling.step(np.zeros(2, np.int64))
        seen.append((int(row.obs[0, 0]), bool(row.truncated[0]), bool(row.ended[1])))
    quiet = [(t, False, False) for t in (1, 2, 3, 4)]
    begins, cut = (0, False, False), (5, True, True)
    assert seen == [*quiet, cut, begins, *quiet, cut, begins, quiet[0]]
    rolling.envs.close()


@pytest.mark.parametrize(
    ("observation", "shape", "kind"),
    [
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "vector"),
        (spaces.Box(-1, 1, (2, 3), np.float32), (6,), "vector"),
        (spaces.Box(0, 9, (5,), np.int32), (5,), "vector"),
        (spaces.Box(0, 255, (128,), np.uint8), (128,), "vector"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), (147,), "vector"),
        (spaces.Box(0, 255, (40, 48, 3), np.uint8), (3, 40, 48), "pixels"),
        (spaces.Box(0, 255, (4, 40, 48), np.uint8), (4, 40, 48), "pixels"),
        (spaces.Box(0, 255, (40, 48), np.uint8), (1, 40, 48), "pixels"),
        (spaces.Discrete(4, start=2), (4,), "vector"),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), (5,), "vector"),
        (spaces.MultiBinary((2, 2)), (4,), "vector"),
    ],
)
def test_every_supported_observation_space(monkeypatch, observation, shape, kind):
    made = []

    def make_one():
        made.append(counting_envs.Spaces(observation, spaces.Discrete(2)))
        return made[-1]

    monkeypatch.setattr(counting_envs, "made", make_one, raising=False)
    envs = make("counting_envs:made", 2)
    assert envs.spec.obs_shape == shape
    assert envs.spec.leaf.kind == kind
    obs = envs.start(np.zeros(2, np.int64))
    assert obs.shape == (2, *shape)
    assert obs.dtype == (np.uint8 if kind == "pixels" else np.float32)
    first = made[-1].first
    np.testing.assert_array_equal(obs[1], encoded(observation, first).astype(obs.dtype))


def encoded(space, value):
    """What a network should see, written out slowly."""
    if isinstance(space, spaces.Discrete):
        return np.eye(space.n)[value - space.start]
    if isinstance(space, spaces.MultiDiscrete):
        parts = zip(space.nvec, value - space.start, strict=True)
        return np.concatenate([np.eye(n)[v] for n, v in parts])
    if space.shape == (40, 48, 3):
        return np.stack([value[..., c] for c in range(3)])
    if space.shape == (40, 48):
        return value[None]
    return value if space.shape == (4, 40, 48) else value.ravel()


@pytest.mark.parametrize(
    ("action_space", "kind", "sizes", "sent", "expected"),
    [
        (spaces.Discrete(3), "categorical", (3,), np.array([2]), 2),
        (spaces.Discrete(3, start=5), "categorical", (3,), np.array([2]), 7),
        (
            spaces.MultiDiscrete([2, 4], start=[0, 1]),
            "multi_categorical",
            (2, 4),
            np.array([[1, 3]]),
            [1, 4],
        ),
        (
            spaces.MultiDiscrete([[2, 3], [2, 2]]),
            "multi_categorical",
            (2, 3, 2, 2),
            np.array([[1, 2, 0, 1]]),
            [[1, 2], [0, 1]],
        ),
        (spaces.MultiBinary(3), "bernoulli", (3,), np.array([[0, 1, 1]]), [0, 1, 1]),
        (
            spaces.Box(np.array([[-2, 10]]), np.array([[2, 11]]), dtype=np.int32),
            "multi_categorical",
            (5, 2),
            np.array([[4, 0]]),
            [[2, 10]],
        ),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            "multi_categorical",
            (256, 256),
            np.array([[255, 7]]),
            [255, 7],
        ),
        (
            spaces.Box(-1, np.array([1, 2], np.float32)),
            "gaussian",
            (2,),
            np.array([[-3, 1.5]], np.float32),
            [-1, 1.5],
        ),
        (
            spaces.Box(-1, 1, (1, 2), np.float64),
            "gaussian",
            (2,),
            np.array([[9, 0.5]], np.float32),
            [[1, 0.5]],
        ),
        (
            spaces.Box(-np.inf, np.inf, (1,), np.float32),
            "gaussian",
            (1,),
            np.array([[50]], np.float32),
            [50],
        ),
    ],
)
def test_every_supported_action_space(monkeypatch, action_space, kind, sizes, sent, expected):
    made = []

    def make_one():
        made.append(counting_envs.Spaces(spaces.Box(0, 1, (1,)), action_space))
        return made[-1]

    monkeypatch.setattr(counting_envs, "made", make_one, raising=False)
    envs = make("counting_envs:made", 1)
    assert (envs.spec.action.kind, envs.spec.action.sizes) == (kind, sizes)
    envs.start(np.zeros(1, np.int64))
    envs.send(sent)
    envs.recv()
    np.testing.assert_array_equal(made[-1].seen[0], expected)
    assert action_space.contains(made[-1].seen[0])


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (spaces.Dict(x=spaces.Text(5)), spaces.Discrete(2)),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]), spaces.Discrete(2)),
        (spaces.Text(5), spaces.Discrete(2)),
        (spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2)),
        (spaces.Box(0, 255, (12, 40, 48, 3), np.uint8), spaces.Discrete(2)),
        (spaces.Discrete(2), spaces.Dict(x=spaces.Text(2))),
        (spaces.Discrete(2), spaces.Box(np.iinfo(np.int64).min, 5, (2,), np.int64)),
        (spaces.Discrete(2), spaces.Box(0, 70_000, (1,), np.int64)),
        (spaces.Discrete(2), spaces.Text(3)),
    ],
)
def test_other_spaces_are_refused_by_name(monkeypatch, observation, action):
    monkeypatch.setattr(
        counting_envs, "made", lambda: counting_envs.Spaces(observation, action), raising=False
    )
    with pytest.raises(
        ConfigError, match=r"counting_envs:made has an (observation|action) space"
    ) as e:
        read_spec("counting_envs:made", EnvConfig())
    bad = action if isinstance(observation, spaces.Discrete) else observation
    assert type(bad).__name__ in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_actions_are_refused_before_the_simulator(workers):
    envs = make("counting_envs:Counting", 2, EnvConfig(workers=workers))
    envs.start(np.zeros(2, np.int64))
    for action in ([0, 7], [-1, 0], [0], [[0, 1]], [0.0, 1.0]):
        with pytest.raises(ValueError, match="counting_envs:Counting"):
            envs.send(np.array(action))
        envs.send(np.array([6, 0]))
        envs.recv()
    envs.close()


def test_actions_that_are_not_numbers_are_refused():
    envs = make("MountainCarContinuous-v0", 1)
    envs.start(np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="finite"):
        envs.send(np.full((1, 1), np.nan, np.float32))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_raises_is_named_with_its_traceback(workers):
    envs = make("counting_envs:Failing", 2, EnvConfig(workers=workers), first_env=30)
    envs.start(np.zeros(2, np.int64))
    for _ in range(2):
        envs.send(np.zeros(2, np.int64))
        envs.recv()
    envs.send(np.zeros(2, np.int64))
    with pytest.raises(RunFailed) as caught:
        envs.recv()
    message = str(caught.value)
    assert re.search(r"^environment 30 failed in episode 0", message)
    assert "in step" in message
    assert "the pole fell through the floor" in message
    envs.close()


def test_registered_ids_of_a_module():
    assert read_spec("gymnasium:CartPole-v1", EnvConfig()).obs_shape == (4,)


def test_mujoco_observations_are_float32():
    pytest.importorskip("mujoco")
    envs = make("HalfCheetah-v5", 1)
    assert envs.spec.action.kind == "gaussian"
    assert envs.start(np.zeros(1, np.int64)).dtype == np.float32
    envs.close()


def test_mujoco_repeats_no_warning_and_writes_no_log(tmp_path, monkeypatch, capfd):
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    read_spec("HalfCheetah-v5", DEFAULTS)  # its model holds a deprecated attribute
    assert list(tmp_path.iterdir()) == []
    bad = "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(bad)
    for moment in (0.0, 3.25):
        data = mujoco.MjData(model)
        data.qpos[0], data.time = np.nan, moment
        mujoco.mj_step(model, data)
    said = capfd.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"MuJoCo: .*Nan, Inf or huge value in QPOS.*\n", said.err)


def test_an_environment_that_cannot_be_built_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"ValueError: no such track .*line \d+"):
        read_spec("counting_envs:without_a_track", EnvConfig())


def test_an_environment_without_render_mode_can_be_made() -> None:
    gymnasium.register("Plain-v0", entry_point="counting_envs:PlainEnv")
    try:
        assert read_spec("Plain-v0", EnvConfig()).obs_shape == (2,)
    finally:
        del gymnasium.registry["Plain-v0"]


def test_a_name_is_suggested_whatever_its_version_is() -> None:
    gymnasium.register("Plain", entry_point="counting_envs:PlainEnv")
    try:
        with pytest.raises(ConfigError, match="unknown environment 'Plain-v3'; did you mean Plain"):
            read_spec("Plain-v3", EnvConfig())
    finally:
        del gymnasium.registry["Plain"]


def test_an_id_that_cannot_be_made_is_not_suggested_itself():
    """Its simulator may have moved, or need a package that is missing."""
    assert nearest_ids("Ant-v3") == ["Ant-v5", "Ant-v4", "Ant-v2"]


def test_a_limit_of_the_function_behind_an_id_is_kept(monkeypatch):
    def maze():
        return TimeLimit(gymnasium.make("CartPole-v1").unwrapped, 5000)

    monkeypatch.setitem(
        gymnasium.registry, "Maze-v0", gymnasium.envs.registration.EnvSpec("Maze-v0", maze)
    )
    assert read_spec("Maze-v0", EnvConfig()).max_episode_steps == 5000
    assert read_spec("Maze-v0", EnvConfig(), 70).max_episode_steps == 70


@pytest.mark.parametrize(
    ("limit", "settings", "cut"),
    [
        (6, DEFAULTS, True),
        (7, DEFAULTS, False),
        (0, EnvConfig(stuck_steps=6), True),
        (0, EnvConfig(stuck_steps=7), False),
    ],
)
def test_what_is_over_in_the_last_step_of_a_limit_is_not_cut(limit, settings, cut):
    """Scores tell how many episodes a time limit has cut, and an episode that is over has none."""
    made = make("counting_envs:Seven", 1, settings, max_episode_steps=limit)
    rolling = Rolling(made).start()
    row = rolling.step(np.zeros(1, np.int64))
    while not row.ended[0]:
        row = rolling.step(np.zeros(1, np.int64))
    assert (bool(row.terminated[0]), bool(row.truncated[0])) == (not cut, cut)


def test_an_id_that_is_registered_without_a_limit_has_none():
    """Gymnasium's word for it is -1."""
    name = "WithoutALimit-v0"
    gymnasium.register(name, "counting_envs:Silent", max_episode_steps=-1)
    try:
        assert read_spec(name, DEFAULTS).max_episode_steps <= 0
        rolling = Rolling(make(name, 1)).start()
        assert not any(rolling.step(np.zeros(1, np.int64)).ended.any() for _ in range(1_100))
        assert read_spec(name, DEFAULTS, 20).max_episode_steps == 20
    finally:
        del gymnasium.registry[name]
