"""The policy as it was a moment ago, which candidates for a batch are run through beside the learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from gossamer.spec import obs_at
from gossamer.system.devices import Mark

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.spec import Obs
    from gossamer.types import PolicyOutput, Trajectory

CPU_ROWS = 264
"""Rows that a CPU runs at a time, in whole columns: blocks of memory of much more are not kept when freed,
and getting their pages anew takes as long as running the policy."""


class Policy(Protocol):
    """A policy that candidates are run through."""

    def __call__(
        self,
        obs: Obs[Tensor],
        starts: Tensor,
        core_state: Tensor,
        last_action: Tensor | None = None,
        last_reward: Tensor | None = None,
    ) -> PolicyOutput:
        """Run rows [R, B] of observations."""
        ...

    def shared_tensors(self) -> list[Tensor]:
        """Every parameter, then the moments."""
        ...

    def refresh(self) -> None:
        """Recompute what is derived from the moments."""
        ...


class RecentPolicy:
    """The policy as it was when a batch was asked for, to run over candidates beside the learner.

    Args:
        policy: a copy of its own, set up for inference.
        source: what `policy.shared_tensors()` are copies of.
        num_snapshots: the last versions that may be wanted.
    """

    def __init__(self, policy: Policy, source: list[Tensor], num_snapshots: int):
        self._policy, self._source = policy, source
        self._snapshots = [[torch.empty_like(x) for x in source] for _ in range(num_snapshots)]
        self._taken = [Mark(source[0].device) for _ in self._snapshots]
        self.taken = 0
        """Policies kept so far."""
        self._used = -1

    @torch.no_grad()
    def take(self) -> int:
        """Keep the learner's present version; return its number, for `features`."""
        place = self.taken % len(self._snapshots)
        torch._foreach_copy_(self._snapshots[place], self._source)
        self._taken[place].set()
        self.taken += 1
        return self.taken - 1

    @torch.no_grad()
    def features(self, number: int, trajectory: Trajectory) -> Tensor:
        """Return the last hidden layer [T, B, F] of a trajectory's rows but the last, on the CPU.

        Args:
            number: of a version that was kept.
            trajectory: of T + 1 rows.
        """
        if number != self._used:
            assert self.taken - len(self._snapshots) <= number < self.taken, "it was not kept"
            self._used = number
            snapshot = self._snapshots[number % len(self._snapshots)]
            self._taken[number % len(self._snapshots)].follow()
            torch._foreach_copy_(self._policy.shared_tensors(), snapshot)
            self._policy.refresh()
        device = self._source[0].device
        trajectory = trajectory.to(device)
        total = columns = trajectory.num_columns
        if device.type == "cpu":
            columns = max(CPU_ROWS // trajectory.unroll_length, 1)
        starts = range(0, total, columns)
        found = [self._run(trajectory.columns(i, min(i + columns, total))) for i in starts]
        return torch.cat(found, dim=1).cpu()

    def _run(self, trajectory: Trajectory) -> Tensor:
        last_action = torch.cat([trajectory.last_action[None], trajectory.action[:-1]])
        last_reward = torch.cat([trajectory.last_reward[None], trajectory.reward[:-1]])
        return self._policy(
            obs_at(trajectory.obs, slice(-1)),
            trajectory.starts[:-1],
            trajectory.core_state,
            last_action,
            last_reward,
        ).features
