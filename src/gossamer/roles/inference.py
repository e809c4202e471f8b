"""Inference: a policy's answer to one row of observations, its columns shared out among threads.

And steps of it, one after the other, for whoever plays with a policy and does not learn.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gossamer.machine import use_threads
from gossamer.spec import obs_at
from gossamer.types import PolicyOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.spec import Obs


class Carried(NamedTuple):
    """State that a policy carries from one step of B environments to the next."""

    core_state: Tensor
    """[S, B] recurrent state."""
    action: Tensor
    """[1, B, *action_shape] the last action that the policy's distribution gave (a sample, or the mode if greedy),
    before squashing, scaling, clipping or shifting for the environment."""


def nothing_carried(policy: ActorCritic, num_envs: int) -> Carried:
    """Return what is carried into a first step: zeros."""
    action, device = policy.spec.action, policy.device
    dtype = getattr(torch, action.dtype)
    zeros = torch.zeros((1, num_envs, *action.shape), dtype=dtype, device=device)
    return Carried(policy.initial_state(num_envs), zeros)


def take_step(
    policy: ActorCritic,
    ask: Callable[..., PolicyOutput],
    obs: Obs[Tensor],
    starts: Tensor,
    reward: Tensor,
    carried: Carried,
    *,
    greedy: bool,
    generator: torch.Generator | None = None,
) -> tuple[PolicyOutput, Carried]:
    """Ask a policy about one row of observations, and choose actions; they are the ones then carried.

    Args:
        policy: that chooses.
        ask: it, or what asks it.
        obs: [B, *shape] of each leaf.
        starts: [B] bool, where episodes begin: what is carried there is forgotten.
        reward: [B] of the step before.
        carried: from the step before.
        greedy: take the likeliest actions instead of sampling.
        generator: of samples; None: torch's own.
    """
    out = ask(
        obs_at(obs, None),
        starts[None],
        carried.core_state,
        carried.action,
        reward[None],
    )
    distribution = policy.distribution(out.action_params)
    action = distribution.mode() if greedy else distribution.sample(generator)
    return out, Carried(out.core_state, action)


class Inference:
    """Asks a policy without gradients, a part of the columns in each thread, the caller's among them.

    Torch's own threads meet after every operation, and spin until the last one is there. Where another
    program has taken a core from one of them, acting becomes five times as slow. Threads that meet once a
    row, and sleep until then, are slowed down by what they lack.

    The parts depend on sizes alone, so the answer is the same every time.

    Args:
        policy: set up for inference.
        num_threads: the largest number of parts.
    """

    def __init__(self, policy: ActorCritic, num_threads: int = 1):
        self._policy, self._num_threads = policy, num_threads
        self.thread_ids: list[int] = []
        """Native ids of the threads beside the caller's; they start when they are first needed."""
        self._pool = ThreadPoolExecutor(max(num_threads - 1, 1), "inference", self._begin)

    def __call__(
        self,
        obs: Obs[Tensor],
        starts: Tensor,
        core_state: Tensor,
        last_action: Tensor | None,
        last_reward: Tensor | None,
    ) -> PolicyOutput:
        """Return what the policy says to rows [R, B, ...]; see `ActorCritic.forward`."""
        columns = starts.shape[1]
        parts = min(self._num_threads, columns)
        if parts == 1:
            return self._ask(obs, starts, core_state, last_action, last_reward)
        bounds = [round(i * columns / parts) for i in range(parts + 1)]
        shares = [
            [
                obs_at(obs, (slice(None), slice(start, stop))),
                *(
                    None if x is None else x[:, start:stop]
                    for x in (starts, core_state, last_action, last_reward)
                ),
            ]
            for start, stop in itertools.pairwise(bounds)
        ]
        rest = [self._pool.submit(self._ask, *share) for share in shares[1:]]
        try:
            first = self._ask(*shares[0])
        finally:
            wait(rest)
        said = [first, *(future.result() for future in rest)]
        return PolicyOutput(*(torch.cat(x, dim=1) for x in zip(*said, strict=True)))

    def _begin(self) -> None:
        use_threads(1)
        self.thread_ids.append(threading.get_native_id())

    def _ask(self, *share: Any) -> PolicyOutput:
        with torch.no_grad():  # which every thread has its own of
            return self._policy(*share)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
