"""A2C: the on-policy advantage actor-critic, with n-step returns or GAE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gossamer.algorithms.base import Algorithm, with_normalized_advantage, with_returns

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.algorithms.base import AlgorithmState, Policy
    from gossamer.ops.distributions import ActionDistribution
    from gossamer.ops.returns import Returns
    from gossamer.types import Batch


@dataclass(frozen=True)
class A2C(Algorithm):
    """Advantage actor-critic on data of the present policy: V-trace whose importance weights are all 1.

    Source: Mnih et al. 2016 (arXiv:1602.01783), in its synchronous form.
    """

    name: ClassVar[str] = "a2c"
    corrects: ClassVar[bool] = False
    bears_lag: ClassVar[bool] = False  # every row is taken for its own

    def prepare(self, policy: Policy, batch: Batch, state: AlgorithmState) -> Batch:
        """Return the batch with its returns where several updates or statistics need them, fixed before any of these."""
        needed = self.normalize_advantage or self.num_minibatches > 1
        return with_returns(self, policy, batch, state) if needed else batch

    def part(
        self, policy: Policy, batch: Batch, columns: Tensor | None, state: AlgorithmState
    ) -> Batch:
        """Return the columns, with normalised advantages if asked for."""
        part = super().part(policy, batch, columns, state)
        return with_normalized_advantage(part) if self.normalize_advantage else part

    def returns(
        self, batch: Batch, value: Tensor, log_prob: Tensor, now: ActionDistribution
    ) -> tuple[Returns, Tensor]:
        """Return n-step returns (GAE for trace_lambda < 1), and all valid rows."""
        return self._returns_of(batch, value, log_rho=None), batch.valid
