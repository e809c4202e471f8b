"""The policy: normaliser, torso, optional recurrent core, action head and value head.

Shapes: R rows, B columns, F features, P action parameters, S numbers of recurrent state a column.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from gossamer.errors import ConfigError
from gossamer.ops.distributions import (
    KINDS,
    ActionDistribution,
    encode_action,
    make_distribution,
)
from gossamer.policies.core import Core
from gossamer.policies.encoders import Encoders, refuse_encoders, seen_leaves, zero_leaf
from gossamer.policies.layers import linear
from gossamer.policies.moments import Moments
from gossamer.policies.normalizer import Normalizer
from gossamer.policies.tiles import Tiles, shares_tiles
from gossamer.policies.torsos import MLP, bears_channels_last, make_torso, own_torso, tried
from gossamer.spec import leaves_of, map_obs
from gossamer.types import PolicyOutput

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from gossamer.policies.settings import PolicyConfig
    from gossamer.spec import ActionSpec, EnvSpec, Obs

INITIAL_VARIANCE = 3.0
"""Automatic variance of a Gaussian policy's first actions, summed over their components."""
MASKED = -1e9
"""Logit of an action that is not allowed: its probability is 0, and what is computed from it is the distribution of the
others. An infinite one would make NaN of a KL divergence, and no stored column of it would count as finite."""
UNBOUNDED = 1e30
"""Bounds from which on an action has none: some environments write float32's largest number for infinity."""
VALUE_WINDOW = 1e6
"""Value targets remembered by the value moments."""


