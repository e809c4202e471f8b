"""Environments that break a promise of Gymnasium's are refused, or end the run, in clear words."""

from functools import partial

import numpy as np
import pytest

from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import in_thread

DEFAULTS = EnvConfig()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("old_reset", r"reset\(seed=1\) returned ndarray of shape \(3,\); it must return two"),
        ("list_reset", r"reset\(seed=1\) returned list \[.*; it must return two"),
        ("four_values", r"step .*must return five values, observation, reward, terminated"),
        (
            "wrong_shape",
            r"reset returned ndarray of shape \(4,\) as obs.* it has shape \(4,\), declared is \(3,\)",
        ),
        (
            "one_number",
            r"reset returned ndarray of shape \(1,\) as obs.* it has shape \(1,\), declared is \(3,\)",
        ),
        ("ragged", r"reset returned list .* as observation, which does not fit"),
        ("no_such_index", r"reset returned int -1 as obs.* does not fit .* is -1, outside"),
        ("no_such_indices", r"step returned list .* does not fit .* is \[5, 0\], outside"),
        ("nan_obs", r"step returned an observation whose entry 17 of 20 is nan; it must be"),
        ("no_reward", r"step returned the reward None; it must be a finite number"),
        (
            "large_reward",
            r"step returned the reward 1e\+300; it must be a finite number of float32",
        ),
        (
            "no_seed",
            r"fails in reset\(seed=1\): TypeError: .*unexpected keyword.*reset\(self, \*, seed=None, .*line \d+",
        ),
        ("raises", r"fails in step: KeyError: 'arm' .*wrong_envs.py, line \d+"),
        ("close_raises", r"fails in close: OSError: the window is gone .*wrong_envs.py, line \d+"),
        ("leaves", r"fails in step: SystemExit: 0 .*wrong_envs.py, line \d+"),
        ("says_nothing", r"fails in step: Silent: \(its text cannot be read\) .*, line \d+"),
        ("unpacks", r"fails in step: ValueError: not enough values .*wrong_envs.py, line \d+"),
        ("inverts", r"fails in step: LinAlgError: .*wrong_envs.py, line \d+"),
    ],
)
def test_a_broken_environment_is_refused_in_one_line(name, message):
    assert read_spec("wrong_envs:right", DEFAULTS, tries=True).obs_shape == (3,)
    assert read_spec("wrong_envs:column", DEFAULTS, tries=True).obs_shape == (3,)
    with pytest.raises(ConfigError, match=message) as caught:
        read_spec(f"wrong_envs:{name}", DEFAULTS, tries=True)
    assert str(caught.value).startswith(f"wrong_envs:{name}")
    assert "\n" not in str(caught.value)
    assert read_spec(f"wrong_envs:{name}", DEFAULTS).max_episode_steps == 1000, "only if asked"


@pytest.mark.parametrize(
    ("name", "first", "then"), [("unsigned", [3], [4]), ("unsigned_indices", [2, 3], [1, 5])]
)
def test_spaces_of_unsigned_numbers_take_all_that_gymnasium_takes(name, first, then):
    envs = make_vec_env(f"wrong_envs:{name}", num_envs=1, seed=1, settings=DEFAULTS)
    assert np.flatnonzero(envs.start(np.zeros(1, np.int64))[0]).tolist() == first
    envs.send(np.zeros(1, np.int64))
    assert np.flatnonzero(envs.recv().obs[0]).tolist() == then


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("wrong_envs.py:right", "write the module without .py: wrong_envs:right$"),
        ("./tasks/wrong_envs.py:right", "write the module without .py: tasks.wrong_envs:right$"),
        ("wrong_envs.py", "an environment of your own is written wrong_envs:FUNCTION$"),
        ("wrong_envs:rihgt", "has a function of that name; did you mean wrong_envs:right[?]$"),
        ("wrong_envs:RIGHT", "did you mean wrong_envs:right[?]$"),
        ("wrong_envs:zzzzz", "nor has a function of that name$"),
        (
            "needs_missing:make",
            "cannot be imported: No module named 'notthere' \\(.*needs_missing.py, line 3\\)$",
        ),
        ("notthere:make", "start gossamer in the folder that holds notthere, or install it$"),
        (
            "ale_py:ALE/Pong-v5",
            "unknown environment 'ale_py:ALE/Pong-v5'; did you mean ALE/Pong-v5",
        ),
        ("wrong_envs:needs_size", "needs size; it must take no arguments, or only some with"),
    ],
)
def test_a_misspelt_environment_of_ones_own_is_told_how_to_write_it(env_id, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read_spec(env_id, DEFAULTS)
    assert "\n" not in str(caught.value)


def test_a_module_in_this_folder_may_hold_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mygrid.py").write_text("")
    with pytest.raises(
        ConfigError, match=r"an environment of your own is written mygrid:FUNCTION$"
    ):
        read_spec("mygrid", DEFAULTS)


def test_a_module_whose_name_another_has_is_told_to_be_renamed(tmp_path, monkeypatch):
    """Of test.py it was said that it has no such function: Python has a module test of its own."""
    monkeypatch.chdir(tmp_path)
    said = "nor has a function of that name"
    with pytest.raises(ConfigError, match=f"{said}$"):
        read_spec("colorsys:make", DEFAULTS)
    (tmp_path / "colorsys.py").write_text("def make(): ...")
    file = r"/colorsys\.py, not the file colorsys\.py of this folder, which needs another name$"
    with pytest.raises(ConfigError, match=f"{said}; colorsys is /.*{file}"):
        read_spec("colorsys:make", DEFAULTS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_observation_space", r"has no observation_space; give it one .*spaces\.Box\(-1\.0, "),
        ("no_action_space", r"has no action_space; give it one .*spaces\.Discrete\(2\)$"),
        ("SpaceRaises", r"fails in observation_space: RuntimeError: no map yet .*, line \d+\)$"),
        ("leaves_at_once", r"cannot be made: SystemExit: 0 .*, line \d+\)$"),
    ],
)
def test_an_environment_without_spaces_or_at_all_is_refused_in_one_line(name, message):
    for settings in (DEFAULTS, EnvConfig(workers=1)):
        with pytest.raises(ConfigError, match=message) as caught:
            make_vec_env(f"wrong_envs:{name}", num_envs=1, seed=1, settings=settings)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["the_same", "the_same_wrapped"])
