"""`policy.act` plays what `evaluate` plays: on an environment's own observations, with the actions that it takes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases_envs
import gymnasium
import numpy as np
import pytest
import torch

import gossamer
from gossamer import cli
from gossamer.envs.interface import interface_from, read_interface
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError
from gossamer.export.hub import load_hub
from gossamer.roles.policy import Policy

TINY = {
    "algorithm": "a2c",
    "algorithm.entropy_cost": 0.0,
    "placement": "inline",
    "evaluation.every_seconds": 0,
    "num_envs": 4,
    "unroll_length": 8,
    "total_env_steps": 1_200,
    "optimizer.learning_rate": 3e-2,
    "policy.hidden_sizes": [16],
}


FUNCTIONS = dict.fromkeys(["obs_format", "action_format", "mask"])


def trained(folder: Path, name: str, **settings: Any) -> str:
    run = str(folder / "run")
    gossamer.train(f"cases_envs:{name}", run_folder=run, quiet=True, **{**TINY, **settings})
    return run


def loop(policy: Policy, env: gymnasium.Env[Any, Any], *, rewards: bool = False) -> float:
    """The loop of docs/python.md."""
    obs, _ = env.reset(seed=7)
    state, score, ended, reward = None, 0.0, False, 0.0
    while not ended:
        action, state = policy.act(obs, state, reward=reward if rewards else None)
        obs, reward, terminated, truncated, _ = env.step(action)
        score, ended = score + float(reward), bool(terminated or truncated)
    return score


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that has hardly learnt."""
    return trained(tmp_path_factory.mktemp("begun"), "Start", total_env_steps=100)


@pytest.mark.parametrize(
    "name",
    ["Start", "Edge", "Edge64", "Several", "Bits", "Numbered", "Grid", "Picture"],
)
def test_the_loop_and_the_hub_card_score_what_evaluation_says(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, name, **({"total_env_steps": 200} if name == "Picture" else {}))
    loaded = gossamer.load_policy(run)
    policy = pickle.loads(pickle.dumps(loaded))  # as for another process
    assert replace(policy.interface, **FUNCTIONS) == replace(loaded.interface, **FUNCTIONS)
    env = getattr(cases_envs, name)()
    told = gossamer.evaluate(run, episodes=2)
    assert loop(policy, env) == pytest.approx(told.mean, abs=1e-6)
    assert policy.action_space == env.action_space
    assert policy.observation_space == env.observation_space
    if name != "Picture":
        assert told.mean > 4.5, "it has learnt, so that a shifted or unclipped action would show"
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", run, "--format", "hub", "--output", "out", "--episodes", "2"]) == 0
    capsys.readouterr()
    monkeypatch.chdir("out")
    program = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(program, {})
    assert float(capsys.readouterr().out) == pytest.approx(told.mean, abs=1e-6)
    assert load_hub(".").action_space == env.action_space


def program_of_card(run: str, folder: Path) -> str:
    """Export a run to a folder, and return the program that its card prints."""
    words = ["--format", "hub", "--output", str(folder), "--episodes", "0"]
    assert cli.main(["export", run, *words]) == 0
    return (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]


def test_a_cards_program_keeps_to_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, "Endless", total_env_steps=64, max_episode_steps=7)
    program = program_of_card(run, tmp_path / "out")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "out")
    exec(program, {})
    assert float(capsys.readouterr().out) == 7.0


def test_a_cards_program_plays_a_task_of_a_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    given = {**TINY, "total_env_steps": 64, "run_folder": run, "env.family": True}
    gossamer.train("task_envs:NeedsTask", quiet=True, **given)
    told = gossamer.evaluate(run, episodes=4)
    program = program_of_card(run, tmp_path / "out")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "out")
    exec(program, {})
    assert float(capsys.readouterr().out) == told.returns[told.tasks.index(0)] > 0.0


