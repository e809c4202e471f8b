import numpy as np
import pytest
from rolling import Rolling, random_actions

from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError

pytest.importorskip("envpool", reason="EnvPool is an optional extra")


def rolled(env_id, num_envs=2, steps=0, settings=EnvConfig(), **options):  # noqa: B008
    envs = make_vec_env(env_id, num_envs=num_envs, seed=3, settings=settings, **options)
    rolling = Rolling(envs).start()
    for action in random_actions(envs, steps):
        rolling.step(action)
    return rolling


def test_rows_follow_the_contract():
    rolling = rolled("envpool:CartPole-v1", 3)
    assert rolling.envs.spec.max_episode_steps == 500
    assert not rolling.envs.spec.exact_resume
    ends = 0
    for action in random_actions(rolling.envs, 200):
        begins = rolling.ended
        row = rolling.step(action)
        np.testing.assert_array_equal(row.reward, np.where(begins, 0, 1))
        assert not row.ended[begins].any()
        assert (np.abs(row.obs[begins]) <= 0.05).all()  # where CartPole begins
        assert (np.abs(row.obs[row.terminated][:, [0, 2]]) > [2.4, 0.209]).any(axis=1).all()
        ends += row.ended.sum()
    assert ends > 10
    assert row.obs.dtype == np.float32
    rolling.envs.close()


def test_truncation_keeps_the_final_observation():
    rolling = rolled("envpool:CartPole-v1", 1, max_episode_steps=5)
    rows = [rolling.step(np.array([t % 2])) for t in range(7)]
    assert [bool(row.truncated[0]) for row in rows] == [False] * 4 + [True] + [False] * 2
    assert not rows[4].terminated[0]
    assert np.abs(rows[4].obs - rows[3].obs).max() < 0.5
    assert (rows[5].reward == 0).all()


def test_atari_lives_are_terminal_but_games_go_on():
    rolling = rolled("envpool:Breakout-v5", 2, settings=EnvConfig(size=40))
    spec = rolling.envs.spec
    assert (spec.obs_shape, spec.leaf.stack_padding) == ((4, 40, 40), "repeat")
    assert (rolling.obs[:, :1] == rolling.obs).all()
    for action in random_actions(rolling.envs, 500):
        rolling.step(action)
    terminated = sum(row.terminated.sum() for row in rolling.rows)
    ended = sum(row.ended.sum() for row in rolling.rows)
    assert ended >= 2
    assert terminated >= 4 * ended


def test_box_actions_are_clipped_and_observations_are_float32():
    rolling = rolled("envpool:Ant-v5", 2)
    assert rolling.obs.dtype == np.float32
    same = rolled("envpool:Ant-v5", 2)
    far, near = np.full((2, 8), 9, np.float32), np.ones((2, 8), np.float32)
    np.testing.assert_array_equal(rolling.step(far).obs, same.step(near).obs)


def test_a_start_with_later_episodes_does_not_play_the_first_ones_again():
    """As a resumed run begins, whose environments cannot be brought back."""
    first, again, later = (
        rolled("envpool:CartPole-v1", 2).envs.start(np.full(2, episode)) for episode in (5, 5, 9)
    )
    begun = rolled("envpool:CartPole-v1", 2).obs
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)
    assert not np.array_equal(first, begun)


def test_a_start_with_the_same_episodes_plays_the_same_ones():
    """As the best policy and who wants to be it have to."""
    rolling = rolled("envpool:CartPole-v1", 2)
    begun = [rolling.envs.start(np.full(2, 5)).copy()]
    for action in random_actions(rolling.envs, 60):
        rolling.step(action)
    begun.append(rolling.envs.start(np.full(2, 5)))
    np.testing.assert_array_equal(*begun)


def test_a_restore_begins_new_episodes():
    first = rolled("envpool:CartPole-v1", 2, steps=5)
    restored = [
        rolled("envpool:CartPole-v1", 2).envs.restore(np.full(2, episode), [np.zeros(5)] * 2)
        for episode in (0, 3, 3, 7)
    ]
    assert all((np.abs(obs) <= 0.05).all() for obs in restored)
    begun, third, again, seventh = restored
    np.testing.assert_array_equal(third, again)
    assert not np.array_equal(begun, third), "a resumed run does not play the first ones again"
    assert not np.array_equal(third, seventh)
    first.envs.close()


@pytest.mark.parametrize(
    ("env_id", "settings", "says"),
    [
        ("envpool:Pongg-v5", EnvConfig(), "did you mean envpool:Pong-v5"),
        ("envpool:CartPole-v1", EnvConfig(stuck_steps=5), "--env.stuck-steps"),
        ("envpool:Pong-v5", EnvConfig(stuck_steps=5), "--env.stuck-steps"),
        ("envpool:CartPole-v1", EnvConfig(workers=2), "--env.workers"),
        ("envpool:Pong-v5", EnvConfig(workers=2), "--env.workers"),
        ("envpool:Ant-v5", EnvConfig(frame_skip=2), "--env.frame-skip"),
    ],
)
def test_mistakes_are_refused(env_id, settings, says):
    with pytest.raises(ConfigError, match=says):
        read_spec(env_id, settings)
