"""The outer step: what updates and mixing make of the parameters in a version is followed as if it were a gradient.

Sources: Wang, Tantia, Ballas and Rabbat 2020 (arXiv:1910.00643, SlowMo), for local steps and gossip; Tan et al. 2024
(arXiv:2411.00666), for PPO with one learner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SMALLEST_RATE = 1e-15
"""Learning rate below which parameters stay as updates and mixing leave them: float32 does not show steps of that size, and
what mixing changes, divided by it, may be more than float32 holds."""

LARGEST_RISE = 100.0
"""Factor by which no schedule raises the learning rate from one version to the next: a run that had come to its schedule's end
goes on with a longer one. What mixing changed last, divided by a rate of nearly 0, is then forgotten: at the new rate it
would be a step of any length."""


class OuterStep:
    """Steps once a version, theta being the parameters when it began and phi those after its last update has been mixed.

    g = (theta - phi) / learning_rate; u <- momentum * u + g, from 0; theta <- theta - rate * learning_rate * d, where d
    is u, or g + momentum * u with nesterov. With momentum 0 and rate 1 theta becomes phi: nothing is computed or kept.

    All is done in place, and nothing is read back from a GPU but metrics. From one version to the next only u is kept, and
    the learning rate behind it.

    Args:
        params: theta and phi; their storage must not change.
        momentum: in [0, 1).
        rate: > 0.
        nesterov: follow g too, and u as it will be.
    """

    def __init__(
        self, params: Iterable[Tensor], momentum: float, rate: float, *, nesterov: bool = False
    ):
        self._params = list(params)
        self._momentum, self._rate, self._nesterov = momentum, rate, nesterov
        self._acts = momentum > 0.0 or rate != 1.0
        self._anchor = [torch.empty_like(p) for p in self._params if self._acts]  # theta
        self._velocity = [torch.zeros_like(p) for p in self._params if momentum]  # u
        self._learning_rate = 0.0  # of the version before; 0: there is none
        # Lengths of phi - theta and of steps, summed since metrics were last taken.
        self._lengths = [
            torch.zeros(2, dtype=torch.float32, device=p.device)
            for p in self._params[:1]
            if momentum
        ]

    @torch.no_grad()
    def begin(self) -> None:
        """Keep the parameters with which a version begins."""
        if self._acts:
            torch._foreach_copy_(self._anchor, self._params)

    @torch.no_grad()
    def apply(self, learning_rate: float) -> None:
        """Take the step of the version that has begun last and was learnt at this rate."""
        if not self._acts or learning_rate < SMALLEST_RATE:
            return
        step = self._params  # until it is added to theta
        torch._foreach_sub_(step, self._anchor)
        if self._momentum:
            proposed = _length(step)
            if 0.0 < LARGEST_RISE * self._learning_rate < learning_rate:
                torch._foreach_zero_(self._velocity)
            self._learning_rate = learning_rate
            torch._foreach_mul_(self._velocity, self._momentum)
            torch._foreach_add_(self._velocity, step, alpha=-1.0 / learning_rate)
            of_g, of_u = (1.0, self._momentum) if self._nesterov else (0.0, 1.0)
            torch._foreach_mul_(step, self._rate * of_g)
            torch._foreach_add_(step, self._velocity, alpha=-self._rate * learning_rate * of_u)
            self._lengths[0].add_(torch.stack([proposed, _length(step)]))
        else:
            torch._foreach_mul_(step, self._rate)
        torch._foreach_add_(self._params, self._anchor)

    def mixed(self) -> list[Tensor]:
        """Return what is mixed with other learners, in place, if they mix what optimizers keep: u."""
        return self._velocity

    def take_metrics(self) -> dict[str, float]:
        """Return how long steps were since the last call, for what updates and mixing changed."""
        if not self._lengths:
            return {}
        proposed, taken = self._lengths[0].tolist()
        self._lengths[0].zero_()
        return {"learner/outer_step_ratio": taken / proposed} if proposed else {}

    def state_dict(self) -> dict[str, Any]:
        """Return u, by number of the parameter, and the learning rate; nothing without momentum."""
        if not self._momentum:
            return {}
        held = {str(i): x for i, x in enumerate(self._velocity)}
        return {**held, "learning_rate": self._learning_rate}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; from one without u, or of no momentum, with u = 0."""
        for i, u in enumerate(self._velocity):
            x = state.get(str(i)) if state else torch.zeros_like(u)
            if not isinstance(x, Tensor) or x.shape != u.shape:
                raise RuntimeError(f"outer.{i} does not fit its parameter")
            u.copy_(x)
        self._learning_rate = float(state.get("learning_rate", 0.0))


def _length(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)).norm()
