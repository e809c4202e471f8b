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
    from gossamer.types import ActionSpec


class ActionDistribution(ABC):
    """A distribution over actions for every leading index of params [..., P]."""

    def __init__(self, spec: ActionSpec, params: Tensor):
        self.spec = spec
        self.params = params

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions [..., *action_shape]."""

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


def _exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.empty_like(like).exponential_(generator=generator)


class Categorical(ActionDistribution):
    """One of sizes[0] actions, from logits."""

    @cached_property
    def log_probs(self) -> Tensor:
        """[..., P] normalised log-probabilities."""
        return F.log_softmax(self.params, dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw by racing exponential clocks: argmax of p_a / E_a with E_a ~ Exp(1)."""
        probs = self.log_probs.detach().exp()
        return (probs / _exponential(probs, generator)).argmax(dim=-1)

    def mode(self) -> Tensor:
        """Return the likeliest action [...] int64."""
        return self.params.argmax(dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log p(action) [...]."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return -sum p log p; an action of probability 0 adds 0."""
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return KL(self || other) [...]."""
        assert isinstance(other, Categorical)
        low = torch.finfo(self.log_probs.dtype).min
        difference = self.log_probs.clamp(min=low) - other.log_probs.clamp(min=low)
        return (self.log_probs.exp() * difference).sum(-1)


class MultiCategorical(ActionDistribution):
    """Several independent categorical components, their logits side by side."""

    @cached_property
    def parts(self) -> tuple[Categorical, ...]:
        """One categorical a component."""
        return tuple(Categorical(self.spec, x) for x in self.params.split(self.spec.sizes, dim=-1))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw every component [..., A]."""
        return torch.stack([part.sample(generator) for part in self.parts], dim=-1)

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

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw every component [..., A] int64."""
        probs = torch.sigmoid(self.params.detach())
        return (torch.rand(probs.shape, generator=generator, device=probs.device) < probs).long()

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

    @property
    def mean(self) -> Tensor:
        """[..., A]."""
        return self.params[..., : self.spec.sizes[0]]

    @property
    def log_std(self) -> Tensor:
        """[..., A]."""
        return self.params[..., self.spec.sizes[0] :]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw every component [..., A] float32."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.params.device)
        return self.at(noise)

    def at(self, noise: Tensor) -> Tensor:
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


KINDS: dict[str, type[ActionDistribution]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "bernoulli": Bernoulli,
    "gaussian": DiagonalGaussian,
}


def make_distribution(spec: ActionSpec, params: Tensor) -> ActionDistribution:
    """Read parameters [..., P] as the distribution that acts in `spec`."""
    return KINDS[spec.kind](spec, params)


def encode_action(spec: ActionSpec, action: Tensor) -> Tensor:
    """Encode actions [..., *action_shape] as network input [..., encoded_size] float32."""
    if spec.kind == "categorical":
        return F.one_hot(action, spec.sizes[0]).float()
    if spec.kind == "multi_categorical":
        return torch.cat(
            [F.one_hot(action[..., i], n).float() for i, n in enumerate(spec.sizes)], dim=-1
        )
    return action.float()


def sum_of(parts: list[Tensor]) -> Tensor:
    """Add tensors of one shape."""
    return torch.stack(parts).sum(0)
