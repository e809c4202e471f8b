"""How far a policy has moved from the one that acted: LASER's divergences and the rows that they reject.

Schmitt et al. 2020 (arXiv:1909.11583), section 4. Shapes: T, B; ... any leading axes; J joint actions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.ops.distributions import ActionDistribution, Categorical, Joint, MultiCategorical

if TYPE_CHECKING:
    from gossamer.spec import ActionSpec

MAX_JOINT_ACTIONS = 4096
"""Most combinations of an action's components that `implied_kl` enumerates."""


def has_implied_policy(now: ActionDistribution) -> bool:
    """Whether `implied_kl` can be computed: for discrete actions, of so many combinations if they are combined."""
    if now.spec.kind == "categorical":
        return True
    return sum(map(_bits, now.spec.each)) <= math.log2(MAX_JOINT_ACTIONS)


def _bits(spec: ActionSpec) -> float:
    """Return the logarithm to base 2 of how many actions there are."""
    if spec.kind == "gaussian":
        return math.inf
    return spec.sizes[0] if spec.kind == "bernoulli" else sum(map(math.log2, spec.sizes))


def joint_log_probs(distribution: ActionDistribution) -> Tensor:
    """Return normalised log-probabilities [..., J] of every combination of an action's components."""
    if isinstance(distribution, Categorical):
        return distribution.log_probs
    if isinstance(distribution, MultiCategorical):
        parts = [part.log_probs for part in distribution.parts]
    elif isinstance(distribution, Joint):
        parts = [joint_log_probs(part) for part in distribution.parts]
    else:
        x = distribution.params
        parts = list(torch.stack([F.logsigmoid(-x), F.logsigmoid(x)], dim=-1).unbind(-2))
    joint = parts[0]
    for part in parts[1:]:
        joint = (joint.unsqueeze(-1) + part.unsqueeze(-2)).flatten(-2)
    return joint


def implied_kl(now: ActionDistribution, acted: ActionDistribution, clip_rho: float) -> Tensor:
    """Return KL(pi || mu~) [...], nats, for the policy mu~ that clipped importance weights imply.

    mu~(a|s) = min(clip_rho mu, pi) / sum_b min(clip_rho mu, pi): V-trace's fixed point follows it, not pi.

    Args:
        now: pi.
        acted: mu.
        clip_rho: cap on importance weights, > 0.

    Source: Schmitt et al. 2020 (arXiv:1909.11583), section 4.
    """
    # Finite numbers only: 0 log 0 is 0.
    lowest = torch.finfo(torch.float32).min / 4
    pi = joint_log_probs(now).clamp(min=lowest)
    mu = joint_log_probs(acted).clamp(min=lowest)
    implied = F.log_softmax(torch.minimum(mu + math.log(clip_rho), pi), dim=-1)
    return (pi.exp() * (pi - implied)).sum(-1).clamp(min=0.0)