def test_layers_of_ones_own_are_imported_from_a_hubs_folder_if_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, own = str(tmp_path / "run"), {"policy.encoders.time": "own_encoders:Keeps"}
    given = {**TINY, "total_env_steps": 64, "run_folder": run, **own}
    gossamer.train("nested_envs:Vectors", quiet=True, **given)
    program = program_of_card(run, tmp_path / "out")
    says = r"layers of its own; load_hub\(..., trust=True\) imports own_encoders:Keeps$"
    with pytest.raises(ConfigError, match=says):
        load_hub(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    assert "imports own_encoders:Keeps, which this folder does not hold" in program
    exec(program, {})
    policy, other = load_hub(".", trust=True), gossamer.load_policy(run)
    assert all(map(torch.equal, policy.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_batch_acts_as_each_alone_would(tmp_path: Path, core: str) -> None:
    settings = {
        "policy.core": core,
        "policy.core_size": 8,
        "policy.last_reward": True,
        "policy.last_action": True,
    }
    run = trained(tmp_path, "Edge", total_env_steps=400, **settings)
    policy = gossamer.load_policy(run)
    rng = np.random.default_rng(1)
    rows, rewards = rng.random((6, 3, 2), np.float32), rng.normal(size=(6, 3))
    starts = np.zeros((6, 3), bool)
    starts[0], starts[3, 1] = True, True
    together, state = [], None
    for t in range(6):
        action, state = policy.act(rows[t], state, reward=rewards[t], episode_start=starts[t])
        together.append(action)
    for column in range(3):
        state = None
        for t in range(6):
            if starts[t, column]:
                state = None
            alone, state = policy.act(rows[t, column], state, reward=rewards[t, column])
            assert alone.shape == (1,)
            np.testing.assert_allclose(together[t][column], alone, atol=1e-6)
    with pytest.raises(ValueError, match="is fed the reward of the last step"):
        policy.act(rows[0, 0], state)
    with pytest.raises(ValueError, match="state is of 1 environments, obs of 3"):
        policy.act(rows[0], state, reward=0.0)
    with pytest.raises(ValueError, match="obs holds no environment"):
        policy.act(rows[0, :0], None)
    with pytest.raises(ValueError, match=r"obs has shape \(3,\); the environment's have \(2,\)"):
        policy.act(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="it is <U1, declared is float32"):
        policy.act(np.array(["a", "b"]))


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_reward_that_is_not_a_number_counts_as_none(tmp_path: Path, core: str) -> None:
    """It would outlast its episode in the core's state, or be an action that is not a number."""
    settings = {"policy.core": core, "policy.core_size": 8, "policy.last_reward": True}
    policy = gossamer.load_policy(trained(tmp_path, "Edge", total_env_steps=400, **settings))
    states: list[Any] = []
    for reward in (np.nan, 0.0):
        _, state = policy.act(np.zeros(2, np.float32))
        action, state = policy.act(np.zeros(2, np.float32), state, reward=reward)
        states += [action, state.core_state.numpy()]
    np.testing.assert_array_equal(states[0], states[2])
    np.testing.assert_array_equal(states[1], states[3])


def test_without_a_state_an_episode_begins_whatever_else_is_said(tmp_path: Path) -> None:
    """Loops begin with `state, ended = None, np.zeros(B, bool)`."""
    settings = {"policy.core": "lstm", "policy.core_size": 8, "policy.last_action": True}
    policy = gossamer.load_policy(trained(tmp_path, "Start", total_env_steps=100, **settings))
    obs = np.random.default_rng(1).random((3, 2), np.float32)
    states = [policy.act(obs, None, episode_start=x)[1] for x in (None, np.zeros(3, bool), True)]
    assert torch.equal(states[0].core_state, states[1].core_state)
    assert torch.equal(states[0].core_state, states[2].core_state)


@pytest.mark.parametrize("name", ["Column", "Lone"])
def test_what_training_takes_as_one_observation_is_one(tmp_path: Path, name: str) -> None:
    policy = gossamer.load_policy(trained(tmp_path, name, total_env_steps=100))
    obs, _ = getattr(cases_envs, name)().reset(seed=1)
    declared = np.reshape(obs, policy.observation_space.shape)
    action, _ = policy.act(obs)
    assert np.ndim(action) == 0
    assert action == policy.act(declared)[0]
    assert np.shape(policy.act(np.stack([declared] * 2))[0]) == (2,)


def test_sampling_follows_its_generator(begun: str) -> None:
    policy = gossamer.load_policy(begun)
    obs = np.zeros((50, 2), np.float32)

    def draw(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return policy.act(obs, deterministic=False, generator=generator)[0].tolist()

    assert draw(1) == draw(1) != draw(2)
    assert set(draw(1)) == {3, 4}
    assert len(set(policy.act(obs)[0].tolist())) == 1


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "PongNoFrameskip-v4", "cases_envs:Picture"],
)
def test_an_interface_is_read_back_from_its_description(env_id: str) -> None:
    if env_id.startswith("Pong"):
        pytest.importorskip("ale_py")
    _, found = read_interface(env_id, EnvConfig())
    told = {
        "environment": found.environment,
        "observation": found.observation,
        "action": found.action,
    }
    again = interface_from(env_id, told)
    assert (again.observation, again.action) == (
        {x: y for x, y in found.observation.items() if x != "preprocessing"},
        {x: y for x, y in found.action.items() if x != "meanings"},
    )
    assert again.obs_format.shape == found.obs_format.shape
    assert again.action_format.spec == found.action_format.spec


def test_colour_frames_are_stacked_as_in_training() -> None:
    pytest.importorskip("ale_py")
    from ale_py.vector_env import AtariVectorEnv

    from gossamer.envs.registry import make_vec_env

    settings = EnvConfig(grayscale=False, noop_max=0, fire_reset=False)
    _, interface = read_interface("PongNoFrameskip-v4", settings)
    envs = make_vec_env("PongNoFrameskip-v4", num_envs=1, seed=1, settings=settings)
    wanted = envs.start(np.zeros(1, np.int64)).copy()
    envs.close()
    arguments = dict(interface.environment["arguments"])
    own = AtariVectorEnv(arguments.pop("game"), num_envs=1, **arguments)
    obs, _ = own.reset(seed=1)
    batch = interface.obs_format.empty(1)
    interface.obs_format.write(batch, 0, obs[0])
    assert batch.shape == wanted.shape == (1, 12, 84, 84)
    assert (batch == wanted).all()


def test_a_policy_is_the_network_too(begun: str) -> None:
    policy = gossamer.load_policy(begun)
    rows, starts = torch.zeros(3, 2, 2), torch.zeros(3, 2, dtype=torch.bool)
    out = policy(rows, starts, policy.initial_state(2))
    assert out.action_params.shape == (3, 2, 2)
    assert isinstance(policy, torch.nn.Module)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused(begun: str, bad: float) -> None:
    policy = gossamer.load_policy(begun)
    with pytest.raises(ValueError, match=f"observation is {bad}; it must be a finite number"):
        policy.act(np.array([0.5, bad], np.float32))
