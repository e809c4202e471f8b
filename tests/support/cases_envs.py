"""Environments that break what they have declared, or do to their process what simulators do."""

import multiprocessing
import os
import tempfile
import types

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete


class Later(gymnasium.Env):
    """Right at first; from its third step on an episode has other observations."""

    observation_space: gymnasium.Space = Box(-9, 9, (4,))
    action_space: gymnasium.Space = Discrete(2)
    right: object = np.ones(4, np.float32)
    wrong: object = np.ones(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.right, {}

    def step(self, action):
        self.t += 1
        return self.right if self.t < 3 else self.wrong, 1.0, self.t == 6, False, {}


def later(space, right, wrong):
    """Return a function that makes such an environment."""

    def make():
        env = Later()
        env.observation_space, env.right, env.wrong = space, right, wrong
        return env

    return make


PICTURE = Box(0, 255, (4, 40, 40), np.uint8)
ZEROS = np.zeros((4, 40, 40), np.uint8)
scalar = later(Box(-9, 9, (4,)), np.ones(4, np.float32), np.array([3.0], np.float32))
column = later(Box(-9, 9, (4,)), np.ones(4, np.float32), np.ones((4, 1), np.float32))
row = later(Box(-9, 9, (4,)), np.ones(4, np.float32), np.ones((1, 4), np.float32))
number = later(Box(-9, 9, (4,)), np.ones(4, np.float32), 3.0)
words = later(Box(-9, 9, (4,)), np.ones(4, np.float32), np.array(list("abcd")))
floats = later(PICTURE, ZEROS, np.full((4, 40, 40), 0.7))
large = later(PICTURE, ZEROS, np.full((4, 40, 40), 300))
summed = later(PICTURE, ZEROS, np.full((4, 40, 40), 300, np.uint64))
turned = later(PICTURE, ZEROS, np.zeros((40, 40, 4), np.uint8))
COLOURS = Box(0, 255, (40, 40, 4), np.uint8)
upright = later(COLOURS, np.zeros((40, 40, 4), np.uint8), ZEROS)
symbols = later(Box(0, 5, (3,), np.uint8), np.zeros(3, np.uint8), np.array([0.5, 1, 1]))
half = later(Discrete(3), 1, 1.5)
halves = later(MultiDiscrete([2, 3]), np.array([1, 2]), np.array([0.5, 1.0]))
bits = later(MultiBinary(3), np.ones(3, np.int8), np.ones(2, np.int8))
wider = later(Box(-9, 9, (4,)), np.ones(4, np.float32), np.ones(4, np.float64))
whole = later(Box(-9, 9, (4,)), np.ones(4, np.float32), [1, 2, 3, 4])
int_pixels = later(PICTURE, ZEROS, np.full((4, 40, 40), 255))
flags = later(PICTURE, ZEROS, np.ones((4, 40, 40), bool))


class Levels(gymnasium.Env):
    """`set_task(i)` chooses a level; only level 2 pays. `episode_info` is its own too, and no numbers."""

    observation_space, action_space = Box(0, 1, (2,)), Discrete(2)
    level = 0
    episode_info = "a text"
    task_words = 7

    def set_task(self, i):
        self.level = i

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), float(action) * (self.level == 2), self.t == 8, False, {}


def level_two():
    env = Levels()
    env.set_task(2)
    return env


class OwnSpec(Levels):
    """`spec` is the robot's description, not Gymnasium's."""

    level = 2

    def __init__(self):
        self.spec = types.SimpleNamespace(mass=3.0)


class Habits(gymnasium.Env):
    """Does in its constructor what MODE says."""

    observation_space, action_space = Box(0, 1, (2,)), Discrete(2)

    def __init__(self):
        mode = os.environ.get("MODE", "")
        if mode in ("float64", "nograd", "device"):
            import torch  # worker processes of everything else begin two seconds of a core sooner
        if mode == "chdir":
            os.chdir(tempfile.mkdtemp())
        if mode == "float64":
            torch.set_default_dtype(torch.float64)
        if mode == "nograd":
            torch.set_grad_enabled(False)
        if mode == "device":
            torch.set_default_device("meta")
        if mode == "children":
            child = multiprocessing.get_context("fork").Process(target=os.getpid)
            child.start()
            child.join()
        if mode == "print":
            print("simulator 4.2 started")
            os.write(1, b"and its library\n")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t == 8, False, {}


class Pays(gymnasium.Env):
    """Tiny tasks whose optimum is 5: what a step pays depends on the action alone."""

    observation_space: gymnasium.Space = Box(0, 1, (2,))
    seen: object = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        return self.seen, self.pay(action), self.t == 5, False, {}


class Start(Pays):
    action_space = Discrete(2, start=3)

    def pay(self, action):
        return float(action == 4)


class Edge(Pays):
    """Pays the action, so the mean of the policy goes beyond the bound."""

    action_space = Box(-1.0, 1.0, (1,))

    def pay(self, action):
        return float(action[0])


class Edge64(Pays):
    action_space = Box(np.array([[-0.1], [-2.0]]), np.array([[0.1], [0.3]]), dtype=np.float64)

    def pay(self, action):
        return float(action.sum() / 0.4)


class Several(Pays):
    action_space = MultiDiscrete(np.array([[2], [3]]), start=np.array([[1], [5]]))

    def pay(self, action):
        return float(action[0, 0] == 2 and action[1, 0] == 7)


class Bits(Pays):
    action_space = MultiBinary((2, 1))

    def pay(self, action):
        return float(action.sum() / 2)


class Numbered(Pays):
    """Observations are one of numbers."""

    observation_space, action_space, seen = Discrete(4, start=2), Discrete(2), 5

    def pay(self, action):
        return float(action)


class Grid(Pays):
    observation_space = MultiDiscrete([3, 4])
    action_space, seen = Discrete(2), np.array([2, 1])

    def pay(self, action):
        return float(action)


class Picture(Pays):
    """Channels last."""

    observation_space = Box(0, 255, (40, 44, 3), np.uint8)
    action_space, seen = Discrete(2), np.zeros((40, 44, 3), np.uint8)

    def pay(self, action):
        return float(action)


class Endless(Pays):
    """Ends by a time limit alone."""

    action_space = Discrete(2)

    def step(self, action):
        self.t += 1
        return self.seen, 1.0, False, False, {}


class Column(Pays):
    """Returns its numbers in another shape than it declares."""

    observation_space = Box(-9.0, 9.0, (3,))
    action_space, seen = Discrete(2), np.ones((3, 1), np.float32)

    def pay(self, action):
        return float(action)


class Lone(Column):
    """Returns a number, not an array of one."""

    observation_space, seen = Box(-9.0, 9.0, (1,)), np.float32(0.5)


def normalized():
    """Statistics kept in the environment's own wrappers."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.NormalizeObservation(env))


class Pressure(gymnasium.Env):
    """Is the air pressure above or below 101,325 Pa? Optimum 10."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        self.above = int(self.np_random.integers(2))
        return np.array([101_325.0 + (2 * self.above - 1) * (50 + 100 * self.np_random.random())])

    def step(self, action):
        reward = float(action == self.above)
        self.t += 1
        return self.look(), reward, self.t == 10, False, {}


def not_in_workers():
    if multiprocessing.current_process().daemon:
        raise RuntimeError("no display")
    return Start()
