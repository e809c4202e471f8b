"""IMPACT: PPO's surrogate around a target policy that moves now and then, so that data may be old."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from gossamer.algorithms.base import (
    cloning_counts,
    common_metrics,
    unroll,
    value_loss,
    with_normalized_advantage,
)
from gossamer.algorithms.cloning import CloningAlgorithm
from gossamer.system.ranges import Count, Fraction, Positive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gossamer.algorithms.base import AlgorithmState, Policy
    from gossamer.ops.micro_batches import Cuts
    from gossamer.types import Batch, Metrics


@dataclass(frozen=True)
class Impact(CloningAlgorithm):
    """PPO's surrogate, clipped around a target policy, with V-trace advantages from the target policy's values.

    Data of any age may be learnt from, several times: with a circular replay beside the queue. Source: Luo
    et al. 2020 (arXiv:1912.00167), section 3.
    """

    name: ClassVar[str] = "impact"
    corrects: ClassVar[bool] = True

    trace_lambda: Fraction = 0.95
    """Lambda of the returns, in [0, 1]."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and deviation 1 over a minibatch's valid rows; importance weights are applied
    afterwards."""
    num_minibatches: Count = 4
    """Minibatches of whole columns per pass, >= 1, each one optimizer step."""
    passes: Count = 1
    """Passes over each batch, >= 1. With a replay, data is learnt several times even with one
    pass."""
    clip_ratio: Positive = 0.2
    """Clip range of the probability ratio to the target policy, > 0."""
    max_target_ratio: Positive = 2.0
    """Cap on the ratio of behavior to target policy, by which the probability ratio is multiplied, > 0; 2 as in the
    paper."""
    target_every_updates: Count = 16
    """Updates between copies of the policy to the target policy, >= 1."""
    clip_rho: Positive = 1.0
    """Cap on the ratio of target policy to behavior in the value targets, > 0."""
    clip_c: Positive = 1.0
    """Cap on the importance weight of corrections from later steps, > 0."""
    clip_pg_rho: Positive = 1.0
    """Cap on the ratio of target policy to behavior in the advantages, > 0."""

    def init_state(self, policy: Policy, state: AlgorithmState) -> None:
        """Begin with a target policy like the policy."""
        import torch

        target = cast("nn.Module", copy.deepcopy(policy)).requires_grad_(False)
        state.target_policy = cast("Policy", target)
        held = {f"target.{name}": x for name, x in target.state_dict().items()}
        state.tensors |= held | {"updates": torch.zeros((), dtype=torch.int64)}

    def before_update(self, policy: Policy, state: AlgorithmState) -> None:
        """Copy the policy to the target policy every so many updates."""
        import torch

        assert state.target_policy is not None
        if int(state.tensors["updates"]) % self.target_every_updates == 0:
            new = cast("nn.Module", policy).state_dict()
            held = [state.tensors[f"target.{name}"] for name in new]
            with torch.no_grad():
                torch._foreach_copy_(held, list(new.values()))
            state.target_policy.refresh()

    def count_update(self, state: AlgorithmState) -> None:
        """Count towards the next copy to the target policy."""
        state.tensors["updates"] += 1

    def prepare(self, policy: Policy, batch: Batch, state: AlgorithmState) -> Batch:
        """Return the batch; what the target policy has of moments may be a checkpoint's."""
        assert state.target_policy is not None
        state.target_policy.refresh()
        return batch

    def part(
        self, policy: Policy, batch: Batch, columns: Tensor | None, state: AlgorithmState
    ) -> Batch:
        """Return the columns as the target policy judges them."""
        part = self._judged(super().part(policy, batch, columns, state), state)
        return with_normalized_advantage(part) if self.normalize_advantage else part

    def _judged(self, batch: Batch, state: AlgorithmState) -> Batch:
        """Copy of a minibatch with targets, advantages and log-probabilities of the target policy."""
        import torch

        target_policy = state.target_policy
        assert target_policy is not None
        target, advantage = torch.empty_like(batch.reward), torch.empty_like(batch.reward)
        log_prob, weight = torch.empty_like(batch.reward), torch.empty_like(batch.reward)

        @torch.no_grad()
        def work(thread: int, cuts: Cuts) -> None:
            for start, stop in cuts:
                part = batch.columns(start, stop)
                out = unroll(target_policy, part, slice(0, part.unroll_length + 1))
                then = target_policy.distribution(out.action_params[:-1])
                acted = target_policy.distribution(part.behavior)
                log_prob[:, start:stop] = then.log_prob(part.action)
                found = self._returns_of(
                    part,
                    out.value,
                    log_rho=log_prob[:, start:stop] - acted.log_prob(part.action),
                    clip_rho=self.clip_rho,
                    clip_c=self.clip_c,
                    clip_pg_rho=self.clip_pg_rho,
                )
                target[:, start:stop], advantage[:, start:stop] = found[:2]
                assert found.weight is not None
                weight[:, start:stop] = found.weight

        state.micro_batches.share_out(batch, work)
        batch = replace(batch, target=target, advantage=advantage, advantage_weight=weight)
        return replace(batch, target_log_prob=log_prob)

    def loss(self, policy: Policy, batch: Batch, state: AlgorithmState) -> tuple[Tensor, Metrics]:
        """Return the clipped surrogate + value loss - entropy, summed over rows, and metrics."""
        import torch

        from gossamer.ops.returns import Returns, masked_sum

        assert batch.target is not None
        assert batch.advantage is not None
        assert batch.target_log_prob is not None
        returns, keep = Returns(batch.target, batch.advantage), batch.valid
        out = unroll(policy, batch, slice(0, batch.unroll_length))
        now = policy.distribution(out.action_params)
        log_prob = now.log_prob(batch.action)
        with torch.no_grad():
            acted = policy.distribution(batch.behavior).log_prob(batch.action)
            # The ratio is to the target policy, unless that has left the behavior far behind.
            reach = math.log(self.max_target_ratio)
            base = acted - (acted - batch.target_log_prob).clamp(max=reach)
        ratio = (log_prob - base).exp()
        clipped = ratio.clamp(1.0 - self.clip_ratio, 1.0 + self.clip_ratio)
        surrogate = torch.minimum(ratio * returns.advantage, clipped * returns.advantage)
        sums = {
            "learner/policy_loss": masked_sum(-surrogate, keep),
            "learner/value_loss": value_loss(policy, returns, out.value, keep),
            "learner/entropy_nats": masked_sum(now.entropy(), keep),
            **self.more_losses(policy, batch, now, out.value, keep),
        }
        loss = self.weighed(policy, sums)
        sums["learner/loss"] = loss
        metrics = common_metrics(policy, batch, returns, keep, out.value, now, log_prob, sums)
        outside = ((ratio - 1.0).abs() > self.clip_ratio).float()
        metrics["learner/clip_fraction"] = (masked_sum(outside, keep).detach(), keep.sum())
        counts = cloning_counts(batch, keep, sums)
        return loss, metrics | {name: (sums[name].detach(), n) for name, n in counts.items()}
