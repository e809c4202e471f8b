"""The actor: steps environments with a policy and writes trajectories into slots.

Shapes: T unroll length, B columns, n columns of one group, S numbers of recurrent state a column.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.types import StepResult, Trajectory, VecEnv


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished training episode, as it is recorded."""

    env: int
    """Index of the environment among the run's."""
    number: int
    """How many episodes that environment finished before."""
    episode_return: float
    """Sum of unclipped rewards."""
    length: int
    """Env steps."""
    env_steps: int
    """Env steps all actors of this learner had taken, this trajectory's row included."""
    truncated: bool
    task: int = 0
    """Number of the task, of a family."""
    info: dict[str, float] = field(default_factory=dict, hash=False)
    """What the environment tells of the episode: its task's parameters, and whether it succeeded."""


def write_obs(row: Tensor, obs: NDArray[Any]) -> None:
    """Copy observations [n, *obs_shape] into a slot's row, which holds pixels channels last.

    Four channels of bytes, the usual stack, are joined to one 32-bit word a pixel: half the time of
    moving them byte by byte.
    """
    if row.ndim != 4 or row.shape[1] != 4 or row.stride(1) != 1 or sys.byteorder != "little":
        row.copy_(torch.from_numpy(obs))
        return
    words = row.movedim(1, -1).numpy().view(np.uint32)[..., 0]  # [n, H, W]
    shifted = np.empty_like(words)
    joined = obs[:, 0].astype(np.uint32)
    for channel in (1, 2, 3):
        shift = np.uint32(8 * channel)
        np.left_shift(obs[:, channel], shift, out=shifted, dtype=np.uint32)
        np.bitwise_or(joined, shifted, out=words if channel == 3 else joined)


class _Group:
    """Environments stepped together, their place among the columns, and what they carry along."""

    def __init__(self, envs: VecEnv, first: int, policy: ActorCritic, obs: NDArray[Any]):
        n = envs.num_envs
        self.envs = envs
        self.columns = slice(first, first + n)
        self.first = first
        self.episodes = np.zeros(n, dtype=np.int64)
        self.ended = np.zeros(n, dtype=bool)
        self.starts = torch.ones(n, dtype=torch.bool)
        self.episode_return = np.zeros(n)
        self.length = np.zeros(n, dtype=np.int64)
        self.core_state = policy.initial_state(n)
        action = policy.spec.action
        dtype = torch.float32 if action.kind == "gaussian" else torch.int64
        self.last_action = torch.zeros((n, *action.shape), dtype=dtype)
        self.last_reward = torch.zeros(n)
        # What was sent, step by step, back to the oldest episode's start: with each episode's seed it
        # is all that a resumed run needs to bring the environments back.
        self.sent: deque[NDArray[Any]] = deque()
        self.first_sent = np.zeros(n, dtype=np.int64)  # per env: step of its episode's first action
        self.oldest = 0  # step that sent[0] belongs to
        self.obs = torch.from_numpy(obs)

    def log(self, action: NDArray[Any]) -> None:
        self.sent.append(action)
        while self.oldest < self.first_sent.min():
            self.sent.popleft()
            self.oldest += 1

    def logs(self) -> list[NDArray[Any]]:
        """Actions of every env since its episode's start."""
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


