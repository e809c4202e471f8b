"""Before a run an episode is played again: what does not come back is told."""

from __future__ import annotations

import threading
import time
from functools import partial

import leaky_envs
import numpy as np
import pytest

from gossamer.envs import repeats
from gossamer.envs.registry import make_vec_env, read_spec, try_to_repeat
from gossamer.envs.repeats import what_differs
from gossamer.envs.settings import EnvConfig


def differs(env_id, **settings):
    config = EnvConfig(**settings)
    return try_to_repeat(read_spec(env_id, config), config, clock=leaky_envs.clock).differs


@pytest.mark.parametrize(
    ("name", "workers", "says"),
    [
        ("LeaksBetweenEpisodes", 0, "has another observation after 21 steps"),
        ("LeaksBetweenEpisodes", 2, "has another observation after 21 steps"),
        ("LeaksBetweenInstances", 0, "has another observation after 0 steps"),
        ("Unseeded", 0, "has another observation after 0 steps"),
        ("SlowToReset", 0, "has another observation after 3 steps"),
        ("UnseededReward", 0, "has another reward after 1 step"),
    ],
)
def test_an_episode_that_does_not_come_back_is_found(name, workers, says):
    told = differs(f"leaky_envs:{name}", workers=workers)
    assert told == f"an episode played again from its seed {says}"


@pytest.mark.parametrize("workers", [0, 2])
def test_instances_that_share_a_stream_are_found(workers):
    told = differs("leaky_envs:SeedsOfAll", workers=workers)
    assert told == (
        "an episode played again from its seed, in a new instance beside another, has another reward after 1 step"
    )


@pytest.mark.parametrize(
    "env_id",
    ["leaky_envs:Repeats", "leaky_envs:NanReward", "CartPole-v1", "RandomExtremeAcrobot-v1",
     "MountainCarContinuous-v0", "FrozenLake-v1", "PongNoFrameskip-v4"],
)  # fmt: skip
def test_one_that_comes_back_is_trusted(env_id):
    assert differs(env_id) == ""


def test_what_is_known_is_not_tried(monkeypatch):
    monkeypatch.setattr(leaky_envs.Unseeded, "reset", None)  # cannot be called
    spec = read_spec("leaky_envs:Drifting-v0", EnvConfig())
    assert try_to_repeat(spec, EnvConfig()).differs == "it is registered as nondeterministic"


def test_the_trial_leaves_failures_to_the_run():
    assert differs("leaky_envs:Fails") == ""
    assert differs("leaky_envs:Repeats", workers=1) == ""


@pytest.mark.parametrize(
    ("what", "takes"), [("step", repeats.STEP_SECONDS), ("__init__", repeats.TRIAL_SECONDS)]
)
def test_the_trial_ends_in_time_whatever_the_environment_does(what, takes, monkeypatch):
    spec = read_spec("leaky_envs:Repeats", EnvConfig())
    released = threading.Event()

    def waits(self, *_):
        leaky_envs.seconds += takes + 0.1
        released.wait(600)  # longer than pytest waits for this test

    monkeypatch.setattr(leaky_envs.Repeats, what, waits)
    try:
        assert try_to_repeat(spec, EnvConfig(), clock=leaky_envs.clock).differs == ""
    finally:
        released.set()


def test_a_slow_environment_is_played_as_far_as_it_comes_in_its_time(monkeypatch):
    step, steps = leaky_envs.Repeats.step, []

    def slowly(self, action):
        leaky_envs.seconds += 0.1
        steps.append(self.steps)
        return step(self, action)

    monkeypatch.setattr(leaky_envs.Repeats, "step", slowly)
    assert differs("leaky_envs:LeaksBetweenEpisodes") == ""  # which shows after 20 steps
    assert steps == [0, 1, 2] * 4 + [0, 0, 1, 1, 2, 2]


def count_steps(kind, monkeypatch):
    """Return a list that grows with every step of such an environment."""
    step, steps = kind.step, []

    def counted(self, action):
        steps.append(self.steps)
        return step(self, action)

    monkeypatch.setattr(kind, "step", counted)
    return steps


def test_one_that_bears_no_other_beside_it_is_played_alone(monkeypatch):
    steps = count_steps(leaky_envs.OnlyOne, monkeypatch)
    assert differs("leaky_envs:OnlyOne") == ""
    assert len(steps) == 5 * leaky_envs.LENGTH
    assert leaky_envs.OnlyOne.opened == 0


def test_one_that_is_slow_to_make_is_played_alone(monkeypatch):
    def made(self):
        leaky_envs.seconds += repeats.BESIDE_SECONDS + 0.1

    monkeypatch.setattr(leaky_envs.Repeats, "__init__", made)
    steps = count_steps(leaky_envs.Repeats, monkeypatch)
    assert differs("leaky_envs:Repeats") == ""
    assert len(steps) == 5 * leaky_envs.LENGTH


def test_a_trial_that_nobody_waits_for_makes_nothing_more():
    """The run's own environment is made by then, which may not bear another one beside it."""
    released, closed = threading.Event(), threading.Event()
    made = []

    class Slow:
        spec, num_envs = None, 1

        def start(self, episodes):
            made.append("reset")
            leaky_envs.seconds += repeats.STEP_SECONDS + 0.1
            released.wait(60)
            return np.zeros((1, 2))

        def close(self):
            made.append("closed")
            closed.set()

    def make(num_envs):
        made.append("made")
        return Slow()

    assert repeats.what_differs(make, clock=leaky_envs.clock) == ""
    released.set()
    assert closed.wait(30)
    trials = [x for x in threading.enumerate() if x.name == "trial"]
    for trial in trials:
        trial.join(30)
    assert made == ["made", "reset", "closed"]


def test_a_trial_that_ctrl_c_ends_closes_what_it_has_made(tmp_path, monkeypatch):
    """Also an instance that is being made, which is waited for: a simulator may be a process of its own."""
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("BEGUN_SECONDS", "0.2")
    main = threading.current_thread()

    def clock():
        if threading.current_thread() is main and [*tmp_path.iterdir()]:
            raise KeyboardInterrupt
        return time.monotonic()

    make = partial(make_vec_env, "counting_envs:Begun", seed=1, settings=EnvConfig())
    with pytest.raises(KeyboardInterrupt):
        what_differs(make, clock=clock)
    assert [path.suffix for path in tmp_path.iterdir()] == [".ended"]
