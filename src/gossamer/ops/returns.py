"""Learning targets: n-step, GAE and V-trace in one recursion, and sums over the rows that count.

Shapes: T unroll length, B columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Returns(NamedTuple):
    """Learning targets for one unroll; no field carries a gradient."""

    target: Tensor  # [T, B] what value[t] should have been
    advantage: Tensor  # [T, B] weight of the policy gradient at t
    weight: Tensor | None = None  # [T, B] the importance weight in it; None: all are 1


@torch.no_grad()
def vtrace_returns(
    *,
    value: Tensor,
    reward: Tensor,
    discount: Tensor,
    carry: Tensor,
    log_rho: Tensor | None,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> Returns:
    """Compute V-trace targets; with log_rho = 0 these are n-step or GAE targets.

    Args:
        value: [T + 1, B] V(obs[t]) under the policy being learnt.
        reward: [T, B].
        discount: [T, B] in [0, 1]; 0 where the episode terminated.
        carry: [T, B] in [0, 1]; how much of row t + 1's correction flows into row t. 0 across an
            episode's end (a truncated row then bootstraps from value[t + 1]); lambda elsewhere.
        log_rho: [T, B] log pi(a|x) - log mu(a|x); None for on-policy data (zeros).
        clip_rho: cap on the weight of a temporal difference, > 0.
        clip_c: cap on the weight that carries a correction back, > 0.
        clip_pg_rho: cap on the weight of the policy gradient, > 0.

    Source: Espeholt et al. 2018 (arXiv:1802.01561), section 4, eq. 1; Schulman et al. 2016
    (arXiv:1506.02438), eq. 16. `carry` generalises the paper's product of c_i by a per-row factor,
    which gives lambda-returns and episode cuts alike. The advantage bootstraps from
    V + carry * correction, which is v_{t+1} for lambda = 1 and GAE for log_rho = 0.
    """
    td_error = reward + discount * value[1:] - value[:-1]  # [T, B]
    decay = discount * carry
    rho = None if log_rho is None else log_rho.exp()
    if rho is not None:
        td_error = rho.clamp(max=clip_rho) * td_error
        decay = decay * rho.clamp(max=clip_c)
    correction = torch.zeros_like(value)  # [T + 1, B] target - value; the last row stays 0
    rows = correction.unbind()
    each = [*zip(td_error.unbind(), decay.unbind(), rows, rows[1:], strict=False)]
    for error, kept, row, later in reversed(each):
        torch.addcmul(error, kept, later, out=row)
    target = value[:-1] + correction[:-1]
    advantage = reward + discount * (value[1:] + carry * correction[1:]) - value[:-1]
    if rho is None:
        return Returns(target, advantage)
    weight = rho.clamp(max=clip_pg_rho)
    return Returns(target, weight * advantage, weight)


def is_finite(x: Tensor) -> Tensor:
    """Return where numbers are finite; what `isfinite` returns, in two kernels in place of four."""
    return x - x == 0.0


def masked_sum(x: Tensor, keep: Tensor) -> Tensor:
    """Sum x over the True entries of keep; what is not kept may be NaN and passes no gradient."""
    return torch.where(keep, x, 0.0).sum()


def normalized(advantage: Tensor, keep: Tensor, weight: Tensor | None = None) -> Tensor:
    """Shift and scale to mean 0 and deviation 1 over the rows of keep, without the weights that are in it.

    As PPO does, whose ratio comes after: with the weights in the mean, rows which the policy has left behind
    would be pushed down for ever, by what others earned. A lone row stays as it is: compared with itself it would teach
    nothing.
    """
    if weight is not None:
        # Of a weight that has become 0 nobody knows the advantage, and it moves nothing.
        keep = keep & (weight > 0.0)
        advantage = torch.where(keep, advantage / weight, 0.0)
    count = keep.sum()
    apart = advantage - masked_sum(advantage, keep) / count.clamp(min=1)
    variance = masked_sum(apart**2, keep) / count.clamp(min=1)
    advantage = torch.where(count > 1, apart / (variance.sqrt() + 1e-8), advantage)
    return advantage if weight is None else weight * advantage


def clip_reward(reward: Tensor, kind: str) -> Tensor:
    """Squash rewards before learning: none, clamp to [-1, 1], sign, or soft_asymmetric.

    soft_asymmetric is 5 tanh(r / 5), times 0.3 where negative (Espeholt et al. 2018, figure D.1).
    """
    if kind == "clamp":
        return reward.clamp(-1.0, 1.0)
    if kind == "sign":
        return reward.sign()
    if kind == "soft_asymmetric":
        squashed = 5.0 * torch.tanh(reward / 5.0)
        return torch.where(reward < 0, 0.3 * squashed, squashed)
    assert kind == "none", kind
    return reward
