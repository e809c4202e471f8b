"""Seeds of episodes and of streams: stateless functions of where an episode or a role stands, so that any can be rebuilt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
EVALUATION_RANK = -1
"""The rank whose seeds `gossamer eval` uses; no learner has it."""
TRAINING_TASKS, HELD_OUT_TASKS = -2, -3
"""The same for the seeds of tasks: those trained on, and those that only evaluation sees."""
CHOOSING_RANK = -4
"""The same for evaluations during training, which choose the best policy: its score in other episodes is what
`gossamer eval` is asked for."""


def episode_seed(run_seed: int, rank: int, env_index: int, episode: int) -> int:
    """Return the seed of one episode, in [1, 2**31), well mixed in all four arguments.

    0 is left out because simulators read it as "unseeded".

    Source: the finaliser of SplitMix64, Steele, Lea and Flood 2014, "Fast splittable pseudorandom
    number generators", applied once per argument.
    """
    state = 0
    for value in (run_seed, rank, env_index, episode):
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return 1 + state % (2**31 - 1)


def stream_seed(seed: int, rank: int, role: str, restarts: int = 0) -> int:
    """Seed of one role's random stream, well apart from every other's."""
    key = [seed, rank, *role.encode(), *([restarts] if restarts else [])]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


@dataclass(frozen=True, slots=True)
class SeedStream:
    """The episode seeds of a group of environments."""

    run_seed: int
    rank: int
    first_env: int
    """Index, among the run's environments, of the group's first."""

    def seed(self, env: int, episode: int) -> int:
        """Return the seed of an episode of the group's environment number `env`."""
        return episode_seed(self.run_seed, self.rank, self.first_env + env, episode)

    @property
    def whose(self) -> str:
        """Name of an environment of this group in messages."""
        return "environment" if self.rank >= 0 else "evaluation's environment"

    def part(self, first: int) -> SeedStream:
        """Return the stream of the environments from number `first` of the group on."""
        return SeedStream(self.run_seed, self.rank, self.first_env + first)


@dataclass(frozen=True, slots=True)
class Tasks:
    """Which task of a family each of the run's environments plays, and what seed stands for it."""

    seed: int
    """Seed that the tasks of a run are drawn from."""
    count: int
    """Tasks there are."""
    envs_per_task: int = 1
    """Neighbouring environments that play the same task."""
    stride: int = 0
    """Tasks by which an environment goes on after every episode; 0: it keeps its own."""
    num_played: int = 0
    """Number of tasks that are played, evenly spaced; 0: all."""
    held_out: bool = False
    """Drawn from seeds that training never uses."""

    def number(self, env: int, episode: int) -> int:
        """Return the task, in [0, count), of an episode of environment number `env`."""
        num_played = self.num_played or self.count
        own = env // self.envs_per_task + self.stride * episode
        return own % num_played * self.count // num_played

    def seed_of(self, number: int) -> int:
        """Return the seed that stands for a task."""
        stream = HELD_OUT_TASKS if self.held_out else TRAINING_TASKS
        return episode_seed(self.seed, stream, number, 0)


ONE_TASK = Tasks(seed=0, count=1)
"""Tasks of environments that know no others."""


class WithoutTasks:
    """The part of a `VecEnv` about tasks, for simulators that have none."""

    num_envs: int

    def tasks(self) -> NDArray[np.int64]:
        """Return 0 for each environment."""
        return np.zeros(self.num_envs, np.int64)

    def episode_info(self, env: int) -> dict[str, float]:
        """Return nothing."""
        return {}


@dataclass(frozen=True)
class Part:
    """A group of environments of one run."""

    num_envs: int
    """N, at least 1."""
    first_env: int = 0
    """Index of env 0 among the run's environments."""
    tasks: Tasks = ONE_TASK
    """Of a family, which environment plays which; others do not ask."""
