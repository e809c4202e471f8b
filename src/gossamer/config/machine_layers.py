"""Layers of settings that the machine decides: how many learners a run has, and what `gossamer tune` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from gossamer.config.cores import (
    AUTO,
    ENVS_OF_ONE,
    LEAST_ENV_STEPS,
    MIXED,
    MIXED_RATE,
    envs_for,
)
from gossamer.config.files import preset_names
from gossamer.config.merging import Layer, is_preset, merge
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import Tree, to_tree
from gossamer.config.values import spells_number
from gossamer.errors import ConfigError
from gossamer.record.tuned import TUNABLE, tuned_settings

TUNED = "tuned on this machine"
"""Layer label of what `gossamer tune` found."""
ONE_HERE = "1 here"
"""End of the layer label of a number of learners that the machine decides, where it is kept out."""
SHAPE = TUNABLE | {
    "num_envs", "unroll_length", "learners_per_process", "actors_per_learner", "placement", "device", "precision",
    "lag", "replays", "replay_ratio", "policy", "topology",
}  # fmt: skip
"""Settings with which something else may be fastest."""
ENV_SHAPE = {"workers", "frame_skip", "frame_stack", "size", "grayscale"}
"""Settings of environments of which the same is true."""


def tuned_layer(env_id: str, algorithm: str, above: Sequence[Layer]) -> Layer | None:
    """Return what `gossamer tune` found for just this run; None: nothing, or the layers above make it another run."""
    if any(_shapes(layer.settings) for layer in above):
        return None
    layer = Layer(TUNED, tuned_settings(env_id, algorithm))
    try:
        tuned = merge(TrainConfig, [layer])[0]
    except ConfigError:  # of another version, or changed by hand: it was only a help
        return None
    total = [x.settings["total_env_steps"] for x in above if "total_env_steps" in x.settings]
    short = any(spells_number(x) and float(x) < LEAST_ENV_STEPS for x in total)
    return layer if layer.settings and not (short and tuned.num_learners > 1) else None


def _shapes(settings: Tree) -> bool:
    """Whether settings decide something that changes what is fastest on a machine."""
    algorithm = settings.get("algorithm")
    tuned = isinstance(algorithm, Mapping) and set(cast("Tree", algorithm)) - {"name"}
    env = settings.get("env")
    shaped = isinstance(env, Mapping) and not ENV_SHAPE.isdisjoint(cast("Tree", env))
    names = {x for x, value in settings.items() if (x, value) != ("num_learners", AUTO)}
    return bool(tuned) or shaped or not SHAPE.isdisjoint(names)


def without_auto(layers: Sequence[Layer]) -> tuple[list[Layer], str, int]:
    """Return layers without a number of learners that the machine decides.

    Returns:
        The layers; the one that lets the machine decide, empty for none; and the number if `gossamer tune` found it, 0 if not.
    """
    kept, decided, count = [*layers], "", 0
    for i, layer in enumerate(layers):
        asked = layer.settings.get("num_learners")
        if asked == AUTO or (layer.label == TUNED and asked is not None):
            decided, count = layer.label, count if asked == AUTO else int(asked)
            kept[i] = layer.without("num_learners")
        elif asked is not None:
            decided, count = "", 0
    return kept, decided, count


def learners_layers(
    config: TrainConfig, origin: Mapping[str, str], count: int, *, label: str, why: str
) -> list[Layer]:
    """Return the layers of a number of learners that the machine decides; they gossip unless somebody chose how they mix.

    Args:
        config: merged settings.
        origin: which layer set each.
        count: of learners.
        label: layer that lets the machine decide.
        why: so many.
    """
    chosen = not is_preset(origin["topology.name"])
    if count > 1 and chosen and not config.topology.talks:
        count, why = 1, f"1 with topology {config.topology.name}"
    layers = [Layer(f"{label}, {why}", {"num_learners": count})]
    if count == 1 or chosen:
        return layers
    with_them = f"with {count} learners"
    mixed = merge(TrainConfig, [Layer("", {"topology": MIXED})])[0].topology
    layers.append(Layer(with_them, {"topology": to_tree(mixed)}))
    # A batch and a rate that somebody chose stay what they are; those of a preset are for one learner.
    theirs = ("num_envs", "unroll_length", "optimizer.learning_rate", "algorithm.num_minibatches")
    if config.num_envs and all(_is_of_one_learner(origin[name]) for name in theirs):
        rates = [MIXED_RATE * rate for rate in config.optimizer.learning_rate]
        envs = min(envs_for(count), config.num_envs)
        if not all(is_preset(origin[name]) for name in theirs):
            envs = max(config.num_envs * envs_for(count) // ENVS_OF_ONE, 1)
            if envs < min(config.algorithm.num_minibatches, config.num_envs):
                return layers  # it would have minibatches of nothing
        smaller = {"num_envs": envs, "optimizer": {"learning_rate": rates}}
        layers.append(Layer(f"{label}, {with_them}", smaller))
    return layers


def _is_of_one_learner(origin: str) -> bool:
    """Whether a layer's label says that code, a suite or a preset of ours has a setting, which is then meant for one learner."""
    flag, _, name = origin.partition(" ")
    return is_preset(origin) or (flag == "--config" and name in preset_names())