def test_a_function_that_returns_the_same_environment_again_is_refused(name):
    env_id = f"wrong_envs:{name}"
    said = f"^{env_id} returned the same environment object twice; it must create a new one at every call$"
    with pytest.raises(ConfigError, match=said):
        read_spec(env_id, DEFAULTS, tries=True)
    with pytest.raises(ConfigError, match=said):
        make_vec_env(env_id, num_envs=2, seed=1, settings=DEFAULTS)
    training = make_vec_env(env_id, num_envs=1, seed=1, settings=DEFAULTS)
    with pytest.raises(ConfigError, match=said):
        make_vec_env(env_id, num_envs=1, seed=1, settings=DEFAULTS)
    training.close()


def test_an_environment_that_is_closed_may_be_returned_again():
    assert read_spec("wrong_envs:the_same", DEFAULTS, tries=True, alone=True).obs_shape == (3,)
    for _ in range(2):
        make_vec_env("wrong_envs:the_same", num_envs=1, seed=1, settings=DEFAULTS).close()


def test_one_that_handles_signals_is_told_that_other_threads_make_it_too():
    said = r"main thread .*; environments are made in other threads too: .* signals \(.*wrong_envs.py, line \d+\)$"
    with pytest.raises(ConfigError, match=said):
        in_thread(partial(read_spec, "wrong_envs:handles_signals", DEFAULTS), "trial").result(60.0)


def test_one_that_cannot_be_closed_is_told_of_once(capsys):
    envs = make_vec_env("wrong_envs:cannot_close", num_envs=3, seed=1, settings=DEFAULTS)
    envs.start(np.zeros(3, np.int64))
    envs.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gossamer: wrong_envs:cannot_close fails in close: OSError: the window")


def test_actions_must_mean_the_same_in_all_of_them():
    """Those of one would be scaled to the bounds of another."""
    says = r"has the action_space Box\(-1.0, 1.0, .* once and Box\(-1.0, 2.0, .* another time"
    with pytest.raises(ConfigError, match=says):
        make_vec_env("wrong_envs:other_bounds", num_envs=2, seed=1, settings=DEFAULTS)


def test_one_that_leaves_fails_like_one_that_raises():
    envs = make_vec_env("wrong_envs:leaves", num_envs=1, seed=1, settings=DEFAULTS)
    envs.start(np.zeros(1, np.int64))
    with pytest.raises(
        RunFailed, match=r"^environment 0 failed in episode 0:\n(.*\n)*SystemExit: 0$"
    ):
        play(envs, 1)
    envs.close()


def test_an_observation_that_is_not_finite_ends_the_run():
    envs = make_vec_env("wrong_envs:nan_later", num_envs=2, seed=7, first_env=4, settings=DEFAULTS)
    envs.start(np.zeros(2, np.int64))
    message = "^environment 4 failed in episode 0: entry 17 of its observation is nan; it must"
    with pytest.raises(RunFailed, match=message):
        play(envs, 6)
    envs.close()
    envs = make_vec_env("wrong_envs:nan_start", num_envs=2, seed=7, settings=DEFAULTS)
    with pytest.raises(RunFailed, match="entry 1 of its observation is inf"):
        envs.start(np.zeros(2, np.int64))
    envs.close()


def play(envs, num_steps):
    for _ in range(num_steps):
        envs.send(np.zeros(envs.num_envs, np.int64))
        envs.recv()
