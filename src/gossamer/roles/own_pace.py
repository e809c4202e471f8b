"""Collecting a trajectory beside a GPU from worker processes, each of which goes on as soon as it can.

Where all environments of a group are stepped together, every step takes as long as the slowest worker's, whose games begin
anew or whose core was taken away for a moment. Here the policy acts for those that have arrived, and the others are awaited
at the end of the trajectory only. What is collected is the same: noise belongs to a row and an environment, not to the
moment.

Shapes: T unroll length, n environments of a group, P workers.
"""

from __future__ import annotations

import math
import select
import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gossamer.links.stopping import Stopped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gossamer.links.stopping import StopSignal
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.roles.acting_group import Episode, Group
    from gossamer.roles.acting_step import ActingStep
    from gossamer.types import SharedEnvs, Trajectory

READY = 0.5
"""Share of a group's workers that are acted for at once, at least: a step costs the actor much the same for few as for many."""


class OwnPace:
    """Fills rows of trajectories from groups of environments whose workers go at their own pace.

    Args:
        policy: that acts.
        written: where the host writes rows.
        stop: ends collecting between two steps; None: nothing does.
        seconds: to which the time spent on environments ("env") and on actions ("inference") is added.
    """

    def __init__(
        self,
        policy: ActorCritic,
        written: Trajectory,
        *,
        stop: StopSignal | None,
        seconds: dict[str, float],
    ):
        self._policy, self._stop, self._seconds = policy, stop, seconds
        self._slot = written
        self._rows: dict[str, NDArray[Any]] = {
            name: getattr(written, name).numpy()
            for name in ("reward", "terminated", "truncated", "valid", "starts", "action")
        }

    @staticmethod
    def suits(groups: Sequence[Group]) -> bool:
        """Whether groups can be collected this way: in worker processes, and without noise that goes on from step to step."""
        return all(
            getattr(group.envs, "paced", False)
            and group.step is not None
            and group.step.carried is None
            for group in groups
        )

    def collect(self, groups: Sequence[Group]) -> list[tuple[int, Episode]]:
        """Fill rows 0 to T - 1 of all groups, whose first rows are begun; return episodes in order, each with its row.

        Raises:
            Stopped: no worker is at a step any more.
        """
        paces = [_Pace(group, self._slot) for group in groups]
        poll = select.poll()
        told: dict[int, list[_Pace]] = {}
        for pace in paces:
            for number in pace.envs.descriptors:
                poll.register(number, select.POLLIN)
                told.setdefault(number, []).append(pace)
        found: list[tuple[int, Episode]] = []
        while any(pace.left for pace in paces):
            if self._stop is not None and self._stop.stopped:
                for pace in paces:
                    if pace.envs.in_flight:
                        pace.envs.recv()
                raise Stopped
            for pace in paces:
                if pace.is_due:
                    self._take(pace, found)
                    self._act(pace)
            began = time.perf_counter()
            for number, _ in poll.poll():
                for pace in told[number]:
                    pace.arrive(pace.envs.arrived())
            self._seconds["env"] += time.perf_counter() - began
        for pace in paces:
            self._take(pace, found)
            pace.step.take(pace.envs.results.obs)
            self._log(pace.group)
        return sorted(found, key=lambda x: (x[0], x[1].env))

    def _act(self, pace: _Pace) -> None:
        """Act for the environments of the workers that wait for it."""
        began = time.perf_counter()
        group, rows, here = pace.group, pace.rows, pace.waiting_envs
        at = np.full(len(rows), len(self._rows["reward"]))
        at[here] = rows[here]
        pace.step.take(pace.envs.results.obs)
        action = pace.step(pace.last_reward, pace.starts, at)
        columns = group.first + here
        self._rows["action"][rows[here], columns] = action.numpy()[here]
        self._rows["valid"][rows[here], columns] = ~group.ended[here]
        sent = self._policy.env_action(action).numpy()
        self._seconds["inference"] += time.perf_counter() - began
        pace.envs.send_parts(pace.waiting, sent)
        pace.waiting = []

    def _take(self, pace: _Pace, found: list[tuple[int, Episode]]) -> None:
        """Take the steps of the workers that have arrived since the last call."""
        if not pace.arrived:
            return
        began = time.perf_counter()
        group, here = pace.group, pace.envs_of(pace.arrived)
        t, columns, result, begun = (
            pace.rows[here],
            group.first + here,
            pace.envs.results,
            group.ended,
        )
        reward, ended = result.reward[here], result.ended[here]
        for name in ("reward", "terminated", "truncated"):
            self._rows[name][t, columns] = getattr(result, name)[here]
        self._rows["starts"][t + 1, columns] = begun[here]
        pace.last_reward.numpy()[here] = reward
        pace.starts.numpy()[here] = begun[here]
        for i, row in zip(here[begun[here]].tolist(), t[begun[here]].tolist(), strict=True):
            group.begin_episode(i, pace.first_step + row + 1)
        group.episode_return[here] += reward
        group.length[here] += ~begun[here]
        begun[here] = ended
        for i, row in zip(here[ended].tolist(), t[ended].tolist(), strict=True):
            # Whoever goes at its own pace has one task.
            episode = group.end_episode(i, truncated=bool(result.truncated[i]), task=0)
            found.append((row, episode))
        pace.rows[here] += 1
        pace.arrived = []
        self._seconds["env"] += time.perf_counter() - began

    def _log(self, group: Group) -> None:
        action = self._policy.env_action(self._slot.action[:, group.columns])
        group.log(*action.numpy().copy())


class _Pace:
    """How far the workers of one group are in a trajectory.

    All of them wait to be acted for at row 0.
    """

    def __init__(self, group: Group, slot: Trajectory):
        self.group = group
        self.envs = cast("SharedEnvs", group.envs)
        self.step = cast("ActingStep", group.step)
        self._parts = [np.arange(part.start, part.stop) for part in self.envs.parts]
        self._length = len(slot.reward)
        self._steps = [0] * len(self._parts)
        self.rows = np.zeros(self.envs.num_envs, np.int64)
        """[n] row that each env's newest observation belongs to, steps of `arrived` not included."""
        self.arrived: list[int] = []
        """Workers whose last step has not been looked at yet."""
        self.waiting = list(range(len(self._parts)))
        """Workers that are to be acted for."""
        self.left = len(self._parts)
        """Workers that have not stepped through the whole trajectory."""
        self.last_reward = slot.last_reward[group.columns].clone()
        """[n] of the step before the newest observation."""
        self.starts = slot.starts[0, group.columns].clone()
        """[n] whether the newest observation begins an episode."""
        self.first_step = group.oldest + len(group.sent)
        """Number of the step of row 0 among all that were logged."""

    @property
    def is_due(self) -> bool:
        """Whether enough workers wait."""
        return bool(self.waiting) and len(self.waiting) >= math.ceil(READY * self.left)

    @property
    def waiting_envs(self) -> NDArray[np.int64]:
        """Environments of the workers that wait."""
        return self.envs_of(self.waiting)

    def envs_of(self, workers: Sequence[int]) -> NDArray[np.int64]:
        """Return the environments of some workers."""
        return np.concatenate([self._parts[i] for i in workers])

    def arrive(self, workers: Sequence[int]) -> None:
        """Note that workers have done a step of their environments."""
        self.arrived += workers
        for worker in workers:
            self._steps[worker] += 1
            if self._steps[worker] == self._length:
                self.left -= 1
            else:
                self.waiting.append(worker)
