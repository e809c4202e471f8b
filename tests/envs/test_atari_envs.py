import numpy as np
import pytest
from rolling import Rolling, assert_resumes, assert_same_rows, random_actions
from sessions import slow

pytest.importorskip("ale_py")

from gossamer.envs.atari import EPISODES_PER_SEED
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError

SMALL = EnvConfig(size=36)


def make(env_id="BreakoutNoFrameskip-v4", num_envs=3, settings=SMALL, per_seed=None, **options):
    envs = make_vec_env(env_id, num_envs=num_envs, seed=3, settings=settings, **options)
    if per_seed:
        envs.episodes_per_seed = per_seed
    return envs


def test_specs_say_what_the_protocols_are():
    old = read_spec("PongNoFrameskip-v4", EnvConfig())
    assert (old.obs_shape, old.leaf.kind) == ((4, 84, 84), "pixels")
    assert (old.action.kind, old.action.sizes) == ("categorical", (6,))
    assert (old.max_episode_steps, old.action_repeat, old.leaf.stack_padding) == (27_000, 4, "zero")
    assert old.exact_resume
    assert "no sticky" in old.protocol
    assert "minimal action set" in old.protocol
    full = read_spec("ALE/Pong-v5", EnvConfig(full_action_space=True, grayscale=False, size=50))
    assert full.action.sizes == (18,)
    assert full.obs_shape == (12, 50, 50)
    assert "sticky actions 0.25" in full.protocol


def test_stacks_move_by_one_frame_and_begin_with_zeros():
    rolling = Rolling(make(max_episode_steps=30)).start()
    assert (rolling.obs[:, :3] == 0).all()
    assert rolling.obs[:, 3].any()
    for action in random_actions(rolling.envs, 65):
        before, begins = rolling.obs, rolling.ended
        row = rolling.step(action)
        for i in range(3):
            if begins[i]:
                assert (row.obs[i, :3] == 0).all()
                assert row.obs[i, 3].any()
                assert row.reward[i] == 0
                assert not row.terminated[i]
                assert not row.truncated[i]
            else:
                np.testing.assert_array_equal(row.obs[i, :3], before[i, 1:])
    assert row.obs.dtype == np.uint8
    assert row.reward.dtype == np.float64


def test_truncation_comes_after_exactly_the_given_steps():
    rolling = Rolling(make("PongNoFrameskip-v4", 2, max_episode_steps=10)).start()
    for t, action in enumerate(random_actions(rolling.envs, 33)):
        row = rolling.step(action)
        assert row.truncated.tolist() == [t % 11 == 9] * 2  # 10 steps, then the reset row
        assert (row.ended == row.truncated).all()


