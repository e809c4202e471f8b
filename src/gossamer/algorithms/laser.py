"""LASER: V-trace that also learns from replayed data, where the policy has not moved too far from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from gossamer.algorithms.vtrace import VTrace
from gossamer.system.ranges import Positive

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.ops.distributions import ActionDistribution
    from gossamer.types import Batch


@dataclass(frozen=True)
class Laser(VTrace):
    """V-trace with replay and a trust region: rows whose behavior differs too much from the policy are left out.

    Entropy is a mean over online columns only. Source: Schmitt et al. 2020 (arXiv:1909.11583), section 4.
    """

    name: ClassVar[str] = "laser"
    online_entropy: ClassVar[bool] = True
    min_online_fraction: ClassVar[float] = (
        1 / 8
    )  # with less online data the policy learns in the wrong direction

    max_kl_nats: Positive = 0.3
    """Rows whose KL divergence is at least this value are rejected, > 0. The paper gives no number;
    reimplementations use 0.3."""
    kl: Literal["implied", "pi_mu", "mu_pi"] = "implied"
    """The KL divergence that max_kl_nats limits, between policy pi and behavior mu. implied: KL(pi || the policy that
    clipped importance weights imply), as published; pi_mu takes its place for continuous actions and for more than
    4,096 combinations of discrete actions. pi_mu: KL(pi || mu). mu_pi: KL(mu || pi)."""
    cut: Literal["per_state", "cumulative"] = "per_state"
    """Which rows are rejected. per_state: each row is judged by itself, as published. cumulative: after a rejected row,
    all later rows of the unroll are rejected too."""

    def accepted(self, batch: Batch, now: ActionDistribution) -> Tensor:
        """Return the rows [T, B] that the policy has not moved too far from."""
        import torch

        from gossamer.ops.trust import has_implied_policy, implied_kl

        with torch.no_grad():
            acted = type(now)(now.spec, batch.behavior)
            if self.kl == "mu_pi":
                kl = acted.kl(now)
            elif self.kl == "implied" and has_implied_policy(now):
                kl = implied_kl(now, acted, self.clip_rho)
            else:
                kl = now.kl(acted)
            accepted = kl < self.max_kl_nats
        if self.cut == "cumulative":
            # A row of no episode can be as far off as it likes.
            accepted = ((~accepted & batch.valid).cumsum(0) == 0) & accepted
        return accepted
