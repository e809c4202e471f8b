"""From sources of settings to one `TrainConfig`: the precedence lives here and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from gossamer.algorithms.base import Algorithm
from gossamer.config import own_parts
from gossamer.config.check import first_learnt, may_deal_rows, validate
from gossamer.config.cores import AUTO, is_plain, learners_for, uses_gpu
from gossamer.config.files import config_layer, suite_layer
from gossamer.config.machine_layers import ONE_HERE, learners_layers, tuned_layer, without_auto
from gossamer.config.merging import RESUMED, Layer, is_preset, merge
from gossamer.config.names import Entries, entries_of, nested
from gossamer.config.saved_settings import saved_settings, settings_of_policy
from gossamer.config.suggestions import REMOVED, SAVED
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import Tree, as_written, fields_of, to_tree
from gossamer.config.values import spells_number
from gossamer.envs.settings import suite_of
from gossamer.errors import ConfigError
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.system.cores import num_cores
from gossamer.system.gpus import visible_gpus
from gossamer.system.reading import expand, quoted

if TYPE_CHECKING:
    from gossamer.replay.settings import ReplaySettings

COMMAND_LINE = "command line"
"""Layer label of what was typed."""
GIVEN = "settings"
"""Layer label of what a program gave."""
INHERITED = "the policy's run"
"""Layer label of what a run had saved from whose policy another begins."""
FOR_REPLAYS = "for replays"
"""Layer label of the algorithm that is taken where replays are asked for, and no algorithm."""
REPLAYING = "laser"
"""That algorithm: it learns from older data, as far as its policy is still near."""


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return a config as nested dicts of JSON values."""
    return to_tree(config)


def from_dict(settings: Tree) -> TrainConfig:
    """Return the config that `to_dict` described, of an older version too; settings left out have their defaults.

    Raises:
        ConfigError: unknown name, wrong type, or out of range.
    """
    known = {name: x for name, x in settings.items() if name not in REMOVED}
    return merge(TrainConfig, [Layer(SAVED, known)])[0]


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
    given = as_written(given or {})  # first: the run may name a class that is here
    # A setting that the run's version did not have yet is as it was before: the suite's may be newer.
    layers = [Layer(RESUMED, to_dict(from_dict(resumed)))] if resumed else []
    layers += [config_layer(name) for name in configs]
    if command_line:
        layers.append(Layer(COMMAND_LINE, command_line, typed=True))
    if given:
        layers.append(Layer(GIVEN, given))
    layers = [layer.table("") for layer in layers]
    for layer in layers:
        if isinstance(layer.settings.get("env"), str):
            raise ConfigError(
                f"{layer.label}: env holds settings of the environment; write its id as env_id"
            )
    return layers


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
    if _algorithm_of(layers) is None and _asks_for_older(layers):
        layers.insert(0, Layer(FOR_REPLAYS, {"algorithm": {"name": REPLAYING}}))
    if isinstance(env_id, str) and env_id:
        on_gpu = _computes_on_gpu(layers)
        suite = suite_layer(suite_of(env_id), _algorithm_of(layers), on_gpu=on_gpu)
        algorithm = _algorithm_of([suite, *layers]) or ""
        tunes = machine == "tuned" and all(x.label != RESUMED for x in layers)
        found = tuned_layer(env_id, algorithm, layers) if tunes else None
        if layers[0].label == RESUMED:
            layers = _with_resumed_learners(suite, layers)
        layers = [suite, *([found] if found else []), *_inherited(layers), *layers]
    layers, decided, tuned = without_auto(layers)
    config, origin = merge(TrainConfig, layers)
    if decided:
        if tuned:
            count, why = tuned, f"{tuned} learner{'s' * (tuned != 1)}"
        elif machine:
            count, why = learners_for(config, num_cores(), gpu=bool(visible_gpus()))
            if count > 1 and _asks_for_older(layers):  # by a ratio, which is no replay yet
                count, why = 1, "1 with replays"
        else:
            count, why = 1, ONE_HERE
        layers += learners_layers(config, origin, count, label=decided, why=why)
        config, origin = merge(TrainConfig, layers)
    return config, origin, layers