@pytest.mark.parametrize(("steps", "skip"), [(10**9, 4), (2**31 // 7 + 1, 7)])
def test_a_limit_beyond_what_the_simulator_counts_is_refused(steps, skip):
    most, settings = (2**31 - 1) // skip - 2, EnvConfig(size=36, frame_skip=skip)
    with pytest.raises(ConfigError, match=f"--max-episode-steps {most}$"):
        make("PongNoFrameskip-v4", 1, settings, max_episode_steps=steps)
    make("PongNoFrameskip-v4", 1, settings, max_episode_steps=most).close()


@pytest.mark.parametrize("skip", [4, 2, 1])
def test_what_is_seen_last_before_a_time_limit_is_what_comes_without_it(skip):
    settings = EnvConfig(size=84, frame_skip=skip)
    whole = Rolling(make("PongNoFrameskip-v4", 2, settings)).start()
    cut = Rolling(make("PongNoFrameskip-v4", 2, settings, max_episode_steps=40)).start()
    actions = random_actions(whole.envs, 40)
    for action in actions:
        a, b = whole.step(action), cut.step(action)
        np.testing.assert_array_equal(a.obs, b.obs)
    assert b.truncated.all()
    # The next episodes are those of the seed, whatever came before.
    fresh = make("PongNoFrameskip-v4", 2, settings)
    first = fresh.start(np.ones(2, np.int64))
    np.testing.assert_array_equal(cut.step(actions[0]).obs, first)


def test_same_seed_same_rows_and_another_seed_differs():
    runs = []
    for seed in (3, 3, 4):
        envs = make_vec_env(
            "BreakoutNoFrameskip-v4", num_envs=2, seed=seed, settings=SMALL, num_threads=2
        )
        rolling = Rolling(envs).start()
        for action in random_actions(envs, 450 if seed == 3 else 20):
            rolling.step(action)
        runs.append(rolling.rows)
    assert_same_rows(runs[0], runs[1])
    assert any((a.obs != b.obs).any() for a, b in zip(runs[0], runs[2], strict=False))
    assert sum(row.ended.sum() for row in runs[0]) >= 4


def test_a_lost_life_is_terminal_in_training_only_and_the_game_goes_on():
    training = Rolling(make(num_envs=2)).start()
    evaluation = Rolling(make(num_envs=2, training=False)).start()
    lost = ends = 0
    lives = training.envs.lives.copy()
    assert (lives == 5).all()
    for action in random_actions(training.envs, 250):
        begins = training.ended
        row, full = training.step(action), evaluation.step(action)
        for name in ("obs", "reward", "truncated", "ended"):
            np.testing.assert_array_equal(getattr(row, name), getattr(full, name))
        fewer = (training.envs.lives < lives) & ~begins
        np.testing.assert_array_equal(row.terminated, fewer)
        np.testing.assert_array_equal(full.terminated, fewer & (training.envs.lives == 0))
        np.testing.assert_array_equal(row.ended, fewer & (training.envs.lives == 0))
        lives = training.envs.lives.copy()
        lost, ends = lost + fewer.sum(), ends + row.ended.sum()
    assert ends >= 2
    assert lost >= 5 * ends


def test_a_life_lost_right_at_the_limit_does_not_hide_that_the_game_is_cut():
    rolling = Rolling(make(num_envs=2)).start()
    actions = random_actions(rolling.envs, 120)
    while not (rolling.rows and rolling.rows[-1].terminated[0]):
        rolling.step(actions[len(rolling.rows)])
    limit = len(rolling.rows)
    cut = Rolling(make(num_envs=2, max_episode_steps=limit)).start()
    for action in actions[: limit + 1]:
        cut.step(action)
    last, reset = cut.rows[-2:]
    assert last.terminated[0]
    assert last.truncated.tolist() == last.ended.tolist() == [True, True]
    assert not reset.ended.any()
    assert (reset.obs[:, :3] == 0).all()
    assert cut.envs.lives.tolist() == [5, 5]
    assert cut.episodes.tolist() == [1, 1]


def test_sticky_protocol_has_no_life_loss_terminals():
    rolling = Rolling(make("ALE/Breakout-v5")).start()
    for action in random_actions(rolling.envs, 200):
        row = rolling.step(action)
        np.testing.assert_array_equal(row.terminated, row.ended)


@pytest.mark.parametrize(
    ("env_id", "per_seed", "before", "after"),
    [
        ("PongNoFrameskip-v4", None, 100, 70),
        ("ALE/Pong-v5", None, 100, 70),
        ("BreakoutNoFrameskip-v4", None, 0, 20),
        ("BreakoutNoFrameskip-v4", 2, 300, 150),
        slow("ALE/Breakout-v5", None, 250, 200),
        slow("YarsRevengeNoFrameskip-v4", None, 100, 50),
    ],
)
def test_resuming_is_exact(env_id, per_seed, before, after):
    # the guard ends games of Pong at different steps; those of Breakout end by themselves
    settings = EnvConfig(size=36, stuck_steps=0 if "Breakout" in env_id else 60)

    def fresh():
        return make(env_id, 2, settings, per_seed)

    uninterrupted, lengths = assert_resumes(fresh, before, after)
    if before and "Yars" not in env_id:
        assert any(row.ended.any() for row in uninterrupted.rows)
        assert len(lengths) == 2


def test_resuming_right_on_an_end_begins_the_next_episode():
    first = Rolling(make(num_envs=2)).start()
    actions = iter(random_actions(first.envs, 1000))
    while not first.ended.any():
        first.step(next(actions))
    assert not first.ended.all()
    second = Rolling(make(num_envs=2)).resume(first)
    for _ in range(5):
        action = next(actions)
        assert_same_rows([first.step(action)], [second.step(action)])


def test_starting_at_any_episode_is_the_episode_that_play_reaches():
    played = Rolling(make(num_envs=1, per_seed=3, max_episode_steps=6)).start()
    direct = make(num_envs=1, per_seed=3, max_episode_steps=6)
    firsts = [played.obs]
    for action in random_actions(played.envs, 7 * 7):
        begins = played.ended[0]
        row = played.step(action)
        if begins:
            firsts.append(row.obs)
    for episode, first in enumerate(firsts):
        np.testing.assert_array_equal(direct.start(np.array([episode])), first)
    assert len({first.tobytes() for first in firsts}) >= 5  # the no-ops differ


def test_seeds_are_used_sparingly():
    rolling = Rolling(make("PongNoFrameskip-v4", 1, max_episode_steps=2)).start()
    before = rolling.envs.seeded_resets
    for _ in range(3 * EPISODES_PER_SEED):
        rolling.step(np.zeros(1, np.int64))
    assert rolling.episodes[0] == EPISODES_PER_SEED
    assert rolling.envs.seeded_resets == before + 1


def test_the_stuck_guard_truncates_and_really_resets():
    settings = EnvConfig(size=36, stuck_steps=12)
    rolling = Rolling(make("PongNoFrameskip-v4", 2, settings)).start()
    for t in range(40):
        frames = rolling.envs.spec
        row = rolling.step(np.zeros(2, np.int64))
        assert row.truncated.tolist() == [t % 13 == 11] * 2
        assert row.ended.tolist() == [t % 13 == 11] * 2
        if t % 13 == 12:
            assert (row.obs[:, :3] == 0).all()
            assert (row.reward == 0).all()
    assert frames.protocol.endswith("cut after 12 without reward")
    assert rolling.episodes.tolist() == [3, 3]


def test_a_reward_resets_the_stuck_guard():
    rolling = Rolling(make("PongNoFrameskip-v4", 1, EnvConfig(size=36, stuck_steps=60))).start()
    quiet, longest = 0, 0
    for action in random_actions(rolling.envs, 400):
        begins = rolling.ended[0]
        row = rolling.step(action)
        quiet = 0 if begins or row.reward[0] else quiet + 1
        assert row.truncated[0] == (quiet == 60)
        longest = max(longest, len(rolling.logs[0]))
    assert longest > 60


def test_bad_actions_are_refused_before_they_hang_the_simulator():
    envs = make("PongNoFrameskip-v4", 2)
    envs.start(np.zeros(2, np.int64))
    for action in ([0, 6], [-1, 0], [0], [0.0, 1.0]):
        with pytest.raises(ValueError, match="PongNoFrameskip-v4"):
            envs.send(np.array(action))
    envs.send(np.array([5, 0]))
    envs.recv()
    with pytest.raises(ValueError, match="PongNoFrameskip-v4"):
        envs.restore(np.zeros(2, np.int64), [np.array([6]), np.array([], np.int64)])
    envs.close()


def test_colour_frames_are_channels_first_in_frame_order():
    grey = make("PongNoFrameskip-v4", 1, EnvConfig(size=40))
    colour = make("PongNoFrameskip-v4", 1, EnvConfig(size=40, grayscale=False))
    grey.start(np.zeros(1, np.int64))
    colour.start(np.zeros(1, np.int64))
    for _ in range(3):
        rows = []
        for envs in (grey, colour):
            envs.send(np.zeros(1, np.int64))
            rows.append(envs.recv().obs[0].astype(np.float32))
    assert rows[1].shape == (12, 40, 40)
    for frame in range(4):
        red, green, blue = rows[1][3 * frame : 3 * frame + 3]
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        assert np.abs(luma - rows[0][frame]).mean() < 3


def test_closing_in_mid_step_is_harmless():
    envs = make(num_envs=2)
    envs.start(np.zeros(2, np.int64))
    envs.send(np.zeros(2, np.int64))
    envs.close()


def in_workers(workers, **options):
    return make(num_envs=4, settings=EnvConfig(size=36, workers=workers), num_threads=2, **options)


def test_games_in_worker_processes_play_the_same_rows_and_resume():
    """Lives lost among them, after which an episode goes on though its return ends."""
    here, there = (Rolling(in_workers(n, max_episode_steps=100)).start() for n in (None, 2))
    actions = random_actions(here.envs, 120)
    for action in actions[:60]:
        for rolling in (here, there):
            rolling.step(action)
    for rolling in (here, there):
        assert rolling.envs.tasks().tolist() == [0] * 4
        assert rolling.envs.episode_info(3) == {}
    assert_same_rows(here.rows, there.rows)
    again = Rolling(in_workers(2, max_episode_steps=100)).resume(there)
    np.testing.assert_array_equal(again.obs, here.obs)
    there.envs.close()
    for action in actions[60:]:
        for rolling in (here, again):
            rolling.step(action)
    assert_same_rows(here.rows[60:], again.rows)
    assert any((row.terminated & ~row.ended).any() for row in here.rows), "no life was lost"
    assert any(row.ended.any() for row in again.rows)
    for rolling in (here, again):
        rolling.envs.close()


def test_a_spec_needs_no_worker_process():
    assert read_spec("PongNoFrameskip-v4", EnvConfig(workers=2)) == read_spec(
        "PongNoFrameskip-v4", EnvConfig()
    )


def test_games_are_shared_out_among_workers_whole():
    with pytest.raises(ConfigError, match=r"--env.workers is 3; .*divisor of the 4"):
        in_workers(3)
