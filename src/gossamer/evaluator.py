"""Evaluation: full episodes with seeds of their own, and the role that does it during training."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.links import StopSignal
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.types import VecEnv

MAX_ENVS = 16
"""Episodes played at once."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Returns of whole episodes, in the order of their numbers."""

    returns: tuple[float, ...]
    """Sums of unclipped rewards."""
    lengths: tuple[int, ...]
    """Env steps."""
    truncated: int
    """Episodes that a time limit cut."""
    tasks: tuple[int, ...] = ()
    """Of a family: the number of each episode's task."""
    held_out: Evaluation | None = None
    """Of a family: the same policy on tasks that training does not see."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; 0 for a single episode.

        Of several tasks it is that of the tasks' means: episodes of one task resemble each other.
        """
        scores = np.array(self.returns)
        if len(played := np.unique(self.tasks)) > 1:
            scores = np.array([scores[np.equal(self.tasks, task)].mean() for task in played])
        n = len(scores)
        return float(np.std(scores, ddof=1) / np.sqrt(n)) if n > 1 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is written into files."""
        row: dict[str, Any] = {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "truncated": self.truncated,
        }
        if self.tasks:
            row["tasks"] = list(self.tasks)
        if self.held_out is not None:
            row["held_out"] = self.held_out.as_dict()
        return row


class Trial(NamedTuple):
    """Episodes that say how good a policy is."""

    make_envs: Callable[[int], VecEnv]
    """Builds that many environments with the evaluation protocol."""
    episodes: int
    """How many, at least 1."""
    tasks: tuple[int, ...] = ()
    """Of a family: the number of each episode's task."""

    def open(self) -> VecEnv:
        """Make the environments that it is played in."""
        return self.make_envs(min(self.episodes, MAX_ENVS))


class Interrupted(Exception):
    """Evaluation was asked to stop before its last episode ended."""


@torch.no_grad()
def evaluate(
    policy: ActorCritic,
    make_envs: Callable[[int], VecEnv],
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[VecEnv, int], None] | None = None,
) -> Evaluation:
    """Play exactly `episodes` full episodes and return what they earned.

    Which env plays which episodes is fixed beforehand (episode j is number j // n of env j % n), so
    short episodes are not counted more often than long ones. Episodes that never end are cut by the
    env's own limit and counted.

    Args:
        policy: set up for inference.
        make_envs: builds that many environments with the evaluation protocol.
        episodes: at least 1.
        greedy: take the likeliest action instead of sampling.
        seed: of the stream that samples actions.
        stop: asked every step; True raises Interrupted.
        on_step: told the environments and how many episodes have ended, before the first and after
            every step.
    """
    envs = Trial(make_envs, episodes).open()
    try:
        return play(
            policy, envs, episodes=episodes, greedy=greedy, seed=seed, stop=stop, on_step=on_step
        )
    finally:
        envs.close()


@torch.no_grad()
def play(
    policy: ActorCritic,
    envs: VecEnv,
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[VecEnv, int], None] | None = None,
) -> Evaluation:
    """Do what `evaluate` says with environments that are there already and stay open."""
    n = envs.num_envs
    device = policy.obs_scale.device
    generator = torch.Generator(device=device).manual_seed(seed)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    episode = np.arange(n)  # which episode each env plays; >= episodes once it has played its share
    truncated, left = 0, episodes
    obs: Any = envs.start(np.zeros(n, dtype=np.int64))
    core_state = policy.initial_state(n)
    starts = torch.ones(1, n, dtype=torch.bool, device=device)
    action_shape = (1, n, *policy.spec.action.shape)
    kind = torch.float32 if policy.spec.action.kind == "gaussian" else torch.int64
    last_action = torch.zeros(action_shape, dtype=kind, device=device)
    last_reward = torch.zeros(1, n, device=device)
    ended = np.zeros(n, dtype=bool)
    if on_step:
        on_step(envs, 0)
    while left:
        if stop():
            raise Interrupted
        out = policy(
            torch.from_numpy(obs)[None].to(device), starts, core_state, last_action, last_reward
        )
        core_state = out.core_state
        distribution = policy.distribution(out.action_params)
        last_action = distribution.mode() if greedy else distribution.sample(generator)
        envs.send(policy.env_action(last_action[0].cpu()).numpy())
        result = envs.recv()
        was_reset, ended, obs = ended, result.ended.copy(), result.obs
        playing = (episode < episodes) & ~was_reset
        np.add.at(returns, episode[playing], result.reward[playing])
        np.add.at(lengths, episode[playing], 1)
        starts = torch.from_numpy(was_reset)[None].to(device)
        last_reward = torch.from_numpy(result.reward)[None].to(device)
        if ended.any():
            finished = ended & playing
            truncated += int((result.truncated & finished).sum())
            left -= int(finished.sum())
            episode = episode + n * ended
        if on_step:
            on_step(envs, episodes - left)
    return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), truncated)


