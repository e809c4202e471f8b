"""Environments that break a promise each; every function makes one."""

import signal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.wrappers import TimeLimit

RESET = np.zeros(3), {}
STEP = np.zeros(3), 1.0, False, False, {}


class Wrong(gymnasium.Env):
    """Right in everything unless told what to return."""

    def __init__(self, reset=RESET, step=STEP, size=3):
        self.observation_space, self.action_space = Box(-1.0, 1.0, (size,)), Discrete(2)
        self.answers = reset, step

    def reset(self, *, seed=None, options=None):
        return self.answers[0]

    def step(self, action):
        return self.answers[1]


def right():
    return Wrong()


SHARED = Wrong()


def the_same():
    return SHARED


def the_same_wrapped():
    return TimeLimit(SHARED, 100)


def cart_pole():
    return gymnasium.make("CartPole-v1")


def unsigned():
    env = Wrong(reset=(3, {}), step=(np.uint64(4), 1.0, False, False, {}))
    env.observation_space = Discrete(5, dtype=np.uint8)
    return env


def unsigned_indices():
    env = Wrong(reset=([2, 0], {}), step=(np.array([1, 2]), 1.0, False, False, {}))
    env.observation_space = MultiDiscrete([3, 3], dtype=np.uint8)
    return env


def no_such_index():
    env = Wrong(reset=(-1, {}), step=(0, 1.0, False, False, {}))
    env.observation_space = Discrete(3)
    return env


def no_such_indices():
    env = Wrong(reset=([0, 0], {}), step=([5, 0], 1.0, False, False, {}))
    env.observation_space = MultiDiscrete([3, 3])
    return env


def needs_size(size, walls=3):
    return Wrong(size=size + walls)


def old_reset():
    return Wrong(reset=np.zeros(3))


def four_values():
    return Wrong(step=(np.zeros(3), 1.0, False, {}))


def wrong_shape():
    return Wrong(reset=(np.zeros(4), {}))


def column():
    return Wrong(reset=(np.zeros((1, 3)), {}))


def list_reset():
    return Wrong(reset=[np.zeros(3), {}])


def one_number():
    return Wrong(reset=(np.zeros(1), {}))


def ragged():
    return Wrong(reset=([np.zeros(2), 0.0], {}))


def nan_obs():
    obs = np.where(np.arange(20) == 17, np.nan, 0.0)
    return Wrong((np.zeros(20), {}), (obs, 1.0, False, False, {}), 20)


def nan_start():
    return Wrong(reset=(np.array([0.0, np.inf, 0.0]), {}))


def unpacks():
    class Unpacks(Wrong):
        def step(self, action):
            x, y = (1,)
            return x, y

    return Unpacks()


def inverts():
    class Inverts(Wrong):
        def step(self, action):
            return np.linalg.inv(np.zeros((2, 3)))

    return Inverts()


def no_reward():
    return Wrong(step=(np.zeros(3), None, False, False, {}))


def large_reward():
    return Wrong(step=(np.zeros(3), 1e300, False, False, {}))


def nan_later():
    class Later(Wrong):
        steps = 0

        def step(self, action):
            self.steps += 1
            bad = self.steps > 5
            return np.where(bad & (np.arange(20) == 17), np.nan, 0.0), 1.0, False, False, {}

    return Later((np.zeros(20), {}), size=20)


def no_seed():
    class NoSeed(Wrong):
        def reset(self):
            return np.zeros(3), {}

    return NoSeed()


def no_observation_space():
    env = Wrong()
    del env.observation_space
    return env


def no_action_space():
    env = Wrong()
    del env.action_space
    return env


class SpaceRaises(Wrong):
    @property
    def observation_space(self):
        raise RuntimeError("no map yet")

    @observation_space.setter
    def observation_space(self, space):
        pass


def close_raises():
    class CloseRaises(Wrong):
        def close(self):
            raise OSError("the window is gone")

    return CloseRaises()


def cannot_close():
    return close_raises()


def leaves():
    class Leaves(Wrong):
        def step(self, action):
            raise SystemExit(0)

    return Leaves()


def handles_signals():
    """Installs a handler, which Python lets the main thread do alone."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    return right()


def leaves_at_once():
    raise SystemExit(0)


def says_nothing():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    class SaysNothing(Wrong):
        def step(self, action):
            raise Silent

    return SaysNothing()


def raises():
    class Raises(Wrong):
        def step(self, action):
            raise KeyError("arm")

    return Raises()


def other_bounds():
    """An environment whose actions reach further each time that it is made."""
    env = Wrong()
    other_bounds.made += 1
    env.action_space = Box(-1.0, float(other_bounds.made), (2,))
    return env


other_bounds.made = 0