def _with_resumed_learners(suite: Layer, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers of a run that is resumed, whose number of learners stays, whoever decided on it when it began.

    Where that was the machine, a preset that is named again is for one learner, as it was then.
    """
    resumed, *above = layers
    asked = [x.settings["num_learners"] for x in above if "num_learners" in x.settings]
    if asked[-1:] == [AUTO]:
        above = [x.without("num_learners") for x in above]
    presets = [x for x in above if x.label not in (COMMAND_LINE, GIVEN)]
    count = resumed.settings["num_learners"]
    if not presets or count == 1 or (asked and asked[-1] != AUTO):
        return [resumed, *above]
    try:
        config, origin = merge(TrainConfig, [suite.without("num_learners"), *presets])
    except ConfigError:  # what only the layers above make possible
        return [resumed, *above]
    made = learners_layers(config, origin, count, label=suite.label, why="")
    begun = merge(TrainConfig, [suite.without("num_learners"), *presets, *made])[0]
    before = merge(TrainConfig, [resumed])[0]
    two = [(x.num_envs, x.topology, x.optimizer.learning_rate) for x in (begun, before)]
    if two[0] != two[1]:
        return [resumed, *above]  # somebody chose otherwise when it began
    return [resumed, *presets, made[-1], *above[len(presets) :]]


def _inherited(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield what a new run has of the one from whose policy it begins: with other settings it would be another policy."""
    asked = [x.settings["init_from"] for x in layers if "init_from" in x.settings]
    if (
        asked
        and isinstance(asked[-1], (str, os.PathLike))
        and all(x.label != RESUMED for x in layers)
    ):
        run: str | os.PathLike[str] = asked[-1]
        if run:
            yield Layer(INHERITED, settings_of_policy(run))


def _computes_on_gpu(layers: Sequence[Layer]) -> bool:
    """Whether the highest layer that names a device names a GPU, or lets the machine choose, which has one."""
    asked = [x.settings["device"] for x in layers if "device" in x.settings]
    return uses_gpu(asked[-1] if asked else "auto", gpu=bool(visible_gpus()))


def _environment_of(layers: Sequence[Layer]) -> Any:
    """Return the environment that the highest layer names; a run that is resumed stays in its own."""
    named = [x.settings["env_id"] for x in layers if "env_id" in x.settings]
    if not named:
        return ""
    if named[-1] != named[0] and layers[0].label == RESUMED:
        raise ConfigError(
            f"the run to resume trains {named[0]}, not {named[-1]}; leave the environment out, or start "
            f"a new run from its policy: gossamer train {quoted(str(named[-1]))} --init-from RUN"
        )
    return named[-1]


def _asks_for_older(layers: Sequence[Layer]) -> bool:
    """Whether layers ask for data of older policies; a ratio of 0, or a list of a queue alone, takes back what is below."""
    asked = False
    for layer in layers:
        ratio, replays = layer.settings.get("replay_ratio"), layer.settings.get("replays")
        if _replays_older(layer.settings):
            asked = True
        elif spells_number(ratio) or isinstance(replays, (list, tuple, Entries)):
            asked = False
    return asked


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
    if is_preset(before) and not rows and 0 < most < config.algorithm.num_minibatches:
        yield Layer(f"{before}, at most num_envs", {"algorithm": {"num_minibatches": most}})
    # A run that somebody wants short learns from its first batch on.
    before = origin["optimizer.learn_start"]
    if is_preset(before) and 10 * first_learnt(config) > config.total_env_steps:
        yield Layer(f"{before}, 0 for so few steps", {"optimizer": {"learn_start": 0}})


def as_read(config: TrainConfig) -> TrainConfig:
    """Return a config that was built in Python as `resolve` reads one: paths as text, numpy's numbers as Python's.

    Its `replay_ratio` becomes the fractions it stands for.

    Raises:
        ConfigError: wrong type, out of range, or there are replays with fractions beside a ratio.
    """
    config = merge(TrainConfig, [Layer("", as_written(config))])[0]
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
    presets: Sequence[str] | str | os.PathLike[str] = (),
    resume: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> TrainConfig:
    """Return the config that `gossamer train ENV` would use; only the command starts actor processes that nobody asked for.

    Later sources override earlier ones: the defaults in the code, the suite's defaults, a resumed run's settings, presets,
    settings.

    Args:
        env_id: the environment's id; empty: the id that a preset or the resumed run names.
        settings: settings by field name, nested or dotted: `{"algorithm": {"name": "ppo"}, "algorithm.passes": 3}`.
        presets: preset names or settings files (.toml or .json); later ones win. One needs no list.
        resume: a run to continue; settings that you do not give come from this run.
        trust: import the environment and parts that the resumed run names, even if it comes from another machine or
            user.

    Returns:
        All settings, checked; `train(config)` trains with them.

    Raises:
        ConfigError: the settings contain a mistake, or the run does not exist.
    """
    given = nested(as_written(settings or {}))
    presets = [os.fspath(presets)] if isinstance(presets, (str, os.PathLike)) else presets
    if env_id and given.setdefault("env_id", env_id) != env_id:
        raise ConfigError(
            f"env_id is {given['env_id']}, but the environment is {env_id}; leave one of them out"
        )
    if resume is not None:
        given = _beside_resume(given, resume)
    saved = saved_settings(resume, given=given, configs=presets, trust=trust)
    return resolve(given=given, configs=presets, resumed=saved)[0]


def _beside_resume(given: Mapping[str, Any], resume: str | os.PathLike[str]) -> dict[str, Any]:
    """Refuse what a run that goes on would not do; a program that begins it or goes on with it may name its folder.

    That leaves what was for the beginning.
    """
    from gossamer.record.folder import RunFolder  # loads what --help does not need

    if folder := given.get("run_folder"):
        there = expand(os.fspath(folder)).resolve() == RunFolder.open(resume).path.resolve()
        if there:
            return {x: y for x, y in given.items() if x not in ("run_folder", "init_from")}
    for name, why in (
        (
            "run_folder",
            "a run stays where it is; leave it out, or begin a new run from its policy: init_from",
        ),
        ("init_from", "which goes on with what the run has learnt; leave one of them out"),
    ):
        if given.get(name):
            raise ConfigError(f"{name} cannot be given with resume, {why}")
    return dict(given)


def explicit(layers: Mapping[str, str]) -> set[str]:
    """Return the dotted names that the user set for this run, on the command line or in files."""
    given = (COMMAND_LINE, "--config ")
    return {name for name, label in layers.items() if label.startswith(given)}
