import gymnasium
import numpy as np
import pytest
from counting_envs import Painted
from rolling import Rolling, assert_same_rows
from wrong_envs import right

from gossamer.envs.registry import make_vec_env
from gossamer.envs.render import make_render_env
from gossamer.envs.seeding import EVALUATION_RANK
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError


def as_seen(screen: np.ndarray) -> np.ndarray:
    """[84, 84] grey picture of a screen [210, 160, 3], by plain sampling."""
    grey = screen @ np.array([0.299, 0.587, 0.114])
    rows, columns = (np.arange(84) + 0.5) * 210 / 84, (np.arange(84) + 0.5) * 160 / 84
    return grey[rows.astype(int)[:, None], columns.astype(int)]


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "ALE/Breakout-v5"])
def test_the_screen_shows_full_games_as_evaluation_plays_them(env_id):
    pytest.importorskip("ale_py")
    seen = make_render_env(env_id, EnvConfig(), 5, 150 if "Pong" in env_id else 0)
    plain = make_vec_env(
        env_id,
        num_envs=1,
        seed=5,
        rank=EVALUATION_RANK,
        settings=EnvConfig(),
        training=False,
        max_episode_steps=150 if "Pong" in env_id else 0,
    )
    watched, unseen = Rolling(seen).start(), Rolling(plain).start()
    rng = np.random.default_rng(0)
    games, returned, far = [], 0.0, 0
    while len(games) < 2:
        action = rng.integers(0, seen.spec.action.sizes[0], 1)
        row = watched.step(action)
        assert_same_rows([row], [unseen.step(action)])
        screen = seen.render()
        assert (screen.shape, screen.dtype) == ((210, 160, 3), np.uint8)
        far += np.abs(as_seen(screen) - row.obs[0, -1]).mean() > 6
        returned += row.reward[0]
        if row.ended[0]:
            games.append(returned)
            returned = 0.0
    assert far < 10
    low, high = (-21, -1) if "Pong" in env_id else (0, 20)
    assert all(low <= game <= high for game in games)


@pytest.mark.parametrize("kind", ["Painted", "PaintsWholes"])
def test_a_gymnasium_environment_with_pictures(kind):
    env = make_render_env(f"counting_envs:{kind}", EnvConfig(), 5)
    env.start(np.zeros(1, np.int64))
    env.send(np.ones(1, np.int64))
    env.recv()
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((4, 6, 3), np.uint8)
    assert (picture == 1).all()
    env.close()


def test_pictures_that_end_the_program_are_an_error(monkeypatch):
    """Else `gossamer eval --video` and `gossamer export --format hub` end with exit code 0, and nothing done."""
    monkeypatch.setenv("STOPS_PAINTING", "0")
    with pytest.raises(ConfigError, match="PaintsUntil cannot be rendered: SystemExit"):
        make_render_env("counting_envs:PaintsUntil", EnvConfig(), 5)
    monkeypatch.setenv("STOPS_PAINTING", "1")
    env = make_render_env("counting_envs:PaintsUntil", EnvConfig(), 5)
    env.send(np.ones(1, np.int64))
    env.recv()
    with pytest.raises(ConfigError, match="PaintsUntil fails in render: SystemExit"):
        env.render()
    env.close()


def test_pictures_of_fractions_are_refused():
    """A video of them would be black."""
    env = make_render_env("counting_envs:PaintsFractions", EnvConfig(), 5)
    env.send(np.ones(1, np.int64))
    env.recv()
    with pytest.raises(ConfigError, match=r"holds float64 from 0.1 to 0.1; it must be of uint8"):
        env.render()
    env.close()


@pytest.mark.parametrize("shape", [(1, 1, 3), (0, 0, 3), (3, 40, 60)])
def test_pictures_of_which_no_video_can_be_made_are_refused(monkeypatch, shape):
    """It was said to be written, and there was none, or one of two rows."""
    monkeypatch.setattr(Painted, "render", lambda _: np.zeros(shape, np.uint8))
    with pytest.raises(
        ConfigError, match=r"that returns the picture \[height, width, 3\] as uint8"
    ):
        make_render_env("counting_envs:Painted", EnvConfig(), 5)


def test_what_would_be_shown_is_closed_where_ctrl_c_comes(monkeypatch):
    def draw(_):
        raise KeyboardInterrupt

    closed = []
    monkeypatch.setattr(Painted, "render", draw)
    monkeypatch.setattr(Painted, "close", lambda env: closed.append(env))
    with pytest.raises(KeyboardInterrupt):
        make_render_env("counting_envs:Painted", EnvConfig(), 5)
    assert len(closed) == 1


def test_a_window_that_nobody_would_see_is_refused(monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(
        ConfigError, match="wrong_envs:cart_pole cannot be shown: cart_pole must take"
    ):
        make_render_env("wrong_envs:cart_pole", EnvConfig(), 5, render_mode="human")


@pytest.mark.parametrize(
    ("env_id", "mode", "says"),
    [
        ("counting_envs:Silent", "rgb_array", "cannot be rendered"),
        ("wrong_envs:right", "rgb_array", 'must take render_mode="rgb_array" and have a render'),
        ("Takes-no-mode-v0", "rgb_array", 'must take render_mode="rgb_array"'),
        ("envpool:Pong-v5", "rgb_array", "gossamer shows no pictures of EnvPool"),
        ("CartPole-v1", "human", "use --video"),
        ("PongNoFrameskip-v4", "human", "use --video"),
    ],
)
def test_what_cannot_be_shown_is_refused(monkeypatch, env_id, mode, says):
    modeless = gymnasium.envs.registration.EnvSpec("Takes-no-mode-v0", entry_point=lambda: right())
    monkeypatch.setitem(gymnasium.registry, modeless.id, modeless)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=says):
        make_render_env(env_id, EnvConfig(), 5, render_mode=mode)
