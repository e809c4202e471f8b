"""PPO: a clipped surrogate on returns that are computed once per batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gossamer.algorithms.base import (
    Algorithm,
    common_metrics,
    unroll,
    value_loss,
    with_normalized_advantage,
)
from gossamer.spec import leaves_of
from gossamer.system.ranges import Amount, Count, Fraction, Positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from gossamer.algorithms.base import AlgorithmState, Policy
    from gossamer.ops.micro_batches import Cuts
    from gossamer.ops.returns import Returns
    from gossamer.types import Batch, Metrics


@dataclass(frozen=True)
class PPO(Algorithm):
    """Proximal policy optimisation with generalised advantage estimation.

    Advantages and targets come from the values the actor recorded; old log-probabilities from
    `behavior`. Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9.
    """

    name: ClassVar[str] = "ppo"
    corrects: ClassVar[bool] = False

    trace_lambda: Fraction = 0.95
    """Lambda of GAE, in [0, 1]; 0.95 as in the paper's Atari setting."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and deviation 1 over a minibatch's valid rows."""
    num_minibatches: Count = 4
    """Minibatches per pass, >= 1, each one optimizer step."""
    deal: Literal["auto", "columns", "rows"] = "auto"
    """How a batch is split into minibatches. columns: by whole unrolls. rows: by single env steps,
    so that a small minibatch mixes many episodes; not for recurrent policies. auto: rows if the
    policy is not recurrent and either observations are vectors or there are more minibatches than
    columns; else columns."""
    passes: Count = 4
    """Passes over each batch, >= 1."""
    clip_ratio: Positive = 0.2
    """Clip range of the probability ratio, > 0: outside it, the loss gives no incentive to move the ratio further
    from 1."""
    clip_value: Amount = 0.0
    """Clip range of predicted values around the recorded ones, in units of return. 0: no value clipping."""
    max_kl_nats: Amount = 0.0
    """Skip a batch's remaining updates when the mean KL(behavior || policy) exceeds this value. 0: never."""
    target_kl_nats: Amount = 0.0
    """Adapt the learning rate to keep the mean KL(behavior || policy) near this value: divide the rate by 1.5 when the
    KL is above twice this value, multiply it by 1.5 when the KL is below half of this value. The rate stays within a
    factor of 100 of the scheduled rate. 0: off."""

    def prepare(self, policy: Policy, batch: Batch, state: AlgorithmState) -> Batch:
        """Return the batch with returns of the recorded values, its rows as columns where rows are dealt."""
        batch = self._with_recorded_returns(policy, batch, state)
        return as_rows(batch) if self._deals_rows(policy, batch) else batch

    def part(
        self, policy: Policy, batch: Batch, columns: Tensor | None, state: AlgorithmState
    ) -> Batch:
        """Return the columns, with normalised advantages if asked for."""
        part = super().part(policy, batch, columns, state)
        return with_normalized_advantage(part) if self.normalize_advantage else part

    def ends(self, means: Mapping[str, Tensor]) -> Tensor | None:
        """Return whether the policy has moved too far."""
        return means["learner/mean_kl_nats"] > self.max_kl_nats if self.max_kl_nats else None

    def _deals_rows(self, policy: Policy, batch: Batch) -> bool:
        if self.deal != "auto":
            return self.deal == "rows"
        vectors = all(x.ndim == 3 for x in leaves_of(batch.obs).values())
        few = self.num_minibatches > batch.num_columns
        return self.num_minibatches > 1 and (vectors or few) and not policy.core_units

    def loss(self, policy: Policy, batch: Batch, state: AlgorithmState) -> tuple[Tensor, Metrics]:
        """Return the clipped surrogate + value loss - entropy, summed over rows, and metrics."""
        import torch

        from gossamer.ops.returns import Returns, masked_sum

        assert batch.target is not None
        assert batch.advantage is not None
        returns, keep = Returns(batch.target, batch.advantage), batch.valid
        out = unroll(policy, batch, slice(0, batch.unroll_length))
        now = policy.distribution(out.action_params)
        log_prob = now.log_prob(batch.action)
        with torch.no_grad():
            acted = policy.distribution(batch.behavior)
            acted_log_prob = acted.log_prob(batch.action)
        log_ratio = log_prob - acted_log_prob
        ratio = log_ratio.exp()
        # The smaller of both terms; where the clipped one is smaller, no gradient passes.
        clipped = ratio.detach().clamp(1.0 - self.clip_ratio, 1.0 + self.clip_ratio)
        plain, clipped = ratio * returns.advantage, clipped * returns.advantage
        surrogate = torch.where(plain > clipped, clipped, plain)
        sums = {
            "learner/policy_loss": masked_sum(-surrogate, keep),
            "learner/value_loss": self._value_loss(policy, batch, returns, out.value),
            "learner/entropy_nats": masked_sum(self.entropy_of(now), keep),
        }
        loss = self.weighed(policy, sums)
        sums["learner/loss"] = loss
        apart = acted, log_ratio.detach()
        metrics = common_metrics(
            policy, batch, returns, keep, out.value, now, log_prob, sums, acted=apart
        )
        with torch.no_grad():
            outside = ((ratio - 1.0).abs() > self.clip_ratio).float()
            count = metrics["learner/policy_loss"][1]
            metrics["learner/clip_fraction"] = (masked_sum(outside, keep), count)
        return loss, metrics

    def after_version(self, state: AlgorithmState, metrics: Mapping[str, float]) -> None:
        """Adapt the learning rate to how far the last minibatch found the policy to have moved.

        Once a batch: at the first ones it has hardly moved, whatever the rate.
        """
        kl_nats = metrics.get("learner/mean_kl_nats")
        if not self.target_kl_nats or kl_nats is None:
            return
        if kl_nats > 2.0 * self.target_kl_nats:
            state.lr_scale = max(state.lr_scale / 1.5, 0.01)
        elif kl_nats < 0.5 * self.target_kl_nats:
            state.lr_scale = min(state.lr_scale * 1.5, 100.0)

    def _value_loss(self, policy: Policy, batch: Batch, returns: Returns, value: Tensor) -> Tensor:
        import torch

        from gossamer.ops.returns import masked_sum

        if not self.clip_value:
            return value_loss(policy, returns, value, batch.valid)
        moved = batch.value + (value - batch.value).clamp(-self.clip_value, self.clip_value)
        worse = torch.maximum((returns.target - value) ** 2, (returns.target - moved) ** 2)
        return masked_sum(0.5 * worse / policy.value_scale() ** 2, batch.valid)

    def _with_recorded_returns(self, policy: Policy, batch: Batch, state: AlgorithmState) -> Batch:
        import torch

        t = batch.unroll_length
        value = torch.cat([batch.value, torch.zeros_like(batch.value[:1])])  # [T + 1, B]
        # Only the value of the last observation is missing; a recurrent policy needs the whole
        # unroll to get there.
        rows = slice(0, t + 1) if policy.core_units else slice(t, t + 1)

        @torch.no_grad()
        def work(thread: int, cuts: Cuts) -> None:
            for start, stop in cuts:
                value[t, start:stop] = unroll(policy, batch.columns(start, stop), rows).value[-1]

        state.micro_batches.share_out(batch, work)
        returns = self._returns_of(batch, value, log_rho=None)
        return replace(batch, target=returns.target, advantage=returns.advantage)


def as_rows(batch: Batch) -> Batch:
    """Present the T x B rows of a batch as columns of one row each, in the memory they are in if that can be.

    For a policy without recurrent state, and where returns are known: a column's last observation, for the
    value after it, is left out, so that `obs` and `starts` are of 1 row here.
    """
    import torch

    t, b = batch.reward.shape
    made: dict[str, Any] = {
        "last_action": torch.cat([batch.last_action[None], batch.action[:-1]]).flatten(0, 1),
        "last_reward": torch.cat([batch.last_reward[None], batch.reward[:-1]]).flatten(0, 1),
        "core_state": batch.core_state.new_zeros(0, t * b),
    }
    for name, x, dim in batch.each():
        if name in made:
            continue
        rows = x[:t] if dim else x.expand(t, *x.shape)
        rows = rows.reshape(t * b, *rows.shape[2:])
        made[name] = rows[None] if dim else rows
    return batch.with_fields(made)
