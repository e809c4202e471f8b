"""From sources of settings to one `TrainConfig`: the precedence lives here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from gossamer.algorithms.base import Algorithm
from gossamer.config import own_parts
from gossamer.config.check import first_learnt, may_deal_rows, validate
from gossamer.config.cores import (
    AUTO,
    LEAST_ENV_STEPS,
    MIXED,
    MIXED_RATE,
    envs_for,
    is_plain,
    learners_for,
)
from gossamer.config.files import config_layer, suite_layer
from gossamer.config.merging import Layer, merge
from gossamer.config.names import entries_of, nested
from gossamer.config.suggestions import REMOVED
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import Tree, as_written, fields_of, to_tree
from gossamer.config.values import spells_number
from gossamer.envs.settings import suite_of
from gossamer.errors import ConfigError
from gossamer.machine import visible_gpus
from gossamer.policies.settings import LIKE
from gossamer.record.machines import TUNABLE, tuned_settings
from gossamer.record.origin import began_here, is_found
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.system.cores import num_cores
from gossamer.system.reading import clipped, quoted

if TYPE_CHECKING:
    import os

    from gossamer.replay.settings import ReplaySettings

COMMAND_LINE = "command line"
"""Layer label of what was typed."""
GIVEN = "settings"
"""Layer label of what a program gave."""
RESUMED = "resumed run"
"""Layer label of what a resumed run had saved."""
FOR_REPLAYS = "for replays"
"""Layer label of the algorithm that is taken where replays are asked for, and no algorithm."""
REPLAYING = "laser"
"""That algorithm: it learns from older data, as far as its policy is still near."""
TUNED = "tuned on this machine"
"""Layer label of what `gossamer tune` found."""
ONE_HERE = "1 here"
"""End of the layer label of a number of learners that the machine decides, where it is kept out."""
SHAPE = TUNABLE | {
    "num_envs", "unroll_length", "learners_per_process", "actors_per_learner", "placement", "device", "precision",
    "lag", "replays", "replay_ratio", "policy", "topology",
}  # fmt: skip
"""Settings with which something else may be fastest."""


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return a config as nested dicts of JSON values."""
    return to_tree(config)


def from_dict(settings: Tree) -> TrainConfig:
    """Return the config that `to_dict` described, of an older version too; settings left out have their defaults.

    Raises:
        ConfigError: unknown name, wrong type, or out of range.
    """
    known = {name: x for name, x in settings.items() if name not in REMOVED}
    return merge(TrainConfig, [Layer("config", known)])[0]


def resolve(
    command_line: Tree | None = None,
    *,
    configs: Sequence[str] = (),
    resumed: Tree | None = None,
    given: Tree | None = None,
    machine: Literal["tuned", "cores", ""] = "tuned",
) -> tuple[TrainConfig, dict[str, str]]:
    """Resolve settings: command line over files over resumed run over machine over suite over defaults.

    Args:
        command_line: nested settings as typed; text stands for numbers.
        configs: files and presets; later ones win over earlier ones.
        resumed: the saved config of a run to continue.
        given: nested settings from Python, in place of what was typed.
        machine: what of it decides where nobody else does: its cores and what `gossamer tune` found; its cores; nothing,
            for runs that share it.

    Returns:
        The validated config, and for every dotted setting name the layer that set it.

    Raises:
        ConfigError: unknown name, wrong type, or a combination that cannot work.
    """
    layers = gather_layers(command_line, configs=configs, resumed=resumed, given=given)
    config, origin, layers = merge_layers(layers, machine)
    layers += _fitting(config, origin)
    config, origin = merge(TrainConfig, layers)
    config = _merge_ratio(config, origin, [layer.label for layer in layers])
    validate(config)
    return config, origin


def gather_layers(
    command_line: Tree | None = None,
    *,
    configs: Sequence[str] = (),
    resumed: Tree | None = None,
    given: Tree | None = None,
) -> list[Layer]:
    """Return what somebody set, lowest first; see `resolve`."""
    # A setting that the run's version did not have yet is as it was before: the suite's may be newer.
    layers = [Layer(RESUMED, to_dict(from_dict(resumed)))] if resumed else []
    layers += [config_layer(name) for name in configs]
    if command_line:
        layers.append(Layer(COMMAND_LINE, command_line, typed=True))
    if given:
        layers.append(Layer(GIVEN, as_written(given)))
    return [layer._replace(settings=nested(layer.settings)) for layer in layers]