class Actor:
    """Steps groups of environments in turn: while one steps, the policy acts for the next.

    Args:
        groups: environments, their columns side by side in this order.
        policy: a copy of its own, set up for inference; the launcher loads parameters into it.
        unroll_length: T.
        seed: of the stream that samples actions.
        on_episode: told every finished episode.
        first_obs: first observations of groups that have begun their episode 0; None begins it.
    """

    def __init__(
        self,
        groups: Sequence[VecEnv],
        policy: ActorCritic,
        *,
        unroll_length: int,
        seed: int,
        on_episode: Callable[[Episode], None],
        first_obs: Sequence[NDArray[Any]] | None = None,
    ):
        self.policy = policy
        self.env_steps = 0
        self.seconds = {"env": 0.0, "inference": 0.0}
        self._unroll_length = unroll_length
        self._generator = torch.Generator(device=policy.obs_scale.device)
        self._generator.manual_seed(seed)
        self._on_episode = on_episode
        self._device = policy.obs_scale.device
        self._groups: list[_Group] = []
        for envs in groups:
            first = self._groups[-1].columns.stop if self._groups else 0
            obs = first_obs[len(self._groups)] if first_obs is not None else None
            if obs is None:
                obs = envs.start(np.zeros(envs.num_envs, dtype=np.int64))
            self._groups.append(_Group(envs, first, policy, obs))

    @property
    def num_columns(self) -> int:
        """B: environments of all groups."""
        return self._groups[-1].columns.stop

    @torch.no_grad()
    def collect(self, slot: Trajectory, version: int) -> None:
        """Fill a slot with the next T steps of every environment; nothing is left in flight."""
        for group in self._groups:
            columns = group.columns
            slot.obs[0, columns].copy_(group.obs)
            slot.starts[0, columns] = group.starts
            slot.core_state[:, columns].copy_(group.core_state)
            slot.last_action[columns] = group.last_action
            slot.last_reward[columns] = group.last_reward
            slot.task[columns] = torch.from_numpy(group.envs.tasks())
        slot.version.fill_(version)
        for t in range(self._unroll_length):
            for group in self._groups:
                if t > 0:
                    self._receive(group, slot, t - 1)
                self._act(group, slot, t)
        for group in self._groups:
            self._receive(group, slot, self._unroll_length - 1)
            group.obs = slot.obs[self._unroll_length, group.columns]
            group.starts = slot.starts[self._unroll_length, group.columns]
            group.last_action = slot.action[-1, group.columns]
            group.last_reward = slot.reward[-1, group.columns]
        self._keep_last_row()
        self.env_steps += self._unroll_length * self.num_columns

    def _keep_last_row(self) -> None:
        # The slot goes to the learner and comes back overwritten; the next trajectory begins with
        # copies of its last row.
        for group in self._groups:
            for name in ("obs", "starts", "last_action", "last_reward"):
                setattr(group, name, getattr(group, name).clone())

    def _act(self, group: _Group, slot: Trajectory, t: int) -> None:
        began = time.perf_counter()
        columns = group.columns
        row = slice(t, t + 1)
        last_action = slot.action[t - 1 : t, columns] if t else slot.last_action[None, columns]
        last_reward = slot.reward[t - 1 : t, columns] if t else slot.last_reward[None, columns]
        out = self.policy(
            slot.obs[row, columns].to(self._device, non_blocking=True),
            slot.starts[row, columns].to(self._device, non_blocking=True),
            group.core_state,
            last_action.to(self._device, non_blocking=True),
            last_reward.to(self._device, non_blocking=True),
        )
        params = out.action_params[0]
        sampled = self.policy.distribution(params).sample(self._generator)
        group.core_state = out.core_state
        slot.behavior[t, columns] = params
        slot.value[t, columns] = out.value[0]
        slot.action[t, columns] = sampled
        action = self.policy.env_action(slot.action[t, columns]).numpy().copy()
        group.log(action)
        self.seconds["inference"] += time.perf_counter() - began
        group.envs.send(action)

    def _receive(self, group: _Group, slot: Trajectory, t: int) -> None:
        began = time.perf_counter()
        result = group.envs.recv()
        columns = group.columns
        write_obs(slot.obs[t + 1, columns], result.obs)
        slot.reward[t, columns] = torch.from_numpy(result.reward)
        slot.terminated[t, columns] = torch.from_numpy(result.terminated)
        slot.truncated[t, columns] = torch.from_numpy(result.truncated)
        was_reset = torch.from_numpy(group.ended)
        slot.valid[t, columns] = ~was_reset
        slot.starts[t + 1, columns] = was_reset
        if group.ended.any():
            group.first_sent[group.ended] = group.oldest + len(group.sent)
            group.episodes += group.ended
        group.episode_return += result.reward
        group.length += ~group.ended
        group.ended = result.ended.copy()
        if group.ended.any():
            self._finish_episodes(group, result, t)
        self.seconds["env"] += time.perf_counter() - began

    def _finish_episodes(self, group: _Group, result: StepResult, t: int) -> None:
        task = group.envs.tasks()
        for i in np.flatnonzero(group.ended).tolist():
            self._on_episode(
                Episode(
                    env=group.first + i,
                    number=int(group.episodes[i]),
                    episode_return=float(group.episode_return[i]),
                    length=int(group.length[i]),
                    env_steps=self.env_steps + (t + 1) * self.num_columns,
                    truncated=bool(result.truncated[i]),
                    task=int(task[i]),
                    info=group.envs.episode_info(i),
                )
            )
        group.episode_return[group.ended] = 0.0
        group.length[group.ended] = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, between two trajectories."""
        state: dict[str, Any] = {
            "env_steps": self.env_steps,
            "generator": self._generator.get_state(),
        }
        for k, group in enumerate(self._groups):
            logs = group.logs()
            state |= {
                f"{k}.episodes": torch.from_numpy(group.episodes.copy()),
                f"{k}.ended": torch.from_numpy(group.ended.copy()),
                f"{k}.starts": group.starts.clone(),
                f"{k}.episode_return": torch.from_numpy(group.episode_return.copy()),
                f"{k}.length": torch.from_numpy(group.length.copy()),
                f"{k}.core_state": group.core_state.cpu().clone(),
                f"{k}.last_action": group.last_action.clone(),
                f"{k}.last_reward": group.last_reward.clone(),
                f"{k}.obs": group.obs.contiguous().clone(),
                f"{k}.log_lengths": torch.tensor([len(log) for log in logs]),
                f"{k}.logs": torch.from_numpy(np.concatenate(logs)),
            }
        return state

    def load_state_dict(self, state: dict[str, Any], *, exact: bool) -> None:
        """Continue from `state_dict`; environments that cannot come back start new episodes."""
        self.env_steps = state["env_steps"]
        if exact:
            self._generator.set_state(state["generator"])
        for k, group in enumerate(self._groups):
            group.episodes = state[f"{k}.episodes"].numpy().copy()
            if not exact:
                group.episodes += 1
                group.obs = torch.from_numpy(group.envs.start(group.episodes))
                continue
            lengths = state[f"{k}.log_lengths"].tolist()
            logs = [x.numpy() for x in state[f"{k}.logs"].split(lengths)]
            obs = torch.from_numpy(group.envs.restore(group.episodes, logs))
            if not torch.equal(obs, state[f"{k}.obs"]):
                raise RuntimeError(
                    "environments did not come back to where they were: is another version of the "
                    "environment installed than when the checkpoint was written?"
                )
            group.obs = obs.clone()
            group.ended = state[f"{k}.ended"].numpy().copy()
            group.starts = state[f"{k}.starts"].clone()
            group.episode_return = state[f"{k}.episode_return"].numpy().copy()
            group.length = state[f"{k}.length"].numpy().copy()
            group.core_state = state[f"{k}.core_state"].to(self._device)
            group.last_action = state[f"{k}.last_action"].clone()
            group.last_reward = state[f"{k}.last_reward"].clone()
            group.relog(logs)

    def close(self) -> None:
        """Free the environments."""
        for group in self._groups:
            group.envs.close()
