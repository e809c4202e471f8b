"""Settings of the network; importing this does not import torch."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - settings read their annotations
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from gossamer.system.ranges import BelowOne, Imported, Positive, Units, Whole

LIKE = "like:"
"""Begins the name of an encoder that is another leaf's."""
Like = Annotated[str, Meta(pattern=rf"^{LIKE}[^.]+\Z", title="like:LEAF")]


@dataclass(frozen=True)
class EncoderConfig:
    """Layers of one leaf of observations that hold several arrays."""

    name: (
        Literal["auto", "nature", "impala", "a3c", "elite", "mlp", "one_hot", "embedding", "none"]
        | Like
        | Imported
    ) = "auto"
    """Kind of layers."""
    fc_size: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Units of the fully connected layer after convolutions. 0: policy.fc_size."""
    hidden_sizes: Annotated[tuple[Units, ...], Meta(max_length=64)] = ()
    """Units of each layer of an mlp. Empty: policy.hidden_sizes."""
    embedding_size: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Units of an embedding. 0: 32."""

    @property
    def like(self) -> str | None:
        """Leaf whose layers these are; None: they are its own."""
        return self.name.removeprefix(LIKE) if self.name.startswith(LIKE) else None

    @property
    def is_own(self) -> bool:
        """Whether they are the user's, module:NAME."""
        return ":" in self.name and self.like is None


@dataclass(frozen=True)
class PolicyConfig:
    """The network: torso, optional recurrent core, action head and value head."""

    torso: Literal["auto", "mlp", "a3c", "nature", "impala", "elite"] | Imported = "auto"
    """Feature layers. auto: nature for pixels, mlp for vectors. a3c: the small network of Mnih et al. 2016, which takes
    a third of nature's time. elite: the network of the elite replay platform, with small strides and many filters.
    module:NAME: your own, created by calling NAME with the shape of an observation."""
    encoders: Mapping[str, EncoderConfig] = field(default_factory=dict[str, EncoderConfig])
    """Observations of several arrays: layers for the array NAME. auto: an image gets the layers of policy.torso; all
    other arrays share one mlp, which reads whole numbers as one-hot vectors, or as embeddings if they have more than 64
    values together. nature, impala, a3c, elite: layers for an image. mlp: an mlp for this array alone. one_hot,
    embedding: how the shared mlp reads whole numbers. none: the array is ignored. like:LEAF: the layers and weights of
    another array of the same shape. module:NAME: your own, as in policy.torso. --policy.encoders.NAME.fc-size,
    .hidden-sizes and .embedding-size (32) set sizes that differ from the policy's. The network sees the mask of actions
    only if you set an encoder for action_mask."""
    join_size: Units = 256
    """Observations of several arrays, without a recurrent core: units of the layer that joins the features of
    images, of the shared mlp and of mlps for single arrays, >= 1."""
    hidden_sizes: Annotated[tuple[Units, ...], Meta(max_length=64)] = (64, 64)
    """Units of each layer of the mlp torso, each >= 1; 64-64 as in OpenAI Baselines."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Activation of the mlp torso and of the layers of head_sizes."""
    separate_value: bool = True
    """mlp torso without a recurrent core: use separate hidden layers for the value. Off, and with any other
    network: value and actions share their layers."""
    last_filters: Units = 64
    """Filters of the nature torso's third convolution: 64 (Mnih et al. 2015) or 32 (GALA)."""
    tile_size: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Grids of symbols, such as MiniGrid's, with a recurrent core: units per tile of a layer whose weights all tiles
    share, in front of an mlp. A second shared layer has twice as many units, and their maxima over tiles show what is
    anywhere in the grid. 0, a torso other than auto, or no core: the mlp reads the symbols directly."""
    fc_size: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Units of the fully connected layer after the convolutions. 0: 512 for nature and elite, 256 for a3c and
    impala."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layers between torso and heads. Their state is reset at the start of each episode."""
    core_size: Annotated[int, Meta(ge=1, le=16384)] = 256
    """Units of each recurrent layer, >= 1; 256 as in IMPALA."""
    core_layers: Annotated[int, Meta(ge=1, le=16)] = 1
    """Recurrent layers, >= 1."""
    forget_bias: Annotated[float, Meta(ge=-20, le=20)] = 0.0
    """Initial bias of an LSTM's forget gates and of a GRU's update gates. In each step of an
    untrained network a cell keeps the fraction sigmoid(bias) of its value: 0.5 with bias 0, 0.98
    with bias 4, which helps to learn from observations of many steps ago (Jozefowicz et al.
    2015)."""
    head_sizes: Annotated[tuple[Units, ...], Meta(max_length=64)] = ()
    """Units of each layer between recurrent layers and heads, each >= 1. They receive the output of the recurrent
    layers and the present observation's features. Empty, or without recurrent layers: none."""
    last_reward: bool = False
    """Feed the previous reward, clipped to [-1, 1], to the layers after the torso."""
    last_action: bool = False
    """Feed the previous action (one-hot for discrete kinds) to the layers after the torso."""
    normalize_obs: bool = True
    """Normalise each element of the observation by its running mean and deviation. Off: pixels are divided by 255,
    vectors are used unchanged."""
    normalize_steps: Whole = 0
    """Stop updating the mean and deviation of observations after this many env steps of all learners. 0:
    never."""
    obs_clip: Positive = 10.0
    """Normalised vector observations are clipped to +- this many deviations, > 0."""
    pixel_std_floor: Positive = 10.0
    """Smallest deviation to divide a pixel by, in grey levels, > 0, so that pixels that hardly change are not
    amplified."""
    init_log_std: Annotated[float, Meta(ge=-20, le=20)] | Literal["auto"] = 0.0
    """Gaussian actions: natural logarithm of the initial standard deviation of each component, in units of the
    policy's actions. auto: the variances of all components sum to 3, so that the noise costs the same for any
    number of components if the environment charges the square of an action."""
    squash: bool = False
    """Gaussian actions: squash actions into their bounds with tanh. Needs finite bounds. The entropy bonus remains that
    of the Gaussian, so a large entropy_cost pushes actions to their bounds."""
    scale_actions: bool = False
    """Gaussian actions: map the policy's -1 and 1 to an action's bounds, if they are finite, so that the initial
    deviation means the same in every environment. Off: the policy acts in the environment's own units."""
    noise_correlation: BelowOne = 0.0
    """Gaussian actions: correlation between the noise of successive actions, in [0, 1). Correlated noise explores
    further than white noise, which cancels out; the distribution of each single action stays the same. Evaluations
    use white noise. The noise is an autoregressive process; Hollenstein et al. 2024 (arXiv:2312.11091) use coloured
    noise for PPO."""

    @property
    def has_own_code(self) -> bool:
        """Whether some of its layers are the user's, named as module:NAME."""
        return ":" in self.torso or any(x.is_own for x in self.encoders.values())

    def encoder_of(self, leaf: str) -> EncoderConfig | None:
        """Return what is set for a leaf; None: nothing, or it is the whole observation."""
        return self.encoders.get(folded(leaf)) if leaf else None


def folded(leaf: str) -> str:
    """Return the name of a leaf as settings have it."""
    return leaf.replace("-", "_")
