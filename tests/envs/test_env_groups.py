"""Groups of environments: one is made while those before it start."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.build import roles
from gossamer.build.auto import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError, RunFailed

PONG = "PongNoFrameskip-v4"


class Group:
    """A group whose games start once the last group has been made."""

    def __init__(self, made: threading.Event, num_envs: int, first_env: int):
        self.num_envs, self.first_env = num_envs, first_env
        self._made = made

    def start(self, episodes: Any) -> Any:
        assert self._made.wait(20), "no group was made meanwhile"
        return np.full((len(episodes), 1), self.first_env)


def test_a_group_is_made_while_those_before_it_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made, groups = threading.Event(), []

    def make(env_id: str, *, num_envs: int, first_env: int, **_: Any) -> Group:
        groups.append(Group(made, num_envs, first_env))
        if len(groups) == 3:
            made.set()
        return groups[-1]

    monkeypatch.setattr(roles, "make_vec_env", make)
    config = make_config(PONG, {"num_envs": 6, "env_groups": 3})
    spec = read_spec(PONG, config.env)
    found, first_obs = roles.build_env_groups(config, spec, make_plan(config, spec))
    assert found == groups
    assert [obs[0, 0] for obs in first_obs] == [0, 2, 4]


class Made:
    """A group in worker processes."""

    def __init__(self, num_envs: int, first_env: int):
        self.num_envs, self.first_env, self.closed = num_envs, first_env, False

    def start(self, episodes: Any) -> Any:
        return np.full((len(episodes), 1), self.first_env)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("fails", [False, True])
def test_groups_in_worker_processes_are_made_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    meeting, groups = threading.Barrier(3), []

    def make(env_id: str, *, num_envs: int, first_env: int, settings: Any, **_: Any) -> Made:
        assert settings.workers == 2
        meeting.wait(20)
        if fails and first_env == 4:
            raise ConfigError("no room")
        groups.append(Made(num_envs, first_env))
        return groups[-1]

    monkeypatch.setattr(roles, "make_vec_env", make)
    config = make_config(PONG, {"num_envs": 12, "env_groups": 3})
    spec = read_spec(PONG, config.env)
    plan = replace(make_plan(config, spec), env_workers=2)
    if fails:
        with pytest.raises(ConfigError, match="no room"):
            roles.build_env_groups(config, spec, plan)
        assert len(groups) == 2
        assert all(group.closed for group in groups)
        return
    found, first_obs = roles.build_env_groups(config, spec, plan)
    assert [group.first_env for group in found] == [0, 4, 8]  # type: ignore[attr-defined]
    assert [obs[0, 0] for obs in first_obs] == [0, 4, 8]


def test_groups_are_closed_where_one_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = []

    class Fails(Made):
        def start(self, episodes: Any) -> Any:
            if self.first_env == 4:
                raise RunFailed("it does not start")
            return super().start(episodes)

    def make(env_id: str, *, num_envs: int, first_env: int, **_: Any) -> Made:
        groups.append(Fails(num_envs, first_env))
        return groups[-1]

    monkeypatch.setattr(roles, "make_vec_env", make)
    config = make_config(PONG, {"num_envs": 12, "env_groups": 3})
    spec = read_spec(PONG, config.env)
    with pytest.raises(RunFailed, match="it does not start"):
        roles.build_env_groups(config, spec, replace(make_plan(config, spec), env_workers=2))
    assert len(groups) == 3
    assert all(group.closed for group in groups)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_first_observation_does_not_depend_on_the_groups(groups: int) -> None:
    config = make_config(PONG, {"num_envs": 4, "env_groups": groups})
    spec = read_spec(PONG, config.env)
    plan = replace(make_plan(config, spec), env_groups=groups)
    made, first_obs = roles.build_env_groups(config, spec, plan)
    whole = make_config(PONG, {"num_envs": 4, "env_groups": 1})
    (one,), (expected,) = roles.build_env_groups(whole, spec, replace(plan, env_groups=1))
    assert np.array_equal(np.concatenate(first_obs), expected)
    for envs in (*made, one):
        envs.close()
