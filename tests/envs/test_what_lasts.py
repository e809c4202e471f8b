"""What an environment keeps from one call to the next, and what it forgets when an episode begins."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.envs.registry import make_vec_env
from gossamer.envs.seeding import Tasks
from gossamer.envs.settings import EnvConfig


def make(name, num_envs=2, max_episode_steps=0, **settings):
    return make_vec_env(
        f"counting_envs:{name}",
        num_envs=num_envs,
        seed=7,
        settings=EnvConfig(**settings),
        max_episode_steps=max_episode_steps,
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_actions_may_be_written_over_once_they_are_sent(workers):
    """An actor has one array for the actions of all steps."""
    envs = make("Counting", 3, workers=workers)
    envs.start(np.zeros(3, np.int64))
    action = np.array([3, 1, 5])
    envs.send(action)
    action[:] = 6
    assert envs.recv().obs[:, 3].tolist() == [3, 1, 5]
    envs.close()


def ends(envs, steps):
    envs.start(np.zeros(envs.num_envs, np.int64))
    found = []
    for _ in range(steps):
        envs.send(np.zeros(envs.num_envs, np.int64))
        row = envs.recv()
        found.append("t" if row.terminated[0] else "c" if row.truncated[0] else "-")
    envs.close()
    return "".join(found)


def test_a_cost_is_a_reward_too_for_the_stuck_guard():
    """Every step earns or costs something, so that no episode is stuck; one in eleven begins the next."""
    assert ends(make("PaysMuch", stuck_steps=1), 22) == 2 * "---------t-"


def test_the_stuck_guard_counts_from_the_beginning_of_each_episode():
    """Steps without a reward of the episode before, which a time limit has ended, count no more."""
    assert ends(make("Silent", max_episode_steps=3, stuck_steps=5), 16) == 4 * "--c-"


@pytest.mark.parametrize("workers", [None, 2])
def test_what_is_told_is_of_the_episodes_that_were_begun_last(workers):
    tasks = Tasks(seed=3, count=100, stride=10)
    envs = make_vec_env(
        "task_envs:Paying",
        num_envs=4,
        seed=7,
        settings=EnvConfig(workers=workers, family=True),
        tasks=tasks,
    )
    for episode in (0, 1, 3):
        envs.start(np.full(4, episode))
        numbers = [i + 10 * episode for i in range(4)]
        assert envs.tasks().tolist() == numbers
        told = [envs.episode_info(i)["pays"] for i in range(4)]
        assert told == [tasks.seed_of(n) % 1000 for n in numbers]
    envs.close()