def play_trials(
    policy: ActorCritic,
    trials: Sequence[Trial],
    envs: Sequence[VecEnv],
    *,
    greedy: bool,
    seed: int,
    stop: Callable[[], bool],
    on_step: Callable[[VecEnv, int], None] | None = None,
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
                stop=stop,
                on_step=on_step,
            ),
            tasks=trial.tasks,
        )
        for trial, own in zip(trials, envs, strict=True)
    ]
    return replace(result, held_out=others[0]) if others else result


class Evaluator:
    """The role that evaluates the newest parameters now and then, beside training.

    Args:
        policy: a copy of its own, set up for inference.
        trials: what is played; the second, if there is one, on held-out tasks.
        like: tensors like those on the board; the policy's own may be rounded.
        read: copies the parameters to evaluate next into tensors and returns their version.
        stop: ends the role.
        greedy: take the likeliest action instead of sampling.
        every_seconds: at most one evaluation in this time.
        max_time_fraction: at most this share of processor time, so long episodes are evaluated less often.
        on_evaluation: told the result, the version and its tensors; runs in this role's thread.
    """

    def __init__(
        self,
        policy: ActorCritic,
        like: list[Tensor],
        trials: Sequence[Trial],
        read: Callable[[list[Tensor]], int],
        stop: StopSignal,
        *,
        greedy: bool,
        every_seconds: float,
        max_time_fraction: float,
        on_evaluation: Callable[[Evaluation, int, list[Tensor]], None],
    ):
        self.policy = policy
        self._params = [torch.empty_like(x, requires_grad=False) for x in like]
        self.seconds = 0.0
        self.pause = every_seconds  # from the end of the last evaluation to the next
        self._trials, self._read, self._stop = trials, read, stop
        self._greedy = greedy
        self._every_seconds, self._max_time_fraction = every_seconds, max_time_fraction
        self._on_evaluation = on_evaluation
        self._envs: list[VecEnv] = []  # kept open: making a simulator can cost a second

    def run(self) -> None:
        """Evaluate until stopped."""
        while not self._stop.wait(self.pause):
            try:
                self.evaluate_newest()
            except Interrupted:
                return

    def evaluate_newest(self, stop: Callable[[], bool] | None = None) -> None:
        """Evaluate the newest parameters once; raise Interrupted when `stop` says so."""
        began, began_cpu = time.monotonic(), time.thread_time()
        self._evaluate(stop or (lambda: self._stop.stopped))
        took = time.monotonic() - began
        self.seconds += took
        # What it costs the run is processor time, not how long a thread of low priority had to wait
        # for it. Simulators' threads double it, two cores or more make up for that.
        cost = time.thread_time() - began_cpu
        self.pause = max(self._every_seconds, cost / self._max_time_fraction) - took

    def _evaluate(self, stop: Callable[[], bool]) -> None:
        version = self._read(self._params)
        with torch.no_grad():
            for target, x in zip(self.policy.shared_tensors(), self._params, strict=True):
                target.copy_(x)
        self.policy.refresh()
        if not self._envs:
            self._envs = [trial.open() for trial in self._trials]
        result = play_trials(
            self.policy, self._trials, self._envs, greedy=self._greedy, seed=version, stop=stop
        )
        self._on_evaluation(result, version, self._params)

    def close(self) -> None:
        """Free the environments."""
        for envs in self._envs:
            envs.close()
