"""IMPALA's V-trace: targets that correct for actors acting on older parameters; the loss on them is `base.Algorithm.loss`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gossamer.algorithms.base import with_normalized_advantage, with_returns
from gossamer.algorithms.cloning import CloningAlgorithm
from gossamer.system.ranges import Count, Positive

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.algorithms.base import AlgorithmState, Policy
    from gossamer.ops.distributions import ActionDistribution
    from gossamer.ops.returns import Returns
    from gossamer.types import Batch


@dataclass(frozen=True)
class VTrace(CloningAlgorithm):
    """IMPALA: an actor-critic that corrects for actors with older parameters.

    Source: Espeholt et al. 2018 (arXiv:1802.01561), section 4.
    """

    name: ClassVar[str] = "vtrace"
    corrects: ClassVar[bool] = True

    passes: Count = 1
    """Passes over each batch, >= 1; importance weights are recomputed for each pass."""
    clip_rho: Positive = 1.0
    """Cap on the importance weight in the targets, > 0; a higher cap means less bias and more noise."""
    clip_c: Positive = 1.0
    """Cap on the importance weight of corrections from later steps, > 0."""
    clip_pg_rho: Positive = 1.0
    """Cap on the importance weight of the policy gradient, > 0."""

    def part(
        self, policy: Policy, batch: Batch, columns: Tensor | None, state: AlgorithmState
    ) -> Batch:
        """Return the columns, with normalised advantages under the present policy if asked for."""
        part = super().part(policy, batch, columns, state)
        if self.normalize_advantage:
            part = with_normalized_advantage(with_returns(self, policy, part, state))
        return part

    def returns(
        self, batch: Batch, value: Tensor, log_prob: Tensor, now: ActionDistribution
    ) -> tuple[Returns, Tensor]:
        """Return V-trace targets under `now`, and the rows to learn from."""
        import torch

        acted = type(now)(now.spec, batch.behavior)
        keep, carry = batch.valid, self.trace_lambda * batch.continues.float()
        accepted = self.accepted(batch, now)
        if accepted is not None:
            # The bootstrap stops where a rejected row would be carried into the one before.
            keep = keep & accepted
            carry = torch.cat([carry[:-1] * accepted[1:], carry[-1:]])
        returns = self._returns_of(
            batch,
            value,
            carry,
            log_rho=log_prob - acted.log_prob(batch.action),
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
            clip_pg_rho=self.clip_pg_rho,
        )
        return returns, keep

    def accepted(self, batch: Batch, now: ActionDistribution) -> Tensor | None:
        """Return the rows [T, B] within a trust region; None: there is none."""
        return None