class ActorCritic(nn.Module):
    """An actor-critic read from an environment's spec.

    Args:
        spec: shapes and action space.
        config: the network's settings.
        value_norm: the value head predicts in units of the targets' running deviation.
        torso: your own feature layers in place of config.torso; [N, *obs_shape] float -> [N, F], with
            an attribute `feature_size`.
        generator: of initial weights; None: torch's own.
    """

    value_mean: Tensor
    value_std: Tensor
    masked: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        config: PolicyConfig,
        *,
        value_norm: bool = False,
        torso: nn.Module | None = None,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        _check(spec, config)
        self.spec, self.config, self.value_norm = spec, config, value_norm
        self._mask = None if spec.mask is None else spec.mask.name
        if torso is None:
            refuse_encoders(spec, config)
        seen = seen_leaves(spec.leaves, config)
        self._seen = tuple(leaf.name for leaf in seen)
        self.pixels = any(leaf.kind == "pixels" for leaf in seen)
        self.torso = (
            _torso(spec, config, generator)
            if torso is None
            else tried(torso, "torso must be", "torso", _zero_rows(spec), generator)
        )
        self._has_own_code = torso is not None or config.has_own_code
        size = int(self.torso.feature_size)  # type: ignore[arg-type]
        past_size = config.last_reward + config.last_action * spec.action.encoded_size
        size += past_size
        self.core = Core(config, size, generator)
        self.decoder = None
        if config.head_sizes and config.core != "none":
            decoded = self.core.output_size + size
            self.decoder = MLP(decoded, config.head_sizes, config.activation, generator)
            size = self.decoder.feature_size
        else:
            size = self.core.output_size
        self.action_head = linear(size, spec.action.num_outputs, 0.01, generator)
        num_gaussian, log_std = spec.action.num_gaussian, config.init_log_std
        if log_std == "auto":
            log_std = 0.5 * math.log(INITIAL_VARIANCE / max(num_gaussian, 1))
        self.log_std = nn.Parameter(torch.full((num_gaussian,), log_std, dtype=torch.float32))
        self._joint, self._deviates = spec.action.kind == "joint", num_gaussian > 0
        # A recurrent policy shares its state, so only a feed-forward one has a second tower.
        separate = _is_mlp(self.torso) and config.separate_value and config.core == "none"
        self.value_torso = _torso(spec, config, generator) if separate else None
        value_size = size
        if self.value_torso is not None:
            value_size = int(self.value_torso.feature_size) + past_size  # type: ignore[arg-type]
        self.value_head = linear(value_size, 1, 1.0, generator)
        scaled = [x for x in seen if x.kind in ("pixels", "vector")]
        made = {x.name: Normalizer(x, config) for x in scaled}
        # Names such as "type" or "keys" are taken in a ModuleDict.
        self.obs_moments: nn.Module = (
            made[""]
            if spec.sees_one
            else nn.ModuleDict({f"/{name}": x for name, x in made.items()})
        )
        self.value_moments = Moments((), max_count=VALUE_WINDOW)
        self.core_units = self.core.state_size
        self.looks_back = config.last_reward or config.last_action
        self._bounds = _bounds(spec, config)
        self._scaled = None  # of an action that is scaled as a whole
        if self._bounds is not None and spec.action.kind == "joint":
            real = [(p.kind == "gaussian",) * p.length for p in spec.action.each]
            self._scaled = torch.tensor([x for part in real for x in part])
        self.compute_dtype = torch.float32
        # Tensors, as a compiled network would be compiled anew for other numbers.
        for name, x in (("value_mean", 0.0), ("value_std", 1.0), ("masked", MASKED)):
            self.register_buffer(name, torch.tensor(x, dtype=torch.float32), persistent=False)
        # Persistent buffers of layers of the user's: part of what is learnt with, and of what acts.
        kept = self.state_dict().keys() if self._has_own_code else ()
        self._own_buffers = [
            name
            for name, x in self.named_buffers()
            if name in kept
            and x.dtype in (torch.float32, torch.float64)
            and not name.startswith(("obs_moments.", "value_moments."))
        ]
        self._channels_first = False
        if self.pixels:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if self._has_own_code and not bears_channels_last(self.torso, _zero_rows(spec)):
                self.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
                self._channels_first = True
        self.refresh()

    def forward(
        self,
        obs: Obs[Tensor],
        starts: Tensor,
        core_state: Tensor,
        last_action: Tensor | None = None,
        last_reward: Tensor | None = None,
    ) -> PolicyOutput:
        """Run the network on R rows of observations of B environments.

        Args:
            obs: [R, B, *shape] for each array of an observation, not normalised.
            starts: [R, B] bool, true where an episode begins, which clears the recurrent state.
            core_state: [S, B] recurrent state before row 0.
            last_action: [R, B, *action_shape]; needed with `policy.last_action`.
            last_reward: [R, B]; needed with `policy.last_reward`.
        """
        r, b = starts.shape
        allowed = None if self._mask is None else leaves_of(obs)[self._mask]
        x = map_obs(_rows, self.normalize(obs))  # [R * B, *shape]
        if self._channels_first:
            x = map_obs(Tensor.contiguous, x)
        with self._autocast():
            features = self.torso(x).float()
            value_features = self.value_torso(x).float() if self.value_torso else None
        with self._autocast(enabled=False):
            if self.looks_back:
                past = self._past(starts, last_action, last_reward)
                features = torch.cat([features, past], dim=-1)
                if value_features is not None:
                    value_features = torch.cat([value_features, past], dim=-1)
            seen = features
            features, core_state = self.core(features, starts, core_state)
            if self.decoder is not None:
                features = self.decoder(torch.cat([features, seen], dim=-1))
            outputs = self.action_head(features)
            params = self._params(outputs.view(r, b, -1), allowed)
            value = self.value_head(features if value_features is None else value_features)
            value = value.squeeze(-1)
            if self.value_norm:
                value = value * self.value_std + self.value_mean
        return PolicyOutput(params, value.view(r, b), features.view(r, b, -1), core_state)

    def _params(self, outputs: Tensor, allowed: Tensor | None) -> Tensor:
        """Return parameters [..., P] from the head's outputs [..., O], forbidden logits masked, and standard deviations."""
        if not self._joint:
            if allowed is not None:
                return torch.where(allowed, outputs, self.masked)
            if self._deviates:
                return torch.cat([outputs, self.log_std.expand_as(outputs)], dim=-1)
            return outputs
        each = self.spec.action.each
        parts: list[Tensor] = []
        first_logit = first_real = 0
        for spec, x in zip(each, outputs.split([p.num_outputs for p in each], dim=-1), strict=True):
            if spec.kind == "gaussian":
                log_std = self.log_std[first_real : first_real + spec.num_gaussian]
                parts += [x, log_std.expand_as(x)]
            elif allowed is not None and spec.choices:
                part = allowed[..., first_logit : first_logit + spec.num_outputs]
                parts.append(torch.where(part, x, self.masked))
                first_logit += spec.num_outputs
            else:
                parts.append(x)
            first_real += spec.num_gaussian
        return torch.cat(parts, dim=-1)

    def distribution(self, action_params: Tensor) -> ActionDistribution:
        """Read parameters [..., P] as a distribution over actions."""
        return make_distribution(self.spec.action, action_params, masked=self._mask is not None)

    def initial_state(self, batch_size: int) -> Tensor:
        """Recurrent state at an episode's start: zeros [S, B]."""
        size = (self.core_units, batch_size)
        return torch.zeros(size, dtype=torch.float32, device=self.device)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.value_mean.device

    @property
    def feature_size(self) -> int:
        """F, of the last hidden layer."""
        return self.action_head.in_features

    @property
    def normalizers(self) -> dict[str, Normalizer]:
        """Normaliser of each leaf that has one, by its name."""
        if isinstance(self.obs_moments, Normalizer):
            return {"": self.obs_moments}
        held = cast("Mapping[str, Normalizer]", self.obs_moments)
        return {name[1:]: x for name, x in held.items()}

    def normalize(self, obs: Obs[Tensor]) -> Obs[Tensor]:
        """Scale raw observations [..., *shape] for the torso, in its precision; whole numbers and a mask stay.

        What the torso does not see is left out.
        """
        leaves = leaves_of(obs)
        if isinstance(self.obs_moments, Normalizer) and self._seen == ("",):
            return self.obs_moments.normalize(leaves[""], self.compute_dtype)
        found = {name: leaves[name] for name in self._seen}
        for name, normalizer in self.normalizers.items():
            found[name] = normalizer.normalize(found[name], self.compute_dtype)
        return found

    def initial_noise(self, batch_size: int, generator: torch.Generator) -> Tensor | None:
        """Draw what `sample` carries from step to step, for the G Gaussian numbers of an action [B, G]; None: nothing."""
        if not self.spec.action.num_gaussian or not self.config.noise_correlation:
            return None
        size = (batch_size, self.spec.action.num_gaussian)
        return torch.randn(size, generator=generator, dtype=torch.float32, device=self.device)

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw what `choose` needs anew for every action: [*shape, N] float32, where the policy is."""
        kind = KINDS[self.spec.action.kind]
        return kind.noise(self.spec.action, shape, device=self.device, generator=generator)

    def choose(self, action_params: Tensor, noise: Tensor, carried: Tensor | None) -> Tensor:
        """Choose actions [B, *action_shape] by given noise.

        Args:
            action_params: [B, P] of the distribution.
            noise: [B, N] from `noise`.
            carried: [B, G] from `initial_noise`, or of the step before; becomes that of this step.
        """
        distribution = self.distribution(action_params)
        if carried is None:
            return distribution.choose(noise)
        # An autoregressive process of order 1, whose variance stays 1.
        kept, each = self.config.noise_correlation, self.spec.action.each
        if self.spec.action.kind == "gaussian":
            carried.mul_(kept).add_(noise, alpha=math.sqrt(1.0 - kept * kept))
            return distribution.choose(carried)
        parts = list(noise.split([spec.noise_size for spec in each], dim=-1))
        drawn = [i for i, spec in enumerate(each) if spec.kind == "gaussian"]
        fresh = torch.cat([parts[i] for i in drawn], dim=-1)
        carried.mul_(kept).add_(fresh, alpha=math.sqrt(1.0 - kept * kept))
        for i, x in zip(drawn, carried.split([each[i].noise_size for i in drawn], -1), strict=True):
            parts[i] = x
        return distribution.choose(torch.cat(parts, dim=-1))

    def sample(
        self, action_params: Tensor, generator: torch.Generator, carried: Tensor | None
    ) -> Tensor:
        """Draw noise and choose actions [B, *action_shape] by it; arguments as in `choose`."""
        noise = self.noise(action_params.shape[:-1], generator)
        return self.choose(action_params, noise, carried)

    def env_action(self, action: Tensor) -> Tensor:
        """Turn actions of the distribution into the environment's: squashed or scaled if asked for.

        The learner sees the action before: the Jacobian cancels in every importance weight.
        """
        if self._bounds is None:
            return action
        centre, half = self._bounds
        scaled = centre + half * (torch.tanh(action) if self.config.squash else action)
        return scaled if self._scaled is None else torch.where(self._scaled, scaled, action)

    def value_scale(self) -> Tensor:
        """Deviation by which value errors are divided; 1 unless values are normalised."""
        return self.value_std

    @torch.no_grad()
    def observe(self, obs: Obs[Tensor], valid: Tensor) -> None:
        """Take a batch into the observation moments: obs [R, B, ...], valid [T, B] bool; then refresh."""
        if not self.config.normalize_obs:
            return
        leaves = leaves_of(obs)
        for name, normalizer in self.normalizers.items():
            normalizer.observe(leaves[name], valid)

    def observe_values(
        self, total: Tensor | float, squares: Tensor | float, count: Tensor | float
    ) -> None:
        """Take sums over the targets of a batch into the value moments; then refresh."""
        self.value_moments.update_sums(total, squares, count)

    @torch.no_grad()
    def refresh(self, *, keep_values: bool = False) -> None:
        """Recompute what is derived from the moments; call after they have changed.

        Args:
            keep_values: rescale the value head, so that it predicts what it did: W' = s / s' W, b' = (s b + m - m') / s',
                where m and s are the mean and deviation before, m' and s' those from now on. Source: Pop-Art, van
                Hasselt et al. 2016 (arXiv:1602.07714), proposition 1.
        """
        if self.value_mean.is_meta:
            return  # there are no numbers, and torch would import its compiler to compute their shapes
        for normalizer in self.normalizers.values():
            normalizer.refresh()
        if self.value_norm:
            mean, std = (x.float() for x in self.value_moments.mean_std(1e-2))
            if keep_values:
                weight, bias = self.value_head.weight, self.value_head.bias
                weight.copy_(weight * (self.value_std / std))
                bias.copy_((bias * self.value_std + (self.value_mean - mean)) / std)
            self.value_mean.copy_(mean)
            self.value_std.copy_(std)

    def shared_tensors(self) -> list[Tensor]:
        """Parameters, moments, numbers of layers of the user's: what a version of the policy consists of."""
        own = [self.get_buffer(name) for name in self._own_buffers]
        return [*self.parameters(), *self.moments(), *own]

    def shared_names(self) -> list[str]:
        """Names of the shared tensors in the state dict, in their order."""
        homes = [
            *(f"obs_moments./{x}" if x else "obs_moments" for x in self.normalizers),
            "value_moments",
        ]
        buffers = [f"{home}.{name}" for home in homes for name in ("count", "total", "squares")]
        return [*(name for name, _ in self.named_parameters()), *buffers, *self._own_buffers]

    def moments(self) -> list[Tensor]:
        """Moments of observations and values, float64."""
        held = [*self.normalizers.values(), self.value_moments]
        return [x for moments in held for x in moments.tensors()]

    def set_precision(self, dtype: torch.dtype, *, inference: bool = False) -> None:
        """Compute features in `dtype`; for inference the torso's weights are kept in it too."""
        self.compute_dtype = dtype
        for normalizer in self.normalizers.values():
            normalizer.set_dtype(dtype)
        if inference:
            self.torso.to(dtype)
            if self.value_torso:
                self.value_torso.to(dtype)
        # Layers of the user's may make tensors in float32, which autocast alone takes beside others.
        autocasts = not inference or self._has_own_code
        self._casts_weights = autocasts and dtype != torch.float32
        self._infers = inference
        self.refresh()

    _casts_weights = _infers = False

    @contextlib.contextmanager
    def accumulating(self) -> Generator[None]:
        """Cast weights once for all forward passes inside, of several threads too; they must not change meanwhile."""
        if not self._casts_weights:
            yield
            return
        # All threads share one cache of cast weights, which the first to leave autocast would empty: others' gradients of a
        # weight that is used before and after that were summed in another precision. So the last one empties it.
        with _ACCUMULATING.lock:
            _ACCUMULATING.threads += 1
        torch.autocast_increment_nesting()
        try:
            with self._autocast():
                yield
        finally:
            torch.autocast_decrement_nesting()
            with _ACCUMULATING.lock:
                _ACCUMULATING.threads -= 1
                if not _ACCUMULATING.threads:
                    torch.clear_autocast_cache()

    def _autocast(self, *, enabled: bool = True) -> contextlib.AbstractContextManager[object]:
        if not self._casts_weights:
            return contextlib.nullcontext()
        autocast = torch.autocast(
            self.device.type,
            dtype=self.compute_dtype,
            enabled=enabled,
            cache_enabled=not self._infers,  # nobody would empty it of what acting casts
        )
        return _beside_others(autocast) if self._infers else autocast

    def _past(
        self, starts: Tensor, last_action: Tensor | None, last_reward: Tensor | None
    ) -> Tensor:
        """[R * B, ...] what the network is fed of the step before; zeros where an episode starts."""
        parts: list[Tensor] = []
        if self.config.last_reward:
            assert last_reward is not None
            # A reward that is not a number counts as none; times 0 it would outlast the episode.
            reward = last_reward.flatten().unsqueeze(-1).nan_to_num(nan=0.0)
            parts.append(reward.clamp(-1.0, 1.0))
        if self.config.last_action:
            assert last_action is not None
            parts.append(encode_action(self.spec.action, last_action.flatten(0, 1)))
        return torch.cat(parts, dim=-1) * (~starts).flatten().unsqueeze(-1).float()


