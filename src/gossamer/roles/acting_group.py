"""A group of environments that an actor steps together: what it carries from step to step, and what it reports."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gossamer.spec import map_obs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.roles.acting_step import ActingStep
    from gossamer.spec import Obs
    from gossamer.types import VecEnv


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished training episode, as it is recorded."""

    env: int
    """Index of the environment: among the actor's own, and where it is recorded among the run's."""
    number: int
    """How many episodes that environment has begun before."""
    episode_return: float
    """Sum of unclipped rewards."""
    length: int
    """Env steps."""
    env_steps: int
    """Env steps that the learner's actors had taken, those of the same moment in all environments included."""
    truncated: bool
    task: int = 0
    """Number of the task, of a family."""
    info: dict[str, float] = field(default_factory=dict, hash=False)
    """What the environment tells of the episode: its task's parameters, and whether it succeeded."""


class Group:
    """Environments stepped together, their place among the columns, and what they carry along."""

    def __init__(
        self,
        envs: VecEnv,
        first: int,
        policy: ActorCritic,
        obs: Obs[NDArray[Any]],
        generator: torch.Generator,
        step: ActingStep | None,
    ):
        n = envs.num_envs
        self.envs = envs
        self.columns = slice(first, first + n)
        self.first = first
        self.episodes = np.zeros(n, dtype=np.int64)
        self.ended = np.zeros(n, dtype=bool)
        self.starts = torch.ones(n, dtype=torch.bool)
        self.episode_return = np.zeros(n)
        self.length = np.zeros(n, dtype=np.int64)
        self.step = step
        self.core_state = policy.initial_state(n) if step is None else step.core_state
        self.noise = policy.initial_noise(n, generator) if step is None else step.carried
        action = policy.spec.action
        dtype = getattr(torch, action.dtype)
        self.last_action = torch.zeros((n, *action.shape), dtype=dtype)
        self.last_reward = torch.zeros(n, dtype=torch.float32)
        # What was sent, step by step, back to the oldest episode's start: with each episode's seed it
        # is all that a resumed run needs to bring the environments back.
        self.sent: deque[NDArray[Any]] = deque()
        self.first_sent = np.zeros(n, dtype=np.int64)  # per env: step of its episode's first action
        self.oldest = 0  # step that sent[0] belongs to
        self.generator = generator
        self.obs = map_obs(torch.from_numpy, obs)
        if step is not None:
            step.take(obs)
            self.obs = step.obs

    def begin_episode(self, i: int, step: int) -> None:
        """Note that environment i has begun its next episode, whose first action is sent in a step of that number."""
        self.first_sent[i] = step
        self.episodes[i] += 1

    def end_episode(self, i: int, *, truncated: bool, task: int) -> Episode:
        """Return the episode of environment i that has just ended; its `env_steps` are the actor's to say."""
        episode = Episode(
            env=self.first + i,
            number=int(self.episodes[i]),
            episode_return=float(self.episode_return[i]),
            length=int(self.length[i]),
            env_steps=0,
            truncated=truncated,
            task=task,
            info=self.envs.episode_info(i),
        )
        self.episode_return[i] = 0.0
        self.length[i] = 0
        return episode

    def log(self, *actions: NDArray[Any]) -> None:
        """Keep what was sent in steps, one after the other."""
        self.sent.extend(actions)
        while self.oldest < self.first_sent.min():
            self.sent.popleft()
            self.oldest += 1

    def logs(self) -> list[NDArray[Any]]:
        """Return each environment's actions since its episode's start."""
        empty = self.last_action.numpy()[None][:0]
        held = np.stack(self.sent) if self.sent else empty
        return [held[begin - self.oldest :, i] for i, begin in enumerate(self.first_sent)]

    def relog(self, logs: list[NDArray[Any]]) -> None:
        """Continue from logs that end together at the present step."""
        longest = max(logs, key=len)
        held = np.zeros((len(longest), len(logs), *longest.shape[1:]), dtype=longest.dtype)
        for i, log in enumerate(logs):
            held[len(longest) - len(log) :, i] = log
        self.sent = deque(held)
        self.oldest = 0
        self.first_sent = np.array([len(longest) - len(log) for log in logs], dtype=np.int64)