def merge_layers(
    layers: list[Layer], machine: Literal["tuned", "cores", ""] = "tuned"
) -> tuple[TrainConfig, dict[str, str], list[Layer]]:
    """Return the config of layers over the machine, the suite and defaults, not yet checked as a whole.

    Returns:
        The config, the layer that set each setting, and all layers, lowest first.
    """
    machine = "" if is_plain() else machine
    env_id = _environment_of(layers)
    # The return at which to stop is one of the environment that its layer names.
    layers = [
        x if x.settings.get("env_id", env_id) == env_id else x.without("stop_at_return")
        for x in layers
    ]
    if _algorithm_of(layers) is None and any(_replays_older(layer.settings) for layer in layers):
        layers.insert(0, Layer(FOR_REPLAYS, {"algorithm": {"name": REPLAYING}}))
    if isinstance(env_id, str) and env_id:
        suite = suite_layer(suite_of(env_id), _algorithm_of(layers))
        algorithm = _algorithm_of([suite, *layers]) or ""
        found = _tuned_layer(env_id, algorithm, layers) if machine == "tuned" else None
        layers = [suite, *([found] if found else []), *layers]
    layers, decided, tuned = _without_auto(layers)
    config, origin = merge(TrainConfig, layers)
    if decided:
        if tuned:
            count, why = tuned, f"{tuned} learner{'s' * (tuned != 1)}"
        elif machine:
            count, why = learners_for(config, num_cores(), gpu=bool(visible_gpus()))
        else:
            count, why = 1, ONE_HERE
        layers += learners_layers(config, origin, count, label=decided, why=why)
        config, origin = merge(TrainConfig, layers)
    return config, origin, layers


def _environment_of(layers: Sequence[Layer]) -> Any:
    """Return the environment that the highest layer names; a run that is resumed stays in its own."""
    env_id: Any = ""
    for layer in layers:
        asked = layer.settings.get("env_id", env_id)
        if env_id and asked != env_id and layers[0].label == RESUMED:
            raise ConfigError(
                f"the run to resume trains {env_id}, not {asked}; leave the environment out, or start "
                f"a new run from its policy: gossamer train {quoted(str(asked))} --init-from RUN"
            )
        env_id = asked
    return env_id


def _replays_older(settings: Tree) -> bool:
    """Whether settings ask for data of older policies."""
    ratio, replays = settings.get("replay_ratio"), entries_of(settings.get("replays"))
    if spells_number(ratio) and float(cast("Any", ratio)) > 0.0:
        return True
    return any(_kind_of(x, index) != "queue" for index, x in replays.items())


def _kind_of(replay: Any, index: str) -> Any:
    """Return the kind of an entry; one without a name is the queue if it is the first, else a replay."""
    entry = nested(cast("Tree", replay)) if isinstance(replay, Mapping) else {"name": replay}
    return entry.get("name", "queue" if index == "0" else "")


def _tuned_layer(env_id: str, algorithm: str, above: Sequence[Layer]) -> Layer | None:
    """Return what `gossamer tune` found for just this run; None: nothing, or the layers above make it another run."""
    if any(layer.label == RESUMED or _shapes(layer.settings) for layer in above):
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
    names = {x for x, value in settings.items() if (x, value) != ("num_learners", AUTO)}
    return bool(tuned) or not SHAPE.isdisjoint(names)


def _without_auto(layers: Sequence[Layer]) -> tuple[list[Layer], str, int]:
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
    chosen = not _is_preset(origin["topology.name"])
    if count > 1 and chosen and not config.topology.talks:
        count, why = 1, f"1 with topology {config.topology.name}"
    layers = [Layer(f"{label}, {why}", {"num_learners": count})]
    if count == 1 or chosen:
        return layers
    with_them = f"with {count} learners"
    mixed = merge(TrainConfig, [Layer("", {"topology": MIXED})])[0].topology
    layers.append(Layer(with_them, {"topology": to_tree(mixed)}))
    # A batch and a rate that somebody chose stay what they are.
    theirs = ("num_envs", "unroll_length", "optimizer.learning_rate", "algorithm.num_minibatches")
    if config.num_envs and all(_is_preset(origin[name]) for name in theirs):
        rates = [MIXED_RATE * rate for rate in config.optimizer.learning_rate]
        smaller = {"num_envs": min(envs_for(count), config.num_envs)}
        layers.append(
            Layer(f"{label}, {with_them}", {**smaller, "optimizer": {"learning_rate": rates}})
        )
    return layers