@contextlib.contextmanager
def _beside_others(autocast: contextlib.AbstractContextManager[object]) -> Generator[None]:
    """Enter autocast, and leave it without emptying the cache, which holds what a learner's thread has cast."""
    torch.autocast_increment_nesting()
    try:
        with autocast:
            yield
    finally:
        torch.autocast_decrement_nesting()


class _Accumulating:
    """How many threads are in `accumulating`."""

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), 0


_ACCUMULATING = _Accumulating()


def _torso(spec: EnvSpec, config: PolicyConfig, generator: torch.Generator | None) -> nn.Module:
    seen = seen_leaves(spec.leaves, config)
    if spec.sees_one and len(seen) == 1:
        if shares_tiles(seen[0], config):
            return Tiles(seen[0], config, generator)
        return make_torso(config, spec.obs_shape, generator)
    if ":" in config.torso:
        return own_torso(config.torso, _zero_rows(spec), generator)
    return Encoders(spec.leaves, config, generator)


def _zero_rows(spec: EnvSpec) -> Obs[Tensor]:
    """Return two observations of zeros, as a torso that sees all of them is given them."""
    rows = {leaf.name: zero_leaf(leaf) for leaf in spec.observed}
    return rows[""] if spec.sees_one else rows


def _is_mlp(torso: nn.Module) -> bool:
    return isinstance(torso, MLP) or (isinstance(torso, Encoders) and torso.is_mlp)


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def _bounds(spec: EnvSpec, config: PolicyConfig) -> tuple[Tensor, Tensor] | None:
    """Centre and half width of each number of an action, by which it is scaled, where environments are; None: it is not."""
    if not spec.action.num_gaussian or not (config.squash or config.scale_actions):
        return None
    ends = ([x for part in spec.action.each for x in _ends(part, name)] for name in ("low", "high"))
    low, high = (torch.tensor(x, dtype=torch.float32) for x in ends)
    centre, half = (high + low) / 2.0, (high - low) / 2.0
    finite = half < UNBOUNDED
    return torch.where(finite, centre, 0.0), torch.where(finite, half, 1.0)


def _ends(part: ActionSpec, name: Literal["low", "high"]) -> tuple[float, ...]:
    """Lower or upper bounds of a part's numbers; 0 where they have none."""
    return getattr(part, name) if part.kind == "gaussian" else (0.0,) * part.length


def _check(spec: EnvSpec, config: PolicyConfig) -> None:
    if not config.squash:
        return
    bounds = [x for part in spec.action.each for x in (*part.low, *part.high)]
    if not spec.action.num_gaussian or not all(abs(x) < UNBOUNDED for x in bounds):
        raise ConfigError(
            f"policy.squash needs continuous actions with finite bounds, {spec.env_id} has "
            f"{spec.action.kind} actions; leave it out"
        )
