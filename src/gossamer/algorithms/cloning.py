"""CLEAR: terms that keep policy and value near what was recorded with replayed columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer.algorithms.base import Algorithm
from gossamer.system.ranges import Amount

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.algorithms.base import Policy
    from gossamer.ops.distributions import ActionDistribution
    from gossamer.types import Batch


@dataclass(frozen=True)
class CloningAlgorithm(Algorithm):
    """An actor-critic that may clone its own past on replayed columns.

    Source: Rolnick et al. 2019 (arXiv:1811.11682), section 3.1.
    """

    policy_cloning_cost: Amount = 0.0
    """Weight of KL(behavior || policy) on replayed columns, >= 0; CLEAR uses 0.01 (Rolnick et al.
    2019)."""
    value_cloning_cost: Amount = 0.0
    """Weight of (recorded value - V)^2 on replayed columns, >= 0; CLEAR uses 0.005."""

    def more_losses(
        self, policy: Policy, batch: Batch, now: ActionDistribution, value: Tensor, keep: Tensor
    ) -> dict[str, Tensor]:
        """Return the two terms, each if it has a cost, summed over the rows of keep."""
        from gossamer.ops.returns import masked_sum

        sums: dict[str, Tensor] = {}
        weight = batch.replayed_weight
        if weight is None:  # named all the same: learners in lock-step add up what they name
            zero = value.new_zeros(())
            costs = {"policy": self.policy_cloning_cost, "value": self.value_cloning_cost}
            return {f"learner/{name}_cloning_loss": zero for name, cost in costs.items() if cost}
        if self.policy_cloning_cost:
            kl = type(now)(now.spec, batch.behavior).kl(now)
            sums["learner/policy_cloning_loss"] = masked_sum(kl * weight, keep)
        if self.value_cloning_cost:
            error = (batch.value - value) / policy.value_scale()
            sums["learner/value_cloning_loss"] = masked_sum(error.square() * weight, keep)
        return sums

    def weighed(self, policy: Policy, sums: dict[str, Tensor]) -> Tensor:
        """Add the two terms with their costs to those of every actor-critic."""
        loss = super().weighed(policy, sums)
        costs = {"policy": self.policy_cloning_cost, "value": self.value_cloning_cost}
        for name, cost in costs.items():
            if f"learner/{name}_cloning_loss" in sums:
                loss = loss + cost * sums[f"learner/{name}_cloning_loss"]
        return loss
