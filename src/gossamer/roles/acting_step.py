"""A step of a group of environments on a GPU: observations go in, actions come out, and the rest stays there.

The host writes observations to memory that the GPU reaches, replays the step, waits once, and finds the actions. Rows of
the trajectory are kept on the device, and are copied to a slot once a trajectory. The host says which row each environment
is at. All of them are computed, but where an environment is at none, what is computed goes to a row that nobody reads.

Shapes: T unroll length, n environments of the group, P action-distribution parameters, S numbers of recurrent state.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gossamer.spec import copy_obs, leaf_field, leaves_of, map_obs, obs_at
from gossamer.system import devices

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.spec import Leaf, Obs
    from gossamer.system.graphs import Graphs
    from gossamer.types import Trajectory


class ActingStep:
    """Acts for one group, as a captured function.

    Args:
        policy: set up for inference.
        num_envs: n.
        unroll_length: T.
        generator: of the group's stream, on the policy's device.
        graphs: makes the captured function.
        evaluates: actions are the likeliest ones ("greedily"), or are drawn anew every step ("sampling"); empty: it
            trains, and noise may go on from step to step.
        memory: [n, *shape] of each leaf, where simulators write observations and the GPU reaches them; None: what they
            return is copied to such a place.
    """

    def __init__(
        self,
        policy: ActorCritic,
        num_envs: int,
        *,
        unroll_length: int,
        generator: torch.Generator,
        graphs: Graphs,
        evaluates: Literal["", "greedily", "sampling"] = "",
        memory: Obs[Tensor] | None = None,
    ):
        spec, device = policy.spec, policy.device
        self._policy, self._generator, self._evaluates = policy, generator, evaluates
        # What a step needs beside observations.
        self._looks_back = policy.looks_back
        self._needs_starts = bool(policy.core_units) or policy.looks_back
        self._device = device
        self._unroll_length = unroll_length
        lead = (unroll_length + 1, num_envs)  # the last row is nobody's
        action_dtype: torch.dtype = getattr(torch, spec.action.dtype)
        action_size = (num_envs, *spec.action.shape)
        # In the host's memory: observations as simulators return them, then rewards and starts.
        self._copies = memory is None
        if memory is None:
            memory = spec.obs_of({x.name: _row_of(x, num_envs) for x in spec.leaves})
        self.obs = memory
        self._last_reward = devices.pinned(torch.zeros((1, num_envs), dtype=torch.float32))
        self._starts = devices.pinned(torch.zeros((1, num_envs), dtype=torch.bool))
        self.action = devices.pinned(torch.zeros(action_size, dtype=action_dtype))
        self._arrived = map_obs(partial(torch.zeros_like, device=device), self.obs)
        self._arrived_reward = torch.zeros_like(self._last_reward, device=device)
        self._arrived_starts = torch.zeros_like(self._starts, device=device)
        self._rows = map_obs(partial(_rows_of, unroll_length + 1), self._arrived)
        self._row = map_obs(torch.zeros_like, obs_at(self._rows, slice(1)))  # [1, n, *shape]
        numbers: dict[str, Any] = {"dtype": torch.float32, "device": device}
        self._params = torch.zeros((*lead, spec.action.num_params), **numbers)
        self._value = torch.zeros(lead, **numbers)
        self._actions = torch.zeros(
            (unroll_length + 1, *action_size), dtype=action_dtype, device=device
        )
        # Places of rows, counted through all rows and environments: [n] of the present step.
        self._columns = torch.arange(num_envs)
        self._place = devices.pinned(self._columns.clone())
        self._arrived_place = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._row_number = 0
        self._noise = torch.zeros((*lead, spec.action.noise_size), **numbers)
        self.carried = None if evaluates else policy.initial_noise(num_envs, generator)
        """[n, G] noise that goes on from step to step; None where the policy has none."""
        self.core_state = policy.initial_state(num_envs)
        """[S, n] recurrent state after the last step."""
        self._first_state = torch.zeros_like(self.core_state)
        self._last_action = torch.zeros(action_size, dtype=action_dtype, device=device)
        self._step = graphs.graph("acting", self._act, self._static, self._pinned)

    def start(self, generator: torch.Generator) -> None:
        """Begin episodes everywhere, with the noise of another stream."""
        self._generator = generator
        self.core_state.zero_()
        self.action.zero_()

    def take(self, obs: Obs[NDArray[Any]]) -> None:
        """Keep observations [n, *shape] of each leaf for the next step, where the GPU reaches them."""
        if self._copies:
            copy_obs(self.obs, map_obs(torch.from_numpy, obs))

    @torch.no_grad()
    def begin(self, last_action: Tensor) -> None:
        """Begin a trajectory; last_action [n, *action_shape] is that before its row 0."""
        self._row_number = 0
        if self._evaluates != "greedily":
            self._draw()
        self._first_state.copy_(self.core_state)
        if self._looks_back:
            self._last_action.copy_(devices.send(last_action, self._device))

    def _draw(self) -> None:
        """Draw the noise of a trajectory; elsewhere than on a GPU, whose streams are others, as a CPU does: step by step."""
        noise = self._noise[: self._unroll_length]
        if self._device.type == "cuda":
            noise.copy_(self._policy.noise(noise.shape[:2], self._generator))
        else:
            for row in noise:
                row.copy_(self._policy.noise(row.shape[:1], self._generator))

    def __call__(
        self, last_reward: Tensor, starts: Tensor, rows: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Act for the observations taken; wait, and return actions [n, *action_shape], good until the next call.

        Args:
            last_reward: [n] of the step before.
            starts: [n] bool, an episode begins at these observations.
            rows: [n] row of the trajectory that each observation belongs to; T: none, and the action means nothing. None:
                all are at the next row.
        """
        if rows is None:
            torch.add(self._columns, len(self._columns) * self._row_number, out=self._place)
            self._row_number += 1
        else:
            torch.add(
                self._columns, torch.from_numpy(rows), alpha=len(self._columns), out=self._place
            )
        if self._looks_back:
            self._last_reward[0].copy_(last_reward)
        if self._needs_starts:
            self._starts[0].copy_(starts)
        self._step()
        devices.wait(self._device)
        return self.action

    @torch.no_grad()
    def finish(self, slot: Trajectory, columns: slice) -> None:
        """Copy the trajectory's rows to the group's columns of a slot, without waiting.

        The observations taken last are those after the last action.
        """
        copy_obs(self._arrived, self.obs)
        copy_obs(obs_at(self._rows, -1), self._arrived)
        acted = slice(self._unroll_length)
        kept = {
            **{leaf_field("obs", name): x for name, x in leaves_of(self._rows).items()},
            "behavior": self._params[acted],
            "value": self._value[acted],
            "action": self._actions[acted],
            "core_state": self._first_state,
        }
        for name, x in kept.items():
            slot.tensor(name)[:, columns].copy_(x, non_blocking=True)

    @torch.no_grad()
    def _act(self) -> None:
        """What is captured: one step, whatever its observations are."""
        copy_obs(self._arrived, self.obs)
        copy_obs(obs_at(self._row, 0), self._arrived)
        if self._looks_back:
            self._arrived_reward.copy_(self._last_reward, non_blocking=True)
        if self._needs_starts:
            self._arrived_starts.copy_(self._starts, non_blocking=True)
        place = self._arrived_place
        place.copy_(self._place, non_blocking=True)
        out = self._policy(
            self._row,
            self._arrived_starts,
            self.core_state,
            self._last_action[None],
            self._arrived_reward,
        )
        if self._evaluates == "greedily":
            chosen = self._policy.distribution(out.action_params[0]).mode()
        else:
            noise = self._noise.flatten(0, 1).index_select(0, place)
            chosen = self._policy.choose(out.action_params[0], noise, self.carried)
        row = leaves_of(self._row)
        for name, rows in leaves_of(self._rows).items():
            rows.flatten(0, 1).index_copy_(0, place, row[name][0])
        self._params.flatten(0, 1).index_copy_(0, place, out.action_params[0])
        self._value.flatten().index_copy_(0, place, out.value[0])
        self._actions.flatten(0, 1).index_copy_(0, place, chosen)
        if self._policy.core_units or self._looks_back:
            due = place < self._unroll_length * len(place)
            if self._policy.core_units:
                torch.where(due, out.core_state, self.core_state, out=self.core_state)
            if self._looks_back:
                due = due.reshape(-1, *([1] * (chosen.ndim - 1)))
                torch.where(due, chosen, self._last_action, out=self._last_action)
        self.action.copy_(chosen, non_blocking=True)

    def _static(self) -> list[Tensor]:
        held = [x for value in vars(self).values() for x in leaves_of(value).values()]
        own = [x for x in held if isinstance(x, Tensor)]
        return [*self._policy.parameters(), *self._policy.buffers(), *own]

    def _pinned(self) -> list[Tensor]:
        told = [self._last_reward, self._starts, self._place]
        return [*leaves_of(self.obs).values(), *told, self.action]


def _row_of(leaf: Leaf, num_envs: int) -> Tensor:
    """Return room for observations as simulators return them."""
    return devices.pinned(torch.zeros((num_envs, *leaf.shape), dtype=getattr(torch, leaf.dtype)))


def _rows_of(rows: int, x: Tensor) -> Tensor:
    """Return room for rows of what is like x; images lie channels last, as trajectories keep them."""
    made = torch.zeros((rows, *x.shape), dtype=x.dtype, device=x.device)
    return made.movedim(2, -1).contiguous().movedim(-1, 2) if x.ndim == 4 else made
