"""Settings that somebody asked for and that change nothing in this run, with what leaves them without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossamer.config import own_parts
from gossamer.envs.settings import is_native
from gossamer.policies.tiles import shares_tiles
from gossamer.replay.selectors.base import Selector
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.system.reading import clipped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gossamer.config import TrainConfig
    from gossamer.spec import EnvSpec


WEIGHTS = ["policy.init_log_std", "policy.forget_bias", "same_start"]
"""Settings that matter for first weights alone."""


def unused_in_words(
    config: TrainConfig, spec: EnvSpec, asked: Collection[str], weights: str = ""
) -> list[str]:
    """Return a line for each reason why something that was asked for changes nothing.

    Args:
        config: of the run.
        spec: of its environment.
        asked: dotted names of the settings that somebody typed.
        weights: whose weights the learners begin with, in words; empty: new ones.
    """
    lines: list[str] = []
    left = {*asked}
    learnt = [(WEIGHTS, f"learners begin with the weights of {weights}")] if weights else []
    for names, why in (*learnt, *unused(config, spec)):
        typed = [name for name in names if name in left]
        left.difference_update(typed)
        if idle := [f"{name} {_shown(config, name)}" for name in typed]:
            change = "changes" if len(idle) == 1 else "change"
            lines.append(f"{' and '.join(idle)} {change} nothing: {why}")
    return lines


def _shown(config: TrainConfig, name: str) -> str:
    value: Any = config
    for part in name.split("."):
        value = value[int(part)] if part.isdecimal() else getattr(value, part)
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return clipped(text or "none", 60)


def unused(config: TrainConfig, spec: EnvSpec) -> Iterator[tuple[list[str], str]]:
    """Yield names of settings that change nothing, and why."""
    yield from _of_optimizer(config)
    yield from _of_network(config, spec)
    policy = config.policy
    if not config.algorithm.value_norm:
        yield ["algorithm.popart"], "algorithm.value_norm is off"
    if not policy.normalize_obs:
        names = ["policy.obs_clip", "policy.pixel_std_floor", "policy.normalize_steps"]
        yield names, "policy.normalize_obs is off"
    if config.placement != "cluster":
        names = [f"cluster.{x}" for x in vars(config.cluster)]
        yield names, f"placement is {config.placement}, not cluster"
    if not is_native(config.env_id):
        name = config.env_id
        yield (
            ["env_threads"],
            f"{name} is stepped by its actor, or by as many processes as env.workers",
        )
    if config.num_learners == 1:
        shared = [f"replays.{i}.shared" for i in range(len(config.replays))]
        yield ["same_start", *shared], "there is one learner"
    if config.known_lag != "free":
        at = config.replays.index(config.queue)
        yield (
            [f"replays.{at}.capacity"],
            f"only with lag free may trajectories wait, and lag is {config.known_lag}",
        )
    for i, replay in enumerate(config.replays):
        if isinstance(replay, Selector) and replay.capacity is not None:
            why = f"replays.{i}.capacity is {replay.capacity} (--replays.{i}.capacity none takes that back)"
            yield [f"replays.{i}.capacity_steps"], why
        if isinstance(replay, EliteSettings) and own_parts.name_of(type(replay)) is None:
            yield from _of_elite(f"replays.{i}", replay)
    if len(config.replays) == 1:
        yield ["prefetch_batches"], "nothing is replayed"
    if not config.evaluation.every_seconds:
        # Which tasks are held out matters to `gossamer eval` too.
        others = {*vars(config.evaluation)} - {"every_seconds", "held_out_tasks"}
        names = [f"evaluation.{x}" for x in sorted(others)]
        yield names, "evaluation.every_seconds is 0, so nothing is evaluated"


def _of_elite(name: str, replay: EliteSettings) -> Iterator[tuple[list[str], str]]:
    if replay.distance != "lp":
        yield [f"{name}.norm_order"], f"{name}.distance is {replay.distance}, not lp"
    if replay.insert != "elite":
        yield [f"{name}.elite_batch"], f"{name}.insert is {replay.insert}, not elite"
    if not replay.still_measures(0):
        at = "anneal_updates" if not replay.anneal_updates else "candidate_multiplier"
        why = (
            f"{name}.{at} is {getattr(replay, at):g}, so no more columns are drawn than are needed"
        )
        yield [f"{name}.strategy", *[f"{name}.distance"] * (replay.insert != "elite")], why


def _of_optimizer(config: TrainConfig) -> Iterator[tuple[list[str], str]]:
    optimizer = config.optimizer
    if optimizer.name.startswith("rmsprop"):
        names = ["optimizer.beta1", "optimizer.beta2"]
        yield names, f"optimizer.name is {optimizer.name}, which has a decay and a momentum"
    else:
        yield ["optimizer.decay"], f"optimizer.name is {optimizer.name}, which has beta2"
    if optimizer.schedule != "polynomial":
        yield (
            ["optimizer.schedule_power"],
            f"optimizer.schedule is {optimizer.schedule}, not polynomial",
        )
    if optimizer.schedule == "constant":
        yield ["optimizer.schedule_end"], "optimizer.schedule is constant"


def _of_network(config: TrainConfig, spec: EnvSpec) -> Iterator[tuple[list[str], str]]:
    policy = config.policy
    if not spec.action.num_gaussian:
        names = ["noise_correlation", "init_log_std", "scale_actions"]
        yield [f"policy.{x}" for x in names], "no action is continuous"
    if policy.squash:
        yield ["policy.scale_actions"], "policy.squash is on, which scales actions too"
    if policy.core == "none":
        names = ["core_size", "core_layers", "forget_bias", "head_sizes", "tile_size"]
        yield (
            [f"policy.{x}" for x in names],
            "policy.core is none, so there are no recurrent layers",
        )
    if not spec.sees_one or policy.encoders or ":" in policy.torso:
        return  # a leaf of its own kind may use any of them
    pixels = spec.leaf.kind == "pixels"
    torso = policy.torso
    if torso == "auto":
        torso = "nature" if pixels else "mlp"
    why = f"policy.torso is {torso}"
    yield ["policy.join_size"], "observations are one array"
    if torso == "mlp":
        yield ["policy.fc_size", "policy.last_filters"], why
        if policy.core != "none" and not shares_tiles(spec.leaf, policy):
            plain = (
                "policy.torso is mlp" if spec.leaf.tiles else "observations are no grid of symbols"
            )
            yield ["policy.tile_size"] * (policy.tile_size > 0), plain
    else:
        names = ["policy.hidden_sizes"]
        names += ["policy.separate_value"] * (policy.core == "none")
        names += ["policy.activation"] * (policy.core == "none" or not policy.head_sizes)
        names += ["policy.last_filters"] * (torso != "nature")
        yield names, why
    if policy.core != "none":
        yield (
            ["policy.separate_value"],
            f"policy.core is {policy.core}, whose output value and actions share",
        )
    if policy.normalize_obs:
        name = "policy.obs_clip" if pixels else "policy.pixel_std_floor"
        yield [name], f"observations are {'images' if pixels else 'no images'}"
