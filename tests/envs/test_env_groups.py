"""Groups of environments: one is made while those before it start."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.build import roles
from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.envs.seeding import Part, episode_seed
from gossamer.errors import RunFailed

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


def test_workers_have_a_share_of_every_group() -> None:
    pytest.importorskip("ale_py")
    config = make_config(PONG, {"num_envs": 8, "env_groups": 2, "env.size": 36})
    spec = read_spec(PONG, config.env)
    plan = make_plan(config, spec)
    groups, first_obs = roles.build_env_groups(config, spec, replace(plan, env_workers=2))
    alone, expected = roles.build_env_groups(config, spec, plan)
    np.testing.assert_array_equal(np.concatenate(first_obs), np.concatenate(expected))
    one, other = (envs.processes for envs in groups)  # type: ignore[attr-defined]
    assert one == other
    assert len(one) == 2
    for _ in range(10):  # both are under way at once
        for envs in (*groups, *alone):
            envs.send(np.arange(4) % 3)
        rows = [envs.recv() for envs in (*groups, *alone)]
        for ours, theirs in zip(rows[:2], rows[2:], strict=True):
            np.testing.assert_array_equal(ours.obs, theirs.obs)  # type: ignore[arg-type]
    groups[0].close()
    groups[1].send(np.zeros(4, np.int64))
    groups[1].recv()
    assert all(process.is_alive() for process in one)
    groups[1].close()
    assert not any(process.is_alive() for process in one)
    for envs in alone:
        envs.close()


class Made:
    """A group in worker processes, whose games may not start."""

    def __init__(self, part: Part):
        self.num_envs, self.first_env, self.closed = part.num_envs, part.first_env, False

    def start(self, episodes: Any) -> Any:
        if self.first_env == 4:
            raise RunFailed("it does not start")
        return np.full((len(episodes), 1), self.first_env)

    def close(self) -> None:
        self.closed = True


def test_groups_are_closed_where_one_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[Made] = []

    def make(env_id: str, parts: Sequence[Part], **_: Any) -> list[Made]:
        groups.extend(Made(part) for part in parts)
        return groups

    monkeypatch.setattr(roles, "make_worker_groups", make)
    config = make_config(PONG, {"num_envs": 12, "env_groups": 3})
    spec = read_spec(PONG, config.env)
    with pytest.raises(RunFailed, match="it does not start"):
        roles.build_env_groups(config, spec, replace(make_plan(config, spec), env_workers=2))
    assert len(groups) == 3
    assert all(group.closed for group in groups)


def test_a_first_observation_does_not_depend_on_the_groups() -> None:
    config = make_config(PONG, {"num_envs": 4, "env_groups": 2})
    spec = read_spec(PONG, config.env)
    plan = make_plan(config, spec)
    made, first_obs = roles.build_env_groups(config, spec, plan)
    whole = make_config(PONG, {"num_envs": 4, "env_groups": 1})
    (one,), (expected,) = roles.build_env_groups(whole, spec, replace(plan, env_groups=1))
    assert np.array_equal(np.concatenate(first_obs), expected)
    for envs in (*made, one):
        envs.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_seeds_and_numbers_of_environments_go_on_from_group_to_group(workers: int) -> None:
    """And from learner to learner: these groups are the second one's, whose environments are 4 to 7 of the run."""
    given = {"num_learners": 2, "num_envs": 4, "env_groups": 2, "env.workers": workers}
    config = make_config("counting_envs:Counting", given)
    spec = read_spec(config.env_id, config.env)
    groups, first_obs = roles.build_env_groups(config, spec, make_plan(config, spec), rank=1)
    seeds = np.concatenate(first_obs) @ [65536, 0, 1, 0]
    assert seeds.tolist() == [episode_seed(config.seed, 1, env, 0) for env in (4, 5, 6, 7)]
    for envs in groups:
        envs.close()
    failing = replace(config, env_id="counting_envs:Failing")
    spec = read_spec(failing.env_id, failing.env)
    groups, _ = roles.build_env_groups(failing, spec, make_plan(failing, spec), rank=1)
    for first, envs in zip((4, 6), groups, strict=True):
        for _ in range(2):
            envs.send(np.zeros(2, np.int64))
            envs.recv()
        envs.send(np.zeros(2, np.int64))
        with pytest.raises(RunFailed, match=f"^environment {first} failed in episode 0"):
            envs.recv()
        envs.close()
