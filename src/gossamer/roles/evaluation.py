"""Full episodes that say how good a policy is: what they earned, and playing them.

Shapes: n environments.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.record.window import means_by_name
from gossamer.roles.acting_step import ActingStep
from gossamer.roles.inference import Inference, nothing_carried, take_step
from gossamer.spec import map_obs
from gossamer.system import devices
from gossamer.system.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.spec import Obs
    from gossamer.types import VecEnv

MAX_ENVS = 16
"""Episodes played at once."""
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t of 95 % intervals with 1 to 10 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Returns and lengths of full episodes, in the order of the episodes' numbers."""

    returns: tuple[float, ...]
    """Return of each episode: the sum of its rewards, unclipped."""
    lengths: tuple[int, ...]
    """Length of each episode in env steps."""
    truncated: int
    """Number of episodes that a time limit ended."""
    tasks: tuple[int, ...] = ()
    """Number of each episode's task; empty without a family of tasks."""
    held_out: Evaluation | None = None
    """Evaluation of the same policy on tasks that training does not see; None if there are no such tasks."""
    infos: tuple[dict[str, float], ...] = ()
    """What the environment tells of each episode in its episode_info; empty if it tells nothing."""

    def __str__(self) -> str:
        played = f"{len(self.returns):,} episode{'s' * (len(self.returns) != 1)}"
        return f"mean {self.mean:,.4g} +- {self.standard_error:.2g} over {played}"

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; 0 for a single episode.

        With several tasks, it is computed from the tasks' means, because episodes of one task resemble each other.
        """
        scores = np.array(self.returns)
        if len(played := np.unique(self.tasks)) > 1:
            scores = np.array([scores[np.equal(self.tasks, task)].mean() for task in played])
        n = len(scores)
        return float(np.std(scores, ddof=1) / np.sqrt(n)) if n > 1 else 0.0

    @property
    def info(self) -> dict[str, float]:
        """Mean of each number in `infos`, over the episodes in which it is not NaN."""
        return means_by_name(self.infos)

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 95 % interval; infinite for a single episode or a single task."""
        return half_width(self.standard_error, len(set(self.tasks)) or len(self.returns))

    def minus(self, other: Evaluation) -> Evaluation:
        """Return an evaluation of differences: each return minus the return of the same episode in `other`."""
        returns = tuple(a - b for a, b in zip(self.returns, other.returns, strict=True))
        return Evaluation(returns, self.lengths, self.truncated, self.tasks)

    def plus(self, other: Evaluation) -> Evaluation:
        """Return one evaluation with the episodes of this and `other`, without held-out tasks."""
        return Evaluation(
            self.returns + other.returns,
            self.lengths + other.lengths,
            self.truncated + other.truncated,
            self.tasks + other.tasks,
            infos=self.infos + other.infos,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation as a dict, as in evaluation.jsonl."""
        row: dict[str, Any] = {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "truncated": self.truncated,
        }
        if self.infos:
            row["info"] = self.info
        if self.tasks:
            row["tasks"] = list(self.tasks)
        if self.held_out is not None:
            row["held_out"] = self.held_out.as_dict()
        return row


def half_width(standard_error: float, count: int) -> float:
    """Return half the width of a mean's 95 % interval, of so many values; infinite for one."""
    if count < 2:
        return math.inf
    t = T_95[count - 2] if count - 2 < len(T_95) else 1.96 + 2.7 / (count - 1)
    return t * standard_error


class EvaluationEpisodes(NamedTuple):
    """Episodes that say how good a policy is."""

    make_envs: Callable[[int], VecEnv]
    """Builds that many environments with the evaluation protocol."""
    episodes: int
    """How many, at least 1."""
    tasks: tuple[int, ...] = ()
    """Number of each episode's task; empty without a family."""

    @property
    def num_envs(self) -> int:
        """Environments that it is played in."""
        return min(self.episodes, MAX_ENVS)

    @property
    def num_tasks(self) -> int:
        """Tasks played, each equally often; 1 where there is no family."""
        return len(set(self.tasks)) or 1

    def open(self) -> VecEnv:
        """Make the environments that it is played in."""
        return self.make_envs(self.num_envs)

    def of(self, episodes: int) -> EvaluationEpisodes:
        """Return the same trial with that many episodes or more, every task's share alike."""
        count = -(-episodes // self.num_tasks) * self.num_tasks
        tasks = self.tasks[: self.num_tasks] * (count // self.num_tasks)
        return self._replace(episodes=count, tasks=tasks)


class Interrupted(Exception):
    """Evaluation was asked to stop before its last episode ended."""


@torch.no_grad()
def play(
    policy: ActorCritic,
    envs: VecEnv,
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    first_episode: int = 0,
    num_threads: int = 1,
    stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[VecEnv, int], None] | None = None,
    steps: Steps | None = None,
) -> Evaluation:
    """Play exactly `episodes` full episodes in environments, which stay open; return what they earned.

    Which env plays which episodes is fixed beforehand (episode j is number first_episode + j // n of env j % n), so
    short episodes are not counted more often than long ones. Episodes that never end are cut by the
    env's own limit and counted.

    Args:
        policy: set up for inference.
        envs: with the evaluation protocol.
        episodes: at least 1.
        greedy: take the likeliest action instead of sampling.
        seed: of the stream that samples actions.
        first_episode: number of the first episode of each env.
        num_threads: in which a policy on a CPU is asked.
        stop: asked every step; True raises Interrupted.
        on_step: told the environments and how many episodes have ended, before the first and after
            every step.
        steps: of a policy on a GPU, the captured functions of evaluations before.
    """
    n = envs.num_envs
    device = policy.device
    generator = torch.Generator(device=device).manual_seed(seed)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    episode = np.arange(n)  # which episode each env plays; >= episodes once it has played its share
    infos: list[dict[str, float]] = [{}] * episodes
    truncated, left = 0, episodes
    obs: Any = envs.start(np.full(n, first_episode, dtype=np.int64))
    ended, was_reset = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
    last_reward = torch.zeros(n)
    player: _OnGpu | _OnCpu
    if devices.is_gpu(device):
        player = _OnGpu(policy, n, generator, greedy=greedy, steps=steps)
    else:
        player = _OnCpu(policy, n, generator, greedy=greedy, num_threads=num_threads)
    with closing(player):
        if on_step:
            on_step(envs, 0)
        while left:
            if stop():
                raise Interrupted
            action = player.act(obs, last_reward, torch.from_numpy(was_reset))
            envs.send(policy.env_action(action).numpy())
            result = envs.recv()
            was_reset, ended = ended, result.ended.copy()
            obs, last_reward = result.obs, torch.from_numpy(result.reward).float()
            playing = (episode < episodes) & ~was_reset
            np.add.at(returns, episode[playing], result.reward[playing])
            np.add.at(lengths, episode[playing], 1)
            if ended.any():
                finished = ended & playing
                truncated += int((result.truncated & finished).sum())
                left -= int(finished.sum())
                for i in np.flatnonzero(finished).tolist():
                    infos[episode[i]] = envs.episode_info(i)
                episode = episode + n * ended
            if on_step:
                on_step(envs, episodes - left)
    told = tuple(infos) if any(infos) else ()
    return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), truncated, infos=told)


