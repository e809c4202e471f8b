import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

import gossamer
from gossamer.envs.atari import atari_protocol
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import (
    FAMILIES_ONLY,
    OF_OWN_ENVIRONMENTS,
    EnvConfig,
    is_native,
    suite_of,
)
from gossamer.errors import ConfigError
from gossamer.machine import install_command


@pytest.mark.parametrize(
    ("env_id", "suite"),
    [
        ("PongNoFrameskip-v4", "atari"),
        ("ALE/MsPacman-v5", "atari"),
        ("envpool:Pong-v5", "atari"),
        ("envpool:Frogger-v5", "atari"),
        ("envpool:Blackjack-v5", "atari"),  # a game of the same name as
        ("envpool:Blackjack-v1", "toy"),
        ("envpool:Ant-v5", "mujoco"),
        ("HalfCheetah-v5", "mujoco"),
        ("InvertedPendulum-v5", "mujoco"),
        ("Pendulum-v1", "classic"),
        ("CartPole-v1", "classic"),
        ("RandomExtremeAcrobot-v1", "classic"),
        ("LunarLander-v3", "box2d"),
        ("envpool:BipedalWalkerHardcore-v3", "box2d"),
        ("FrozenLake-v1", "toy"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("envpool:BabyAI-GoToLocal-v0", "minigrid"),
        ("my_module:MiniGrid-Own-v0", "minigrid"),
        ("my_module:make_MiniGrid-v0", "other"),
        ("my_module:make_env", "other"),
        ("my_module:Thing-v0", "other"),
        ("gymnasium:Ant-v5", "mujoco"),
        ("RandomWindMuJoCoHopper-v5", "mujoco"),
        ("RandomNormalAcrobot-v1", "classic"),
        ("phys2d/CartPole-v1", "classic"),
        ("my_module:BlockPusher-v0", "other"),
        ("RoboAnt-v1", "other"),
        ("my_module:AirTaxi-v0", "other"),
        ("my_module:SmartCartPole-v1", "other"),
    ],
)
def test_suites_are_told_by_spelling(env_id, suite):
    assert suite_of(env_id) == suite


def test_settings_and_suites_import_no_simulator():
    code = (
        "import sys, gossamer.envs.settings, gossamer.envs.seeding, gossamer.envs.registry\n"
        "bad = {'torch', 'gymnasium', 'ale_py', 'mujoco', 'envpool'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)


def test_the_two_atari_protocols_differ_as_published():
    old = atari_protocol("PongNoFrameskip-v4", EnvConfig())
    new = atari_protocol("ALE/Pong-v5", EnvConfig())
    assert (old.sticky, old.life_loss_terminal) == (0.0, True)
    assert (new.sticky, new.life_loss_terminal) == (0.25, False)
    for protocol in (old, new):
        assert (protocol.frame_skip, protocol.frame_stack, protocol.size) == (4, 4, 84)
        assert (protocol.noop_max, protocol.full_action_space) == (30, False)


def test_every_setting_overrides_the_protocol():
    changed = EnvConfig(
        frame_skip=2,
        frame_stack=3,
        size=64,
        grayscale=False,
        noop_max=1,
        sticky=0.1,
        full_action_space=True,
        life_loss_terminal=False,
        fire_reset=False,
        stuck_steps=9,
    )
    protocol = dataclasses.asdict(atari_protocol("PongNoFrameskip-v4", changed))
    others = ("workers", *FAMILIES_ONLY, *OF_OWN_ENVIRONMENTS)
    assert protocol == {k: v for k, v in dataclasses.asdict(changed).items() if k not in others}


@pytest.mark.parametrize(
    "settings",
    [
        EnvConfig(frame_skip=0),
        EnvConfig(frame_stack=0),
        EnvConfig(size=160),
        EnvConfig(size=8),
        EnvConfig(noop_max=-1),
        EnvConfig(sticky=1.0),
        EnvConfig(sticky=-0.1),
        EnvConfig(stuck_steps=-1),
        EnvConfig(task_seed=1),
    ],
)
def test_bad_atari_settings_are_named_with_their_flag(settings):
    with pytest.raises(ConfigError, match=r"^--env\.[a-z-]+ "):
        atari_protocol("PongNoFrameskip-v4", settings)


def test_atari_settings_are_refused_elsewhere():
    with pytest.raises(ConfigError, match=r"--env.frame-stack 2 does not apply to CartPole-v1"):
        read_spec("CartPole-v1", EnvConfig(frame_stack=2))
    with pytest.raises(ConfigError, match=r"--env.stuck-steps is -1"):
        read_spec("CartPole-v1", EnvConfig(stuck_steps=-1))
    with pytest.raises(ConfigError, match="does not apply to PongNoFrameskip-v4"):
        read_spec("PongNoFrameskip-v4", EnvConfig(task_seed=1))


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("cartpole", "CartPole-v1"),
        ("cartpole-v0", "did you mean CartPole-v0?"),
        ("my.tasks.make_maze", "is written my.tasks:make_maze"),
        ("CartPole.v1", "CartPole-v1"),
        ("mine.toml", "given with --config mine.toml"),
        ("Pong", "PongNoFrameskip-v4"),
        ("PongNoFrameskip-v0", "PongNoFrameskip-v4"),
        ("ALE/Breakot-v5", "ALE/Breakout-v5"),
        ("BreakotNoFrameskip-v4", "BreakoutNoFrameskip-v4"),
        ("HalfCheetah", "HalfCheetah-v5"),
        ("HalfCheetah-v3", "HalfCheetah-v5"),
        ("gymnasium:CartPol-v1", None),
        ("counting_envs:missing", None),
        ("counting_envs:no_function", None),
        ("counting_envs:not_an_env", None),
        ("no_such_module:make", None),
        ("zzzzqqq", None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_unknown_ids_get_one_line(env_id, suggestion):
    with pytest.raises(ConfigError) as caught:
        read_spec(env_id, EnvConfig())
    message = str(caught.value)
    assert "\n" not in message
    assert env_id.rpartition(":")[2] in message
    if suggestion:
        assert suggestion in message


def test_counts_below_one_are_refused():
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make_vec_env("CartPole-v1", num_envs=0, seed=1, settings=EnvConfig())
    with pytest.raises(ConfigError, match="max-episode-steps is -1"):
        read_spec("CartPole-v1", EnvConfig(), max_episode_steps=-1)


@pytest.mark.parametrize(
    ("env_id", "blocked", "extra"),
    [
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("envpool:Ant-v5", "envpool", "envpool"),
        ("MiniGrid-DoorKey-5x5-v0", "minigrid", "minigrid"),
        ("BabyAI-GoToRedBall-v0", "minigrid", "minigrid"),
        ("VizdoomBasic-v1", "vizdoom", "vizdoom"),
    ],
)
def test_a_missing_extra_says_what_to_type(env_id, blocked, extra):
    code = (
        f"import sys; sys.modules[{blocked!r}] = None\n"
        "from gossamer.envs.registry import read_spec\n"
        "from gossamer.envs.settings import EnvConfig\n"
        "from gossamer.errors import ConfigError\n"
        "try: read_spec(sys.argv[1], EnvConfig())\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, env_id],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout.strip().endswith(f"type: {install_command(extra)}"), done.stderr
    assert done.stdout.count("\n") == 1


def test_what_to_type_installs_into_this_python_from_where_gossamer_came(tmp_path, monkeypatch):
    python = Path(sys.executable)
    home = Path(gossamer.__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    assert install_command("atari") == (
        f'{python} -m pip install -c {home / "constraints.txt"} -e "{home}[atari]"'
    )
    monkeypatch.chdir(home)
    assert install_command("atari").endswith(' -m pip install -c constraints.txt -e ".[atari]"')
    monkeypatch.setattr(
        "gossamer.machine.__file__", str(tmp_path / "lib" / "gossamer" / "machine.py")
    )
    assert install_command("atari").endswith(' -m pip install "gossamer[atari]"')


@pytest.mark.parametrize(
    ("env_id", "native"),
    [
        ("PongNoFrameskip-v4", True),
        ("ALE/Pong-v5", True),
        ("envpool:Pong-v5", True),
        ("envpool:Ant-v5", True),
        ("CartPole-v1", False),
        ("MyNoFrameskip-v1", False),  # Gymnasium makes it, whatever it is
        ("ALE/Mine-v6", False),
    ],
)
def test_only_what_a_simulator_steps_is_native(env_id, native):
    assert is_native(env_id) == native