def _algorithm_of(layers: Sequence[Layer]) -> str | None:
    """Return the name that the highest layer gives that gives one; of a class of the user's that of ours it is derived from."""
    for layer in reversed(layers):
        asked = layer.settings.get("algorithm")
        name = asked.get("name") if isinstance(asked, Mapping) else asked
        if not isinstance(name, str):
            continue
        try:
            mro = own_parts.find(name, Algorithm).__mro__ if ":" in name else ()
        except ConfigError:  # told where it is chosen
            return name
        bases = (x for x in mro if issubclass(x, Algorithm) and x is not Algorithm)
        return next((x.name for x in bases if own_parts.is_ours(x)), name)
    return None


def _fitting(config: TrainConfig, origin: Mapping[str, str]) -> Iterator[Layer]:
    """Yield layers that fit settings that nobody asked for to those that somebody asked for."""
    # No more minibatches than environments.
    most, before = config.num_envs, origin["algorithm.num_minibatches"]
    rows = may_deal_rows(config) and suite_of(config.env_id) != "atari"
    if _is_preset(before) and not rows and 0 < most < config.algorithm.num_minibatches:
        yield Layer(f"{before}, at most num_envs", {"algorithm": {"num_minibatches": most}})
    # A run that somebody wants short learns from its first batch on.
    before = origin["optimizer.learn_start"]
    if _is_preset(before) and 10 * first_learnt(config) > config.total_env_steps:
        yield Layer(f"{before}, 0 for so few steps", {"optimizer": {"learn_start": 0}})


def _is_preset(origin: str) -> bool:
    return origin == "default" or origin.startswith("suite ")


def with_ratio(config: TrainConfig) -> TrainConfig:
    """Turn the `replay_ratio` of a config that was built in Python into the fractions it stands for.

    Raises:
        ConfigError: there are replays with fractions too.
    """
    if config.replay_ratio <= 0.0:
        return config
    if len(config.replays) > 1:
        raise _two_shares(config.replay_ratio)
    return replace(config, replay_ratio=0.0, replays=_shared_out(config))


def _merge_ratio(config: TrainConfig, origin: dict[str, str], labels: Sequence[str]) -> TrainConfig:
    """Turn `replay_ratio` into the fractions it stands for, unless a higher layer gives fractions.

    Raises:
        ConfigError: one layer gives both, or there is more than one replay.
    """
    ratio, label = config.replay_ratio, origin["replay_ratio"]
    whole = origin.pop("replays", "")
    if label not in labels:
        return config
    rank = {name: at for at, name in enumerate(labels)}
    fractions = [x for n, x in origin.items() if re.fullmatch(r"replays\.\d+\.fraction", n)]
    if len(config.replays) == 1:  # a list of a queue alone says as much
        fractions.append(whole)
    highest, own = max(rank.get(x, -1) for x in fractions), rank[label]
    if highest == own:
        # Every saved config has a ratio of 0 beside fractions. Before a ratio became fractions at
        # once, configs were saved with a ratio and a queue alone.
        alone = len(config.replays) == 1 and config.replays[0].fraction == 1.0
        if label == COMMAND_LINE or (ratio > 0.0 and label != RESUMED and not alone):
            raise _two_shares(ratio)
        if ratio <= 0.0:
            return config
    if highest > own:
        origin["replay_ratio"] = "default"
        return replace(config, replay_ratio=0.0)
    made = replace(config, replay_ratio=0.0, replays=_shared_out(config))
    before = {name: origin.pop(name) for name in list(origin) if name.startswith("replays.")}
    kinds = [replay.name for replay in config.replays]
    for i, replay in enumerate(made.replays):
        old = kinds.index(replay.name) if replay.name in kinds else -1
        for name in ("name", *fields_of(type(replay))):
            origin[f"replays.{i}.{name}"] = before.get(f"replays.{old}.{name}", "default")
        origin[f"replays.{i}.fraction"] = label
    origin["replay_ratio"] = "in the fractions"
    return made


def _shared_out(config: TrainConfig) -> tuple[ReplaySettings, ...]:
    """Return the replays with the fractions that `replay_ratio` stands for; of 0 the queue alone."""
    ratio, replays = config.replay_ratio, config.replays
    if ratio <= 0.0:
        return tuple(replace(x, fraction=1.0) for x in replays if x.name == "queue") or replays
    if len(replays) == 1:
        replays = (*replays, UniformSettings())
    if len(replays) > 2:
        kinds = ", ".join(replay.name for replay in replays)
        raise ConfigError(
            f"replay_ratio is {ratio:g}, which works with one replay beside the queue, but replays holds {kinds}; "
            "give every replay a fraction instead"
        )
    return tuple(
        replace(x, fraction=(1.0 if x.name == "queue" else ratio) / (1.0 + ratio)) for x in replays
    )