class Steps:
    """Acting steps of evaluations on a GPU, each captured once for all evaluations of a policy.

    Args:
        graphs: makes captured functions.
    """

    def __init__(self, graphs: Graphs):
        self._graphs = graphs
        self._held: dict[tuple[int, bool], ActingStep] = {}

    def of(
        self, policy: ActorCritic, num_envs: int, generator: torch.Generator, *, greedy: bool
    ) -> ActingStep:
        """Return the step of so many environments; always of the same policy, whose parameters may change."""
        if (num_envs, greedy) not in self._held:
            self._held[num_envs, greedy] = ActingStep(
                policy,
                num_envs,
                unroll_length=1,
                generator=generator,
                graphs=self._graphs,
                evaluates="greedily" if greedy else "sampling",
            )
        return self._held[num_envs, greedy]


class _OnCpu:
    """Acts for the environments of an evaluation on a CPU."""

    def __init__(
        self,
        policy: ActorCritic,
        num_envs: int,
        generator: torch.Generator,
        *,
        greedy: bool,
        num_threads: int,
    ):
        self._policy, self._generator, self._greedy = policy, generator, greedy
        self._infer = Inference(policy, num_threads)
        self._carried = nothing_carried(policy, num_envs)

    def act(self, obs: Obs[NDArray[Any]], reward: Tensor, starts: Tensor) -> Tensor:
        """Return actions [n, *action_shape] for observations, the last rewards [n], and where episodes begin [n]."""
        _, self._carried = take_step(
            self._policy,
            self._infer,
            map_obs(torch.from_numpy, obs),
            starts,
            reward,
            self._carried,
            greedy=self._greedy,
            generator=self._generator,
        )
        return self._carried.action[0]

    def close(self) -> None:
        """End the threads."""
        self._infer.close()


class _OnGpu:
    """Acts for the environments of an evaluation on a GPU, by a function that is captured once for all evaluations."""

    def __init__(
        self,
        policy: ActorCritic,
        num_envs: int,
        generator: torch.Generator,
        *,
        greedy: bool,
        steps: Steps | None,
    ):
        steps = steps or Steps(Graphs(policy.device))
        self._step = steps.of(policy, num_envs, generator, greedy=greedy)
        self._step.start(generator)

    def act(self, obs: Obs[NDArray[Any]], reward: Tensor, starts: Tensor) -> Tensor:
        """Return actions as `_OnCpu.act` does."""
        self._step.begin(self._step.action)
        self._step.take(obs)
        return self._step(reward, starts)

    def close(self) -> None:
        """Keep the function for the next evaluation."""


def play_trials(
    policy: ActorCritic,
    trials: Sequence[EvaluationEpisodes],
    envs: Sequence[VecEnv],
    *,
    greedy: bool,
    seed: int,
    first_episodes: Sequence[int] = (0, 0),
    num_threads: int = 1,
    stop: Callable[[], bool],
    on_step: Callable[[VecEnv, int], None] | None = None,
    steps: Steps | None = None,
) -> Evaluation:
    """Play every trial in its environments; return the first one's result, which holds the second's."""
    result, *others = [
        replace(
            play(
                policy,
                own,
                episodes=trial.episodes,
                greedy=greedy,
                seed=seed,
                first_episode=first_episode,
                num_threads=num_threads,
                stop=stop,
                on_step=on_step,
                steps=steps,
            ),
            tasks=trial.tasks,
        )
        for trial, own, first_episode in zip(trials, envs, first_episodes, strict=False)
    ]
    return replace(result, held_out=others[0]) if others else result
