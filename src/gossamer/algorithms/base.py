"""An algorithm is a loss over a batch. This is the protocol, and what the losses share.

Shapes: T unroll length, B columns, P action-distribution parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from gossamer.errors import ConfigError
from gossamer.spec import obs_at
from gossamer.system.prefixes import without_prefix
from gossamer.system.ranges import Amount, Count, Fraction
from gossamer.types import Named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor

    from gossamer.ops.distributions import ActionDistribution
    from gossamer.ops.micro_batches import Cuts, MicroBatches
    from gossamer.ops.returns import Returns
    from gossamer.spec import Obs
    from gossamer.types import Batch, Metrics, PolicyOutput


class Policy(Protocol):
    """What an algorithm needs of a network; `gossamer.policies.actor_critic` has ours."""

    core_units: int
    value_norm: bool
    looks_back: bool
    """Whether it is fed the last action or reward."""

    def __call__(
        self,
        obs: Obs[Tensor],
        starts: Tensor,
        core_state: Tensor,
        last_action: Tensor | None = None,
        last_reward: Tensor | None = None,
    ) -> PolicyOutput:
        """Run rows [R, B] of observations."""
        ...

    def distribution(self, action_params: Tensor) -> ActionDistribution:
        """Read parameters [..., P] as a distribution over actions."""
        ...

    def value_scale(self) -> Tensor:
        """Deviation by which value errors are divided; 1 unless values are normalised."""
        ...

    def refresh(self) -> None:
        """Recompute what is derived from the moments."""
        ...


@dataclass
class AlgorithmState:
    """What an algorithm carries from update to update; saved in checkpoints."""

    generator: torch.Generator
    """Draws which columns go in which minibatch."""
    micro_batches: MicroBatches
    """How the learner cuts a batch and shares the parts out among threads."""
    lr_scale: float = 1.0
    """Factor on the scheduled learning rate."""
    kl_nats: float = 0.0
    """Mean KL between behavior and policy over the last minibatch."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Anything else an algorithm keeps, the tensors of a target policy for one."""
    target_policy: Policy | None = None
    """A policy that follows with delay, if the algorithm has one; its tensors are among those."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain numbers."""
        return {
            "generator": self.generator.get_state(),
            "lr_scale": self.lr_scale,
            "kl_nats": self.kl_nats,
            **{f"tensors.{name}": x for name, x in self.tensors.items()},
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Continue from `state_dict`; tensors that were added later than at the beginning come to a device, if one is given."""
        self.generator.set_state(state["generator"])
        self.lr_scale, self.kl_nats = state["lr_scale"], state["kl_nats"]
        saved = without_prefix(state, "tensors.")
        for name, x in self.tensors.items():
            x.copy_(saved.pop(name))
        self.tensors |= {k: x.to(device, copy=True) for k, x in saved.items() if device}


@dataclass(frozen=True)
class Algorithm(Named):
    """Settings that every actor-critic shares, and the hooks the learner calls."""

    name: ClassVar[str] = ""
    default_kind: ClassVar[str] = "vtrace"
    """The algorithm that is meant if none is named."""
    corrects: ClassVar[bool] = False
    """Whether data from an older policy may be replayed."""
    bears_lag: ClassVar[bool] = True
    """Whether a policy some versions old may have acted."""
    min_online_fraction: ClassVar[float] = 0.0
    """Smallest share of a batch that is not replayed."""
    online_entropy: ClassVar[bool] = False
    """Whether the entropy bonus is a mean over online columns only."""

    discount: Fraction = 0.99
    """Discount per decision, in [0, 1]; 0.99 as in A3C, IMPALA and PPO on Atari."""
    trace_lambda: Fraction = 1.0
    """Lambda of the returns, in [0, 1]: 1 is the n-step return, 0 is the one-step return."""
    value_cost: Amount = 0.5
    """Weight of the value loss 0.5 (target - V)^2, >= 0."""
    entropy_cost: tuple[Amount, ...] = (0.01,)
    """Weight of the entropy bonus, per nat, >= 0: one value, or one per learner; 0.01 as in A3C and
    IMPALA."""
    reward_clip: Literal["none", "clamp", "sign", "soft_asymmetric"] = "none"
    """How rewards are changed for training. none: unchanged. clamp: to [-1, 1]. sign: -1, 0 or 1.
    soft_asymmetric: 5 tanh(r / 5), times 0.3 if negative. Recorded returns use the original rewards."""
    normalize_advantage: bool = False
    """Normalise advantages to mean 0 and deviation 1 over a minibatch's valid rows; importance weights are applied
    afterwards."""
    value_norm: bool = False
    """Normalise value targets by their running mean and deviation."""
    popart: bool = False
    """Where value_norm is on: rescale the last layer of the value whenever mean and deviation have changed, so that
    predicted values stay as they are (Pop-Art: van Hasselt et al. 2016, proposition 1)."""
    scale_rewards: bool = False
    """Also divide advantages by the running deviation of value targets, so that the entropy bonus has the same
    weight at any reward scale (like reward scaling in OpenAI Baselines). Needs value_norm."""
    num_minibatches: Count = 1
    """Minibatches of whole columns per pass, >= 1, each one optimizer step."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the loss over a minibatch's valid rows: mean or sum. IMPALA's published costs and gradient clip of
    40 are for sums."""

    @classmethod
    def refuse_part(cls) -> str:
        """Return what a class of the user's lacks to be an algorithm; empty: nothing."""
        instead = {
            "minibatches": "prepare, dealt and part",
            "after_update": "count_update or after_version",
        }
        for old, new in instead.items():
            if hasattr(cls, old):
                return f"has a method {old}, which is no longer called: override {new} (docs/your-own-parts.md)"
        if cls.loss is Algorithm.loss and cls.returns is Algorithm.returns:
            return "has neither a method returns(self, batch, value, log_prob, now) nor a method loss(self, policy, batch, state)"
        return ""

    @property
    def updates_per_batch(self) -> int:
        """How many updates a batch is learnt in, unless `ends` ends it early."""
        return self.num_minibatches * getattr(self, "passes", 1)

    def validate(self) -> None:
        """Refuse settings that cannot work together; ranges of single numbers are checked elsewhere.

        Raises:
            ConfigError: one line with the setting, its value, what is allowed and what to type.
        """
        if self.scale_rewards and (self.normalize_advantage or not self.value_norm):
            raise ConfigError(
                "algorithm.scale_rewards needs normalised values and advantages that are not normalised: "
                "--algorithm.value-norm --algorithm.normalize-advantage false"
            )

    def init_state(self, policy: Policy, state: AlgorithmState) -> None:
        """Add to the state what the algorithm carries; nothing unless overridden."""

    def prepare(self, policy: Policy, batch: Batch, state: AlgorithmState) -> Batch:
        """Return a batch with what is computed once a version, before its first update; the batch unless overridden.

        This, `part`, `loss` and `ends` are captured and replayed on a GPU: there they must not read a tensor back to
        Python, draw random numbers, or do what depends on the data (`if tensor:`, indexing by booleans).
        """
        return batch

    def dealt(
        self, num_columns: int, num_online: int, state: AlgorithmState
    ) -> Iterator[Tensor | None]:
        """Yield, for each update, which columns of the prepared batch it learns: int64 on the CPU, None for all.

        Unless overridden every pass deals the columns anew at random. Called once a version, on the host.

        Args:
            num_columns: of the prepared batch.
            num_online: of them that are not replayed; they come first.
            state: with the generator that deals.
        """
        for _ in range(self.updates_per_batch // self.num_minibatches):
            yield from deal(num_columns, num_online, self.num_minibatches, state.generator)

    def before_update(self, policy: Policy, state: AlgorithmState) -> None:
        """Do on the host what an update needs, between captured functions; nothing unless overridden."""

    def count_update(self, state: AlgorithmState) -> None:
        """Take note on the host of an update that was followed, or left out on the device; nothing unless overridden."""

    def part(
        self, policy: Policy, batch: Batch, columns: Tensor | None, state: AlgorithmState
    ) -> Batch:
        """Return what an update learns from of the prepared batch; statistics over a minibatch are computed here.

        Args:
            policy: being learnt.
            batch: the prepared one.
            columns: those dealt to this update, where the batch is; None: all.
            state: of the algorithm.
        """
        return batch if columns is None else batch.take(columns)

    def ends(self, means: Mapping[str, Tensor]) -> Tensor | None:
        """Return whether the rest of the batch is left out (bool), by the means of an update's metrics; None: never."""
        return None

    def returns(
        self, batch: Batch, value: Tensor, log_prob: Tensor, now: ActionDistribution
    ) -> tuple[Returns, Tensor]:
        """Return targets from value [T + 1, B] and log pi(a|x) [T, B], and the rows [T, B] to learn."""
        raise NotImplementedError

    def _returns_of(
        self, batch: Batch, value: Tensor, carry: Tensor | None = None, **more: Any
    ) -> Returns:
        """Return `vtrace_returns` of a batch under the settings, `more` as for it; `carry` None: lambda within episodes."""
        from gossamer.ops.returns import clip_reward, vtrace_returns

        return vtrace_returns(
            value=value,
            reward=clip_reward(batch.reward, self.reward_clip),
            discount=self.discount * (~batch.terminated).float(),
            carry=self.trace_lambda * batch.continues.float() if carry is None else carry,
            **more,
        )

    def loss(self, policy: Policy, batch: Batch, state: AlgorithmState) -> tuple[Tensor, Metrics]:
        """Return -log pi advantage + value loss - entropy summed over rows, and metrics.

        Called by several threads at once, for different rows: it must not change the policy or the
        state, nor draw random numbers.

        The loss of A2C, V-trace and LASER (Mnih et al. 2016, section 4; Espeholt et al. 2018, eq. 4
        to 6); what differs is `returns`.
        """
        from gossamer.ops.returns import Returns, masked_sum

        t = batch.unroll_length
        known = batch.advantage is not None and batch.target is not None
        out = unroll(policy, batch, slice(0, t if known else t + 1))
        now = policy.distribution(out.action_params[:t])
        log_prob = now.log_prob(batch.action)
        if batch.advantage is not None and batch.target is not None:
            returns, keep = Returns(batch.target, batch.advantage), batch.kept
        else:
            returns, keep = self.returns(batch, out.value.detach(), log_prob.detach(), now)
        value = out.value[:t]
        entropy = self.entropy_of(now)
        counts: dict[str, Tensor] = {}
        online = batch.online_weight if self.online_entropy else None
        if online is not None:
            entropy = entropy * online
            counts["learner/entropy_nats"] = rows_of(online, keep)
        sums = {
            "learner/policy_loss": masked_sum(-log_prob * returns.advantage, keep),
            "learner/value_loss": value_loss(policy, returns, value, keep),
            "learner/entropy_nats": masked_sum(entropy, keep),
            **self.more_losses(policy, batch, now, value, keep),
        }
        counts |= cloning_counts(batch, keep, sums)
        loss = self.weighed(policy, sums)
        sums["learner/loss"] = loss
        metrics = common_metrics(policy, batch, returns, keep, value, now, log_prob, sums, online)
        return loss, metrics | {name: (sums[name].detach(), n) for name, n in counts.items()}

    def more_losses(
        self, policy: Policy, batch: Batch, now: ActionDistribution, value: Tensor, keep: Tensor
    ) -> dict[str, Tensor]:
        """Return further terms of the loss, summed over the rows of keep, for `weighed` to add."""
        return {}

    def weighed(self, policy: Policy, sums: dict[str, Tensor]) -> Tensor:
        """Add policy loss, value loss and entropy with their costs."""
        loss = sums["learner/policy_loss"]
        if self.scale_rewards:
            loss = loss / policy.value_scale()
        loss = loss + self.value_cost * sums["learner/value_loss"]
        (entropy_cost,) = self.entropy_cost  # by now its learner's own
        return loss - entropy_cost * sums["learner/entropy_nats"] if entropy_cost else loss

    def entropy_of(self, now: ActionDistribution) -> Tensor:
        """Return the entropy [T, B] for the loss; without a cost it is only told, and needs no gradient."""
        import torch

        if type(self).weighed is Algorithm.weighed and self.entropy_cost == (0.0,):
            with torch.no_grad():
                return now.entropy()
        return now.entropy()

    def after_version(self, state: AlgorithmState, metrics: Mapping[str, float]) -> None:
        """Look at the means of the version's last update that was made, without those of no row; nothing to do unless overridden."""

    def divisor(self, batch: Batch) -> Tensor | float:
        """Return what the loss summed over a whole minibatch is divided by."""
        return 1.0 if self.reduction == "sum" else batch.valid.sum().clamp(min=1)


def unroll(policy: Policy, batch: Batch, rows: slice) -> PolicyOutput:
    """Run the policy over the first rows of a batch, from its stored recurrent state; ValueError if they begin later.

    Rows that only warm up a column's state pass no gradient on.
    """
    import torch

    if rows.start and policy.core_units:
        raise ValueError(f"unroll begins at row {rows.start}; with recurrent state: slice(0, N)")
    past: list[Tensor] = []
    if policy.looks_back:
        past = [
            torch.cat([batch.last_action[None], batch.action]),
            torch.cat([batch.last_reward[None], batch.reward]),
        ]

    def run(part: slice, state: Tensor) -> PolicyOutput:
        return policy(obs_at(batch.obs, part), batch.starts[part], state, *(x[part] for x in past))

    if not (first := batch.burn_in):
        return run(rows, batch.core_state)
    before = run(slice(0, first), batch.core_state)
    state = torch.where(batch.replayed, before.core_state.detach(), before.core_state)
    after = run(slice(first, rows.stop), state)
    return type(after)(
        torch.cat([before.action_params, after.action_params]),
        torch.cat([before.value, after.value]),
        torch.cat([before.features, after.features]),
        after.core_state,
    )


def deal(
    num_columns: int, num_online: int, num_minibatches: int, generator: torch.Generator
) -> Iterator[Tensor | None]:
    """Deal columns, online ones first, at random into minibatches; yield each one's, None where there is one only."""
    import torch

    if num_minibatches == 1:
        yield None
        return
    parts = [torch.randperm(num_online, generator=generator).tensor_split(num_minibatches)]
    if num_online < num_columns:  # each part has its share of both
        replayed = torch.randperm(num_columns - num_online, generator=generator) + num_online
        parts.append(replayed.tensor_split(num_minibatches))
    for columns in zip(*parts, strict=True):
        yield torch.cat(columns)


def with_normalized_advantage(batch: Batch) -> Batch:
    """Copy of a batch or minibatch with its advantages normalised over the rows that are learnt."""
    from gossamer.ops.returns import normalized

    assert batch.advantage is not None
    advantage = normalized(batch.advantage, batch.kept, batch.advantage_weight)
    return replace(batch, advantage=advantage)


def with_column_weights(batch: Batch, reduction: str) -> Batch:
    """Copy of a minibatch whose columns know what they weigh in terms over online or replayed ones alone.

    The loss is divided by all valid rows; a mean over some columns weighs them more by that much. Of
    gradients that several learners sum, each weighs by its own rows: exact where all have as many.
    """
    rows = batch.valid.sum(0).float()  # [B]

    def weight(chosen: Tensor) -> Tensor:
        whole = reduction == "sum"
        return chosen * (1.0 if whole else rows.sum() / (rows * chosen).sum().clamp(min=1.0))

    replayed = batch.replayed.float()
    return replace(batch, online_weight=weight(1.0 - replayed), replayed_weight=weight(replayed))


def cloning_counts(batch: Batch, keep: Tensor, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what the sums of terms over replayed columns alone are divided by, to report them."""
    weight = batch.replayed_weight
    count = keep.sum() * 0.0 if weight is None else rows_of(weight, keep)
    return {name: count for name in sums if name.endswith("_cloning_loss")}


def rows_of(weight: Tensor, keep: Tensor) -> Tensor:
    """Return how many rows of keep [T, B] there are, each weighing as its column [B] does."""
    return (keep.sum(0) * weight).sum()


def value_loss(policy: Policy, returns: Returns, value: Tensor, keep: Tensor) -> Tensor:
    """Return the sum of 0.5 (target - V)^2 over keep, in units of the value's scale."""
    from gossamer.ops.returns import masked_sum

    error = (returns.target - value) / policy.value_scale()
    return masked_sum(0.5 * error.square(), keep)


def common_metrics(
    policy: Policy,
    batch: Batch,
    returns: Returns,
    keep: Tensor,
    value: Tensor,
    now: ActionDistribution,
    log_prob: Tensor,
    sums: dict[str, Tensor],
    online: Tensor | None = None,
    acted: tuple[ActionDistribution, Tensor] | None = None,
) -> Metrics:
    """Return the metrics every loss reports, as (sum, count) over the rows of keep.

    Whoever has the distributions that acted, and what log_prob is above theirs, hands them on.

    Entropies of an action's parts are of columns as far as they are online [B], where that is given.
    How far behavior and policy are apart is told over all valid rows: those rejected are the farthest.
    """
    import torch

    from gossamer.ops.distributions import Joint

    with torch.no_grad():
        count = keep.sum()
        if acted is None:
            behavior = policy.distribution(batch.behavior)
            acted = behavior, log_prob - behavior.log_prob(batch.action)
        apart = {"learner/mean_log_rho": acted[1], "learner/mean_kl_nats": acted[0].kl(now)}
        more = {
            "learner/advantage_mean": returns.advantage,
            "learner/advantage_square": returns.advantage.square(),
            "learner/value_mean": value,
            "learner/target_mean": returns.target,
            # In float64, and with it all that are summed beside it: values are normalised by the deviation.
            "learner/target_square": returns.target.double().square(),
            "learner/error_square": (returns.target - value).square(),
        }
        if isinstance(now, Joint):
            for (name, _), entropy in zip(now.spec.parts, now.entropies, strict=True):
                weighed = entropy if online is None else entropy * online
                more[f"learner/entropy_nats/{name}"] = weighed.detach()
        metrics: Metrics = {name: (x.detach(), count) for name, x in sums.items()}
        valid, groups = count, [(keep, count, more | apart)]
        if keep is not batch.valid:
            valid = batch.valid.sum()
            groups = [(keep, count, more), (batch.valid, valid, apart)]
        for rows, num, given in groups:
            stacked = torch.where(rows, torch.stack(tuple(given.values())), 0.0).sum((1, 2))
            metrics |= {name: (x, num) for name, x in zip(given, stacked, strict=True)}
        if online is not None:
            of_parts = [name for name in more if name.startswith("learner/entropy_nats/")]
            metrics |= {name: (metrics[name][0], rows_of(online, keep)) for name in of_parts}
        metrics["learner/valid_fraction"] = (valid, float(keep.numel()))
        if keep is not batch.valid:
            metrics["learner/rejected_fraction"] = (valid - count, valid)
    return metrics


VARIANCE_ROUNDING = 1e-6
"""Fraction of a mean square that the rounding of sums in float32 leaves in doubt."""


def with_deviations(means: dict[str, float]) -> dict[str, float]:
    """Replace means of squares by what they are there for: explained variance, and a deviation.

    A loss of the user's own may report some of them alone.
    """
    square = means.pop("learner/target_square", None)
    target, value = (means.get(f"learner/{name}_mean") for name in ("target", "value"))
    error = means.pop("learner/error_square", None)
    if square is not None and target is not None and value is not None and error is not None:
        variance = square - target**2
        error = max(error - (target - value) ** 2, 0.0)
        # A smaller variance is the rounding of sums in float32.
        known = variance > max(VARIANCE_ROUNDING * square, 1e-8)
        means["learner/explained_variance"] = 1.0 - error / variance if known else 0.0
    square, mean = means.pop("learner/advantage_square", None), means.get("learner/advantage_mean")
    if square is not None and mean is not None:
        means["learner/advantage_std"] = max(square - mean**2, 0.0) ** 0.5
    return means


def with_returns(
    algorithm: Algorithm, policy: Policy, batch: Batch, state: AlgorithmState
) -> Batch:
    """Copy of a batch with the algorithm's targets and advantages under the present policy.

    Costs one forward pass, micro-batch by micro-batch; needed wherever statistics over the whole
    minibatch enter the loss.
    """
    import torch

    target, advantage = torch.empty_like(batch.reward), torch.empty_like(batch.reward)
    weight, keep = torch.ones_like(batch.reward), torch.empty_like(batch.valid)
    weighs, rejects = set[bool](), set[bool]()

    @torch.no_grad()
    def work(thread: int, cuts: Cuts) -> None:
        for start, stop in cuts:
            part = batch.columns(start, stop)
            out = unroll(policy, part, slice(0, part.unroll_length + 1))
            now = policy.distribution(out.action_params[:-1])
            returns, kept = algorithm.returns(part, out.value, now.log_prob(part.action), now)
            target[:, start:stop], advantage[:, start:stop] = returns[:2]
            weighs.add(returns.weight is not None)
            if returns.weight is not None:
                weight[:, start:stop] = returns.weight
            rejects.add(kept is not part.valid)
            keep[:, start:stop] = kept

    state.micro_batches.share_out(batch, work)
    return replace(
        batch,
        target=target,
        advantage=advantage,
        advantage_weight=weight if True in weighs else None,
        keep=keep if True in rejects else batch.keep,
    )