def _two_shares(ratio: float) -> ConfigError:
    return ConfigError(
        f"replay_ratio is {ratio:g}, but replays has fractions as well; leave one of the two out"
    )


def make_config(
    env_id: str = "",
    settings: Mapping[str, Any] | None = None,
    *,
    presets: Sequence[str] = (),
    resume: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> TrainConfig:
    """Return the config that `gossamer train ENV` would use; only the command starts actor processes that nobody asked for.

    Later sources override earlier ones: the defaults in the code, the suite's defaults, a resumed run's settings, presets,
    settings.

    Args:
        env_id: the environment's id; empty: the id that a preset or the resumed run names.
        settings: settings by field name, nested or dotted: `{"algorithm": {"name": "ppo"}, "algorithm.passes": 3}`.
        presets: preset names or settings files (.toml or .json); later ones win.
        resume: a run to continue; settings that you do not give come from this run.
        trust: import the environment and parts that the resumed run names, even if it comes from another machine or
            user.

    Returns:
        All settings, checked; `train(config)` trains with them.

    Raises:
        ConfigError: the settings contain a mistake, or the run does not exist.
    """
    given = {**(settings or {}), **({"env_id": env_id} if env_id else {})}
    saved = saved_settings(resume, given=given, configs=presets, trust=trust)
    return resolve(given=given, configs=presets, resumed=saved)[0]


def in_python(name: str, value: str) -> str:
    """Say what to write in Python so that the code of this setting is used."""
    return f"env_id={value!r}, or trust=True" if name == "env_id" else "trust=True"


def saved_settings(
    run: str | os.PathLike[str] | None,
    *,
    given: Tree | None = None,
    configs: Sequence[str] = (),
    trust: bool = False,
    how: Callable[[str, str], str] = in_python,
) -> dict[str, Any] | None:
    """Return what a run was trained with; None for no run.

    Args:
        run: which.
        given: settings given beside it; code they name may be imported.
        configs: files and presets given beside it; likewise.
        trust: import whatever the run names.
        how: what to type, for the error, so that the code of a setting is used, by its dotted name and value.

    Raises:
        ConfigError: there is no such run, its settings are damaged, or they would import code and nothing shows that
            the run began here.
    """
    if run is None:
        return None
    from gossamer.record.folder import RunFolder  # loads what --help does not need

    folder = RunFolder.open(run)
    saved = folder.read_settings()
    code = code_in(saved)
    named = [given or {}, *(config_layer(name).settings for name in configs)]
    again = {value for tree in named for value in code_in(tree).values()}
    foreign = [item for item in code.items() if item[1] not in again and is_found(item[1])]
    try:
        trust = trust or not foreign or began_here(folder.read_json("meta.json"), code.values())
    except ConfigError:  # nothing shows it
        trust = False
    if trust:
        return saved
    name, value = foreign[0]
    others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
    raise ConfigError(
        f"{folder.path} would import and call {clipped(value)}{others} ({name} in its config.json), and nothing shows "
        f"that you began this run on this machine; if you trust it, type {how(name, value)}"
    )


def code_in(settings: Tree) -> dict[str, str]:
    """Return, by dotted name, what settings would have imported: an environment or a part, as module:NAME.

    This depends on the settings alone, not on which classes are known already.
    """
    tree = nested(settings)
    named = {name: tree.get(name) for name in ("env_id", "algorithm", "topology")}
    policy = entries_of(tree.get("policy"))
    named["policy.torso"] = policy.get("torso")
    encoders = entries_of(policy.get("encoders"))
    named |= {f"policy.encoders.{name}": encoder for name, encoder in encoders.items()}
    named |= {f"replays.{key}": replay for key, replay in entries_of(tree.get("replays")).items()}
    found: dict[str, str] = {}
    for path, value in named.items():
        if isinstance(value, Mapping):
            path, value = f"{path}.name", nested(cast("Tree", value)).get("name")
        # An encoder that is like another leaf's is no code.
        is_like = path.startswith("policy.encoders.") and str(value).startswith(LIKE)
        if isinstance(value, str) and ":" in value and not is_like:
            found[path] = value
    if found.get("env_id", "").startswith("envpool:"):
        del found["env_id"]
    return found


def explicit(layers: Mapping[str, str]) -> set[str]:
    """Return the dotted names that the user set for this run, on the command line or in files."""
    given = (COMMAND_LINE, "--config ")
    return {name for name, label in layers.items() if label.startswith(given)}
