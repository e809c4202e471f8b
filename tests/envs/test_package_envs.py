"""Ids of MiniGrid and ViZDoom, which their packages register when they are imported."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import minigrid_envs
import numpy as np
import pytest
from gymnasium import spaces
from rolling import Rolling, random_actions
from waiting import PATIENCE_SECONDS

import gossamer
from gossamer.envs.families import layers_of
from gossamer.envs.interface import interface_from, read_interface
from gossamer.envs.making import make_gym_env, time_limit
from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.envs.symbols import Symbols
from gossamer.errors import ConfigError
from gossamer.spec import Leaf

DOOR_KEY = "MiniGrid-DoorKey-5x5-v0"


def test_an_id_of_minigrid_is_known_by_its_beginning() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    code = (
        "import sys\n"
        "from gossamer.envs.making import refuse_unknown, registered_here_alone\n"
        f"refuse_unknown({DOOR_KEY!r}), refuse_unknown('BabyAI-GoToRedBall-v0')\n"
        f"print(registered_here_alone({DOOR_KEY!r}), 'vizdoom' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == "False False\n", done.stderr
    with pytest.raises(ConfigError, match=f"did you mean {DOOR_KEY}"):
        read_spec("minigrid-doorkey-5x5-v0", EnvConfig())


def test_of_minigrid_a_policy_sees_the_direction_and_the_symbols() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    spec, interface = read_interface(DOOR_KEY, EnvConfig())
    assert spec.leaves == (
        Leaf("direction", "discrete", (1,), (4,)),
        Leaf("image", "vector", (7 * 7 * 21,), tiles=49),
    )
    assert spec.action.sizes == (7,)
    assert "not observed: mission (MissionSpace)" in spec.protocol
    assert spec.remarks == ()
    assert interface.environment["import"] == "minigrid"
    read_spec(DOOR_KEY, EnvConfig(mask="auto"), tries=True)


def test_tiles_are_told_as_zeros_and_ones_by_what_lies_there() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    env = make_gym_env("MiniGrid-MemoryS11-v0", 0)
    image: Any = env.reset(seed=3)[0]["image"]
    spec, interface = read_interface("MiniGrid-MemoryS11-v0", EnvConfig())
    seen = interface.obs_format.empty(1)
    interface.obs_format.write(seen, 0, {"direction": 0, "image": image})
    tiles = seen["image"].reshape(7, 7, 21)
    for tile, (kind, colour, state) in zip(
        tiles.reshape(-1, 21), image.reshape(-1, 3), strict=True
    ):
        assert np.flatnonzero(tile).tolist() == [kind, 11 + colour, 17 + state]
    told = {"environment": {}, "observation": interface.observation, "action": interface.action}
    again = interface_from(spec.env_id, json.loads(json.dumps(told)), spec)
    assert again.obs_format.leaves == spec.leaves


def test_a_task_of_ones_own_by_minigrids_rules_is_seen_as_it_says() -> None:
    minigrid: Any = pytest.importorskip("minigrid.envs", reason="needs the extra minigrid")

    class Own(minigrid.EmptyEnv):
        pass

    gymnasium.register("MiniGrid-Own-v0", Own)
    try:
        assert make_gym_env("MiniGrid-Own-v0", 0).observation_space["image"].shape == (7, 7, 3)
        spec = read_spec("MiniGrid-Own-v0", EnvConfig())
        assert spec.leaves[1].shape == (147,)
        assert "observes image as plain numbers" in spec.remarks[0]
    finally:
        del gymnasium.registry["MiniGrid-Own-v0"]


@pytest.mark.parametrize("name", ["door_key", "masked", "at_once"])
@pytest.mark.parametrize("workers", [None, 1])
def test_minigrid_behind_a_function_is_seen_as_symbols(name: str, workers: int | None) -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    env_id = f"minigrid_envs:{name}"
    spec = read_spec(env_id, EnvConfig(mask="auto"), tries=True)
    assert spec.observed == (
        Leaf("direction", "discrete", (1,), (4,)),
        Leaf("image", "vector", (7 * 7 * 21,), tiles=49),
    )
    assert spec.remarks == ()
    settings = EnvConfig(mask="info" if spec.mask else None, workers=workers)
    envs = make_vec_env(env_id, num_envs=1, seed=3, settings=settings)
    obs: Any = envs.start(np.zeros(1, np.int64))
    assert obs["image"].sum() == 7 * 7 * 3
    envs.close()


def test_an_environment_is_not_changed_by_how_it_is_seen() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    env = make_gym_env("minigrid_envs:masked", 0)
    assert type(env.observation_space["image"]) is Symbols
    (own,) = [layer for layer in layers_of(env) if type(layer).__name__ == "Masked"]
    assert type(own.observation_space["image"]) is spaces.Box


def test_what_may_be_no_symbols_is_seen_as_it_says_and_told() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    for name, sides in (
        ("brightened", "(7, 7, 3)"),
        ("whole", "(5, 5, 3)"),
        ("inside", "(7, 7, 3)"),
    ):
        spec = read_spec(f"minigrid_envs:{name}", EnvConfig(), tries=True)
        assert spec.leaves[1].shape == ({"whole": 75}.get(name, 147),)
        (told,) = spec.remarks
        assert told.startswith(f"minigrid_envs:{name} observes image as plain numbers, because ")
        assert told.endswith(
            f"the space gymnasium.spaces.MultiDiscrete(numpy.broadcast_to([11, 6, 4], {sides}))"
        )
    for name in ("declared", "pixels"):
        assert read_spec(f"minigrid_envs:{name}", EnvConfig(), tries=True).remarks == ()


def test_what_is_no_symbol_is_refused_by_its_place() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    says = "entry 0 of 147 is 255, allowed is 0 to 10; an image of other numbers .* needs a space of its own$"
    with pytest.raises(ConfigError, match=says):
        read_spec("minigrid_envs:marked", EnvConfig(), tries=True)


def test_a_run_of_minigrid_behind_a_function_resumes_is_exported_and_acts(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    settings: dict[str, Any] = {
        "run_folder": str(tmp_path / "run"),
        "total_env_steps": 64,
        "num_envs": 2,
        "unroll_length": 8,
        "algorithm": "a2c",
        "placement": "inline",
        "evaluation.every_seconds": 0,
    }
    make = partial(gossamer.make_config, "minigrid_envs:door_key")
    gossamer.train(make(settings), quiet=True)
    longer = {**settings, "total_env_steps": 128}
    result = gossamer.train(make(longer), resume=str(tmp_path / "run"), quiet=True)
    assert result.summary["env_steps"] == 128
    policy = gossamer.load_policy(result)
    env = minigrid_envs.door_key()
    obs, _ = env.reset(seed=1)
    action, _ = policy.act(obs)
    assert env.action_space.contains(action)
    told = read_interface("minigrid_envs:door_key", EnvConfig())[1].observation["leaves"]
    assert [leaf["layout"] for leaf in told] == ["from_zero", "one_hot"]


def test_minigrids_own_time_limit_is_told_and_kept() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    spec = read_spec(DOOR_KEY, EnvConfig())
    assert spec.max_episode_steps == 250
    assert "truncated after 250 steps" in spec.protocol
    assert read_spec("MiniGrid-MemoryS17Random-v0", EnvConfig()).max_episode_steps == 1445
    assert read_spec("BabyAI-GoTo-v0", EnvConfig()).max_episode_steps == 1000, "of each episode"
    # The mission that the trial has seen has another limit than the next.
    assert read_spec("BabyAI-BossLevel-v0", EnvConfig(), 4608, tries=True).max_episode_steps == 4608
    assert time_limit(make_gym_env(DOOR_KEY, 30)) == 30
    assert read_spec("minigrid_envs:door_key", EnvConfig()).max_episode_steps == 250
    assert read_spec("minigrid_envs:at_once", EnvConfig()).max_episode_steps == 100
    for env_id in (DOOR_KEY, "minigrid_envs:door_key"):
        with pytest.raises(ConfigError, match="truncates episodes after 250 steps by itself"):
            read_spec(env_id, EnvConfig(), 251, tries=True)
        assert read_spec(env_id, EnvConfig(), 251).max_episode_steps, "of an older run"


@pytest.mark.parametrize("workers", [0, 2])
def test_episodes_of_minigrid_come_back(workers: int) -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    settings = EnvConfig(workers=workers)
    rolling = Rolling(make_vec_env(DOOR_KEY, num_envs=2, seed=3, settings=settings)).start()
    for action in random_actions(rolling.envs, 20):
        rolling.step(action)
    again = Rolling(make_vec_env(DOOR_KEY, num_envs=2, seed=3, settings=settings)).resume(rolling)
    for name, x in rolling.obs.items():
        np.testing.assert_array_equal(again.obs[name], x)
    rolling.envs.close()
    again.envs.close()


def test_an_id_of_minigrid_trains(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    settings = {
        "run_folder": str(tmp_path / "run"),
        "total_env_steps": 64,
        "num_envs": 2,
        "unroll_length": 8,
        "algorithm": "a2c",
        "placement": "inline",
        "evaluation.every_seconds": 0,
    }
    gossamer.train(gossamer.make_config(DOOR_KEY, settings), quiet=True)
    assert gossamer.evaluate(str(tmp_path / "run"), episodes=1).returns is not None


def test_an_id_of_vizdoom_shows_screens_and_numbers() -> None:
    pytest.importorskip("vizdoom", reason="needs the extra vizdoom")
    spec = read_spec("VizdoomBasic-v1", EnvConfig(mask="auto"), tries=True)
    assert spec.leaves == (
        Leaf("gamevariables", "vector", (1,)),
        Leaf("screen", "pixels", (3, 240, 320)),
    )
    assert spec.action.sizes == (4,)
    assert spec.max_episode_steps == 300


@pytest.mark.slow
def test_an_id_of_vizdoom_trains_and_writes_no_settings_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vizdoom", reason="needs the extra vizdoom")
    monkeypatch.chdir(tmp_path)
    settings = {
        "run_folder": str(tmp_path / "run"),
        "total_env_steps": 64,
        "num_envs": 2,
        "unroll_length": 8,
        "algorithm": "a2c",
        "placement": "inline",
        "evaluation.every_seconds": 0,
    }
    gossamer.train(gossamer.make_config("VizdoomBasic-v1", settings), quiet=True)
    assert (tmp_path / "run" / "summary.json").is_file()
    assert {x.name for x in tmp_path.iterdir()} <= {"run", "_vizdoom"}, "an empty folder"
