"""Settings of the network; importing this does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PolicyConfig:
    """The network: torso, optional recurrent core, action head and value head."""

    torso: Literal["auto", "mlp", "a3c", "nature", "impala", "elite"] = "auto"
    """Feature layers. auto: nature for pixels, mlp for vectors. a3c: the small network of Mnih et al.
    2016, a third of nature's cost. elite: that of the elite replay platform, small strides and many filters."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each layer of the mlp torso, each >= 1; 64-64 as in OpenAI Baselines."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Activation of the mlp torso."""
    separate_value: bool = True
    """The value head has hidden layers of its own, where the torso is mlp and core is none; elsewhere, and
    when this is off, it shares those of the actions."""
    last_filters: int = 64
    """Filters of the nature torso's third convolution: 64 (Mnih et al. 2015) or 32 (GALA)."""
    fc_size: int = 0
    """Units of the layer behind the convolutions; 0: 512 for nature and elite, 256 for a3c and impala."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layer between torso and heads; its state is cleared where an episode starts."""
    core_size: int = 256
    """Units of each recurrent layer, >= 1; 256 as in IMPALA."""
    core_layers: int = 1
    """Recurrent layers, >= 1."""
    last_reward: bool = False
    """Feed the previous reward, clipped to [-1, 1], to the layers after the torso."""
    last_action: bool = False
    """Feed the previous action (one-hot for discrete kinds) to the layers after the torso."""
    normalize_obs: bool = True
    """Subtract the running mean of every input position and divide by its deviation. Without it
    pixels are divided by 255 and vectors are taken as they are."""
    normalize_steps: int = 0
    """Freeze the observation moments after this many env steps summed over learners; 0: never."""
    obs_clip: float = 10.0
    """Normalised vector observations are clipped to +- this many deviations, > 0."""
    pixel_std_floor: float = 10.0
    """Smallest deviation a pixel is divided by, in grey levels, > 0; keeps still pixels quiet."""
    init_log_std: float = 0.0
    """Gaussian actions: initial log standard deviation, in nats of the action's unit."""
    squash: bool = False
    """Gaussian actions: tanh-squash to the action bounds; needs finite bounds."""
    scale_actions: bool = False
    """Gaussian actions: -1 and 1 stand for an action's bounds, where both are finite, so that the initial
    deviation means the same in every environment. Otherwise actions are in the environment's own units."""
    noise_correlation: float = 0.0
    """Gaussian actions: correlation of an action's noise with the noise of the env step before, in [0, 1). Every
    single action keeps the distribution that is learnt, and exploration goes further than with noise that cancels
    out. Hollenstein et al. 2024 (arXiv:2312.11091) colour the noise of PPO; this is the autoregressive kind."""
