"""What environments tell of their episodes, and what is tried before a run of a family begins."""

import json

import numpy as np
import pytest
import task_envs
from rolling import Rolling, random_actions

from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.seeding import Tasks
from gossamer.envs.settings import EnvConfig
from gossamer.errors import ConfigError, RunFailed

FAMILY = EnvConfig(family=True)


def make(name, workers=None, num_envs=4, family=True):
    return make_vec_env(
        f"task_envs:{name}",
        num_envs=num_envs,
        seed=7,
        first_env=10,
        settings=EnvConfig(workers=workers, family=family),
        tasks=Tasks(seed=3, count=100),
    )


def infos(envs):
    return [envs.episode_info(i) for i in range(envs.num_envs)]


@pytest.mark.parametrize("workers", [None, 2])
def test_numbers_are_plain_and_may_need_a_task_and_a_reset(workers):
    assert read_spec("task_envs:NeedsTask", FAMILY, tries=True).family
    envs = make("NeedsTask", workers)
    rolling = Rolling(envs).start()
    rolling.step(random_actions(envs, 1)[0])
    seeds = [Tasks(seed=3, count=100).seed_of(i) for i in range(10, 14)]
    expected = [{"pays": seed % 1000, "first": seed % 2, "steps": 1} for seed in seeds]
    assert infos(envs) == expected
    assert {type(x) for info in infos(envs) for x in info.values()} == {float}
    assert json.loads(json.dumps(infos(envs))) == expected
    envs.close()


@pytest.mark.parametrize("workers", [None, 2])
def test_many_tell_nothing(workers):
    envs = make("Silent", workers, family=None)
    Rolling(envs).start()
    assert infos(envs) == [{}] * 4
    assert envs.tasks().tolist() == [0] * 4
    envs.close()


def test_one_that_is_to_tell_and_cannot_is_refused():
    settings = EnvConfig(episode_info=True)
    with pytest.raises(ConfigError, match=r"episode-info is true, but CartPole-v1 has no property"):
        read_spec("CartPole-v1", settings, tries=True)


def test_what_is_there_to_be_told_and_is_not_recorded_is_remarked_unless_that_is_wanted():
    for asked, remarks in ((None, 1), (False, 0), (True, 0)):
        spec = read_spec("task_envs:Windy", EnvConfig(family=False, episode_info=asked))
        assert len(spec.remarks) == remarks
    (remark,) = read_spec("task_envs:Windy", EnvConfig(family=False)).remarks
    assert remark.endswith("which is not recorded: --env.episode-info true, or false")


@pytest.mark.parametrize("workers", [None, 2])
def test_what_fails_in_telling_names_the_environment(workers):
    envs = make("raises_later", workers)
    rolling = Rolling(envs).start()
    assert infos(envs) == [{}] * 4
    for action in random_actions(envs, 3):
        rolling.step(action)
    message = r"environment 12 failed in episode 1:\n(.*\n)*ArithmeticError: no air"
    with pytest.raises(RunFailed, match=message):
        envs.episode_info(2)
    envs.close()


@pytest.mark.parametrize("workers", [None, 2])
def test_only_the_environment_whose_episode_is_over_is_asked(workers):
    """Workers asked all of them, in the midst of their episodes, where some cannot tell or begin to count anew."""
    envs = make("CountsReads", workers)
    rolling = Rolling(envs).start()
    told = []
    for i, action in enumerate(random_actions(envs, 4)):
        rolling.step(action)
        told.append(envs.episode_info(i))
    assert told == [{"reads": 1.0}] * 4
    envs.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NoTask", r"fails in set_task\(1\): KeyError: 'wind' .*task_envs.py, line \d+"),
        ("tells_list", r"episode_info is \[1.0\]; it must be a dict of numbers"),
        ("tells_text", "episode_info is {'wind': 'strong'}; it must be"),
        ("tells_infinity", "episode_info is {'wind': inf}; it must be a dict of numbers, finite"),
        ("tells_commas", "episode_info is {'wind, x': 1.0}; .* by names without commas"),
        ("raises_attribute_error", "fails in episode_info: AttributeError: no wind"),
    ],
)
def test_a_broken_family_is_refused_in_one_line(name, says):
    assert read_spec("task_envs:tells_nan", FAMILY, tries=True).family
    with pytest.raises(ConfigError, match=says) as caught:
        read_spec(f"task_envs:{name}", FAMILY, tries=True)
    assert "\n" not in str(caught.value)


def test_workers_are_not_asked_for_tasks_they_keep():
    envs = make("Paying", 2)
    Rolling(envs).start()
    for process in envs.processes:
        process.kill()
        process.join()
    assert envs.tasks().tolist() == [10, 11, 12, 13]
    envs.close()


def test_the_tried_environment_was_told_its_task(monkeypatch):
    seen = []
    monkeypatch.setattr(task_envs.Paying, "set_task", lambda self, seed: seen.append(seed))
    read_spec("task_envs:Paying", FAMILY, tries=True)
    assert seen == [1]
    envs = make("Paying")
    envs.start(np.zeros(4, np.int64))
    assert len(seen) == 5
    envs.close()
