"""Action distributions read from flat parameters: sample, log_prob, entropy, kl.

Shapes: ... any leading axes, P parameters, A action components.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gossamer.spec import ActionSpec


WIDE = 8
"""Actions from which on softmax is quicker than an `exp` that underflows: those that a vector register of AVX2 holds."""


class ActionDistribution(ABC):
    """A distribution over actions for every leading index of params [..., P].

    Args:
        spec: what actions are.
        params: as its `num_params` says.
        masked: some logits may be those of forbidden actions; nothing but speed depends on it.
    """

    def __init__(self, spec: ActionSpec, params: Tensor, *, masked: bool = False):
        self.spec = spec
        self.params = params
        self.masked = masked

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions [..., *action_shape]."""
        shape, device = self.params.shape[:-1], self.params.device
        return self.choose(type(self).noise(self.spec, shape, device=device, generator=generator))

    @staticmethod
    @abstractmethod
    def noise(
        spec: ActionSpec,
        shape: Sequence[int],
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw the noise [*shape, N] float32 from which `choose` makes actions, whatever the parameters are."""

    @abstractmethod
    def choose(self, noise: Tensor) -> Tensor:
        """Return the actions [..., *action_shape] that noise [..., N] chooses, without a gradient."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the likeliest actions [..., *action_shape]."""

    @abstractmethod
    def log_prob(self, action: Tensor) -> Tensor:
        """Return log-probabilities (densities for Gaussians) [...], nats."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return entropies [...], nats."""

    @abstractmethod
    def kl(self, other: ActionDistribution) -> Tensor:
        """Return KL(self || other) [...], nats >= 0."""


class Categorical(ActionDistribution):
    """One of sizes[0] actions, from logits."""

    @cached_property
    def log_probs(self) -> Tensor:
        """[..., P] normalised log-probabilities."""
        return F.log_softmax(self.params, dim=-1)

    def probs(self) -> Tensor:
        """Return the probabilities [..., P]."""
        # An `exp` of finite numbers far below zero takes five times as long on a CPU, and softmax of few numbers too.
        if self.masked and self.params.shape[-1] >= WIDE:
            return F.softmax(self.params, dim=-1)
        return self.log_probs.exp()

    @staticmethod
    def noise(
        spec: ActionSpec,
        shape: Sequence[int],
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw the clocks [..., P] of all actions, each of Exp(1)."""
        size = (*shape, spec.sizes[0])
        drawn = torch.empty(size, dtype=torch.float32, device=device)
        return drawn.exponential_(generator=generator)

    def choose(self, noise: Tensor) -> Tensor:
        """Return the action [...] whose clock is the first: argmax of p_a / E_a with E_a ~ Exp(1)."""
        return (self.probs().detach() / noise).argmax(dim=-1)

    def mode(self) -> Tensor:
        """Return the likeliest action [...] int64."""
        return self.params.argmax(dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log p(action) [...]."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return -sum p log p; an action of probability 0 adds 0."""
        log_probs = self.log_probs
        return -(self.probs() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return KL(self || other) [...]."""
        assert isinstance(other, Categorical)
        low = torch.finfo(self.log_probs.dtype).min
        difference = self.log_probs.clamp(min=low) - other.log_probs.clamp(min=low)
        return (self.probs() * difference).sum(-1)


class MultiCategorical(ActionDistribution):
    """Several independent categorical components, their logits side by side."""

    @cached_property
    def parts(self) -> tuple[Categorical, ...]:
        """One categorical a component."""
        pieces = self.params.split(self.spec.sizes, dim=-1)
        return tuple(Categorical(self.spec, x, masked=self.masked) for x in pieces)

    @staticmethod
    def noise(
        spec: ActionSpec,
        shape: Sequence[int],
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw the clocks [..., P] of every component, one component after the other."""
        sizes = [(*shape, size) for size in spec.sizes]
        clocks = [torch.empty(x, dtype=torch.float32, device=device) for x in sizes]
        return torch.cat([x.exponential_(generator=generator) for x in clocks], dim=-1)

    def choose(self, noise: Tensor) -> Tensor:
        """Return every component [..., A]."""
        clocks = noise.split(self.spec.sizes, dim=-1)
        chosen = [part.choose(x) for part, x in zip(self.parts, clocks, strict=True)]
        return torch.stack(chosen, dim=-1)

    def mode(self) -> Tensor:
        """Return the likeliest of every component [..., A]."""
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the sum over components [...]."""
        return sum_of([p.log_prob(action[..., i]) for i, p in enumerate(self.parts)])

    def entropy(self) -> Tensor:
        """Return the sum over components [...]."""
        return sum_of([part.entropy() for part in self.parts])

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return the sum over components [...]."""
        assert isinstance(other, MultiCategorical)
        return sum_of([a.kl(b) for a, b in zip(self.parts, other.parts, strict=True)])


class Bernoulli(ActionDistribution):
    """Independent 0/1 components, from logits of 1."""

    @staticmethod
    def noise(
        spec: ActionSpec,
        shape: Sequence[int],
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw thresholds [..., A] in [0, 1)."""
        size = (*shape, spec.sizes[0])
        return torch.rand(size, generator=generator, dtype=torch.float32, device=device)

    def choose(self, noise: Tensor) -> Tensor:
        """Return every component [..., A] int64: 1 where its probability is above the threshold."""
        return (noise < torch.sigmoid(self.params.detach())).long()

    def mode(self) -> Tensor:
        """Return 1 where it is the likelier value [..., A]."""
        return (self.params > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the sum over components [...]."""
        sign = 2.0 * action.to(self.params.dtype) - 1.0
        return F.logsigmoid(sign * self.params).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum over components [...]: softplus(x) - x sigmoid(x) each."""
        x = self.params
        return (F.softplus(x) - x * torch.sigmoid(x)).sum(-1)

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return the sum over components [...]."""
        p = torch.sigmoid(self.params)
        on = F.logsigmoid(self.params) - F.logsigmoid(other.params)
        off = F.logsigmoid(-self.params) - F.logsigmoid(-other.params)
        return (p * on + (1.0 - p) * off).sum(-1)


class DiagonalGaussian(ActionDistribution):
    """Independent normal components: means, then log standard deviations."""

    @cached_property
    def _halves(self) -> tuple[Tensor, Tensor]:
        # Whoever asks first may want no gradient.
        with torch.enable_grad():
            mean, log_std = self.params.split(self.spec.sizes[0], dim=-1)
        return mean, log_std

    @property
    def mean(self) -> Tensor:
        """[..., A]."""
        return self._halves[0]

    @property
    def log_std(self) -> Tensor:
        """[..., A]."""
        return self._halves[1]

    @staticmethod
    def noise(
        spec: ActionSpec,
        shape: Sequence[int],
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw standard normal noise [..., A]."""
        size = (*shape, spec.sizes[0])
        return torch.randn(size, generator=generator, dtype=torch.float32, device=device)

    def choose(self, noise: Tensor) -> Tensor:
        """Return the actions [..., A] that lie `noise` [..., A] deviations from the means."""
        return (self.mean + self.log_std.exp() * noise).detach()

    def mode(self) -> Tensor:
        """Return the means [..., A]."""
        return self.mean.detach()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density summed over components [...]."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy summed over components [...]."""
        return (self.log_std + 0.5 * (1.0 + math.log(2.0 * math.pi))).sum(-1)

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return KL(self || other) summed over components [...]."""
        assert isinstance(other, DiagonalGaussian)
        variance = (2.0 * (self.log_std - other.log_std)).exp()
        shift = ((self.mean - other.mean) * (-other.log_std).exp()).square()
        return (0.5 * (variance + shift - 1.0) - self.log_std + other.log_std).sum(-1)


class Joint(ActionDistribution):
    """Independent parts of different kinds, their parameters, noise and actions side by side."""

    @cached_property
    def parts(self) -> tuple[ActionDistribution, ...]:
        """One distribution a part."""
        each = self.spec.each
        pieces = self.params.split([spec.num_params for spec in each], dim=-1)
        return tuple(
            make_distribution(spec, x, masked=self.masked)
            for spec, x in zip(each, pieces, strict=True)
        )

    @staticmethod
    def noise(
        spec: ActionSpec,
        shape: Sequence[int],
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw the noise [..., N] of every part, one part after the other."""
        drawn = [
            KINDS[part.kind].noise(part, shape, device=device, generator=generator)
            for part in spec.each
        ]
        return torch.cat(drawn, dim=-1)

    def choose(self, noise: Tensor) -> Tensor:
        """Return every part [..., A]."""
        pieces = noise.split([spec.noise_size for spec in self.spec.each], dim=-1)
        return self._joined([part.choose(x) for part, x in zip(self.parts, pieces, strict=True)])

    def mode(self) -> Tensor:
        """Return the likeliest of every part [..., A]."""
        return self._joined([part.mode() for part in self.parts])

    def _joined(self, chosen: list[Tensor]) -> Tensor:
        dtype = getattr(torch, self.spec.dtype)
        each = zip(self.spec.each, chosen, strict=True)
        return torch.cat([(x if spec.shape else x.unsqueeze(-1)).to(dtype) for spec, x in each], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the sum over parts [...]."""
        each = zip(self.parts, split_action(self.spec, action), strict=True)
        return sum_of([part.log_prob(x) for part, x in each])

    @cached_property
    def entropies(self) -> list[Tensor]:
        """Entropy [...] of every part, nats."""
        return [part.entropy() for part in self.parts]

    def entropy(self) -> Tensor:
        """Return the sum over parts [...]."""
        return sum_of(self.entropies)

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return the sum over parts [...]."""
        assert isinstance(other, Joint)
        return sum_of([a.kl(b) for a, b in zip(self.parts, other.parts, strict=True)])


KINDS: dict[str, type[ActionDistribution]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "bernoulli": Bernoulli,
    "gaussian": DiagonalGaussian,
    "joint": Joint,
}


def make_distribution(
    spec: ActionSpec, params: Tensor, *, masked: bool = False
) -> ActionDistribution:
    """Read parameters [..., P], some of them perhaps logits of forbidden actions, as the distribution that acts in `spec`."""
    return KINDS[spec.kind](spec, params, masked=masked)


def encode_action(spec: ActionSpec, action: Tensor) -> Tensor:
    """Encode actions [..., *action_shape] as network input [..., encoded_size] float32."""
    if spec.kind == "joint":
        each = zip(spec.each, split_action(spec, action), strict=True)
        return torch.cat([encode_action(part, x) for part, x in each], dim=-1)
    if spec.kind == "categorical":
        return F.one_hot(action, spec.sizes[0]).float()
    if spec.kind == "multi_categorical":
        return torch.cat(
            [F.one_hot(action[..., i], n).float() for i, n in enumerate(spec.sizes)], dim=-1
        )
    return action.float()


def split_action(spec: ActionSpec, action: Tensor) -> list[Tensor]:
    """Return the action [..., *part_shape] of every part of joint actions [..., A], each in its own dtype."""
    pieces = action.split([part.length for part in spec.each], dim=-1)
    each = zip(spec.each, pieces, strict=True)
    return [(x if s.shape else x.squeeze(-1)).to(getattr(torch, s.dtype)) for s, x in each]


def sum_of(parts: list[Tensor]) -> Tensor:
    """Add tensors of one shape."""
    return torch.stack(parts).sum(0)
