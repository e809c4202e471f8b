"""A family of a user's own: its task is what it pays."""

import gymnasium
import numpy as np


class Paying(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    pays = 0
    length = 2

    def set_task(self, seed):
        self.pays = seed % 1000

    @property
    def episode_info(self):
        return {"pays": float(self.pays)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.pays), self.steps == self.length, False, {}


class Windy(Paying):
    """Tells of its task in numpy's numbers."""

    length = 5

    @property
    def episode_info(self):
        return {
            "wind": np.float32(self.pays),
            "steps": np.int64(self.steps),
            "gust": np.float64("nan"),
        }


class CountsReads(Paying):
    """Tells how often it was asked."""

    reads = 0

    @property
    def episode_info(self):
        self.reads += 1
        return {"reads": self.reads}


class Breaks(Windy):
    """Cannot tell of an episode that has gone on for five steps."""

    @property
    def episode_info(self):
        if self.steps == 5:
            raise ArithmeticError("no wind")
        return super().episode_info


class NeedsTask(Paying):
    """Can neither be reset nor asked before it has a task; its numbers are numpy's."""

    def set_task(self, seed):
        super().set_task(seed)
        self.first = np.full(1, seed % 2, np.float32)

    @property
    def episode_info(self):
        return {
            "pays": np.float32(self.pays),
            "first": self.first[0],
            "steps": np.int64(self.steps),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {}


class NoTask(Paying):
    def set_task(self, seed):
        raise KeyError("wind")


class Tells(Paying):
    """Tells what it was made with; an exception is raised, from the second episode on if so asked."""

    def __init__(self, told, after=0):
        self.told, self.after, self.episodes = told, after, 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    @property
    def episode_info(self):
        if isinstance(self.told, Exception) and self.episodes > self.after:
            raise self.told
        return {} if isinstance(self.told, Exception) else self.told


def tells_list():
    return Tells([1.0])


def tells_text():
    return Tells({"wind": "strong"})


def tells_infinity():
    return Tells({"wind": np.inf})


def tells_commas():
    return Tells({"wind, x": 1.0})


def tells_nan():
    return Tells({"wind": np.nan, "mass": np.float64(1.0)})


def raises_attribute_error():
    return Tells(AttributeError("no wind"))


def raises_later():
    return Tells(ArithmeticError("no air"), after=1)


class Silent(gymnasium.Wrapper):
    """Has everything but an `episode_info` of its own."""

    def __init__(self):
        super().__init__(Plain())


class Plain(gymnasium.Env):
    """Tells nothing; ends after one step."""

    observation_space, action_space = Paying.observation_space, Paying.action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}
