"""The file of a sweep: what is fixed, what is searched, how, and by what trials are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence  # noqa: TC003 - options are read by their annotations
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from gossamer.config import TrainConfig
from gossamer.config.files import config_layer
from gossamer.config.names import did_you_mean, nested, place
from gossamer.config.tree import fields_of
from gossamer.config.values import read_value, shown
from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.record.objectives import Judge, Objective
from gossamer.sweep.elite_platform import read_experiments
from gossamer.sweep.presets import preset_of
from gossamer.sweep.space import Space, encoded, grid_choice, grid_size, read_space
from gossamer.system.ranges import Number, Seed
from gossamer.system.reading import expand

MAX_TRIALS = 100_000
MAX_CHECKED = 300
"""Combinations of a grid that are tried against the settings before anything begins."""
OWN = ("seed", "run_folder")
"""Settings that differ between the runs of a trial."""
Method = Literal["grid", "random", "tpe", "list"]


@dataclass(frozen=True)
class Options:
    """What stands beside the tables [settings] and [search]."""

    method: Literal["grid", "random", "tpe"] = "random"
    """grid: every combination. random: independent draws. tpe: Optuna's tree-structured Parzen estimator."""
    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] | None = None
    """Number of trials, >= 1; a grid has as many as combinations."""
    seeds: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Runs of a trial, in [1, 1000], each with a seed of its own; a trial is worth their mean."""
    objective: tuple[Objective, ...] = ("return",)
    """What a trial is judged by; two for the trials that are best in neither without losing in the other."""
    score: Number | None = None
    """Mean return of 100 training episodes that seconds_to_score and steps_to_score wait for."""
    pruner: Literal["none", "median", "halving", "hyperband"] = "none"
    """Which trials are stopped early, by their evaluations: Optuna's median, asynchronous halving or hyperband."""
    sampler_seed: Seed = 1
    """Seed of random and tpe, >= 0."""
    config: tuple[str, ...] = ()
    """Presets or settings files below [settings]; later ones win."""


TABLES = ("settings", "search")


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was asked for; every value that it names is one that its setting accepts."""

    file: str
    """Path as typed."""
    method: Method
    trials: int
    seeds: int
    judge: Judge
    pruner: str
    sampler_seed: int
    space: Space
    """Of a list of experiments: the settings in which they differ."""
    build: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Returns the settings of a trial, given what was chosen for it."""
    experiments: tuple[dict[str, Any], ...] = ()
    """What a list chooses, in turn."""
    configs: tuple[str, ...] = ()
    identity: Mapping[str, Any] | None = None
    """What must not change while the sweep goes on, as JSON."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""

    @property
    def uses_optuna(self) -> bool:
        """Whether Optuna chooses or prunes."""
        return self.method == "tpe" or self.pruner != "none"

    def preset(self, chosen: Mapping[str, Any]) -> tuple[str, TrainConfig]:
        """Return the settings of a trial, as a preset and as a config; ConfigError if they cannot work together."""
        return preset_of(self.build(chosen), self.configs)


def read_sweep(path: str, *, trials: int | None = None) -> Sweep:
    """Read the file of a sweep, or the elite platform's experiments in JSON.

    Args:
        path: a .toml or .json file.
        trials: how many trials there are to be, in place of what the file says.

    Raises:
        ConfigError: one line about the first mistake; every value has been tried against its setting.
    """
    suffix = expand(path).suffix
    if suffix not in (".toml", ".json"):
        raise ConfigError(f"{path} is not a sweep's file; it ends in .toml, or in .json for the elite "
                          "platform's experiments")  # fmt: skip
    if suffix == ".json":
        sweep = _of_experiments(path, trials)
    else:
        given = config_layer(path, path).settings
        sweep = _of_file(path, given, trials)
    if sweep.uses_optuna and find_spec("optuna") is None:
        what = f"pruner {sweep.pruner}" if sweep.method != "tpe" else "method tpe"
        raise MissingExtra(f"{path}: {what} needs Optuna", "sweep")
    _check(sweep)
    return sweep


def _of_file(path: str, given: Mapping[str, Any], trials: int | None) -> Sweep:
    known = (*fields_of(Options), *TABLES)
    for name in given:
        if name in known:
            continue
        if name in fields_of(TrainConfig):
            raise ConfigError(f"{path}: {name} is a setting of training; put it into [settings]")
        hint = did_you_mean(name, known, f"; it may hold {', '.join(known)}")
        raise ConfigError(f"{path}: {name} is not known in a sweep's file{hint}")
    for name in TABLES:
        if not isinstance(given.get(name, {}), dict):
            raise ConfigError(
                f"{path}: {name} is {shown(given[name])}; it must be a table: [{name}]"
            )
    options = _options(path, given)
    settings = nested(cast("Mapping[str, Any]", given.get("settings", {})))
    space = read_space(cast("Mapping[str, Any]", given.get("search", {})), path)
    for name in OWN:
        if name in space or (name == "run_folder" and name in settings):
            how = "say seeds = N" if name == "seed" else "say --folder PATH to gossamer sweep"
            raise ConfigError(f"{path}: {name} is set by the sweep for each of its runs; {how}")
    if "env_id" in space:
        raise ConfigError(
            f"{path}: search.env_id: returns of different environments cannot be compared; write a file for each of them"
        )

    def build(chosen: Mapping[str, Any]) -> dict[str, Any]:
        made = nested(settings)
        for name, value in chosen.items():
            place(made, name, value)
        return made

    files = {name: dict(config_layer(name).settings) for name in options.config}
    identity = {
        **{name: getattr(options, name) for name in fields_of(Options) if name != "trials"},
        "settings": settings,
        "search": given.get("search", {}),
        "config": files,
    }
    return Sweep(
        file=path,
        method=options.method,
        trials=_trials(path, options, space, trials),
        seeds=options.seeds,
        judge=Judge(options.objective, math.inf if options.score is None else options.score),
        pruner=options.pruner,
        sampler_seed=options.sampler_seed,
        space=space,
        build=build,
        configs=options.config,
        identity=identity,
    )


def _options(path: str, given: Mapping[str, Any]) -> Options:
    values: dict[str, Any] = {}
    for name, field in fields_of(Options).items():
        if name not in given:
            continue
        try:
            values[name] = read_value(given[name], field.annotation)
        except ValueError as error:
            raise ConfigError(
                f"{path}: {name} is {shown(given[name])}; it must be {error}"
            ) from None
    options = Options(**values)
    goals = options.objective
    if len(goals) not in (1, 2) or len(set(goals)) < len(goals):
        raise ConfigError(
            f"{path}: objective is {', '.join(goals) or 'empty'}; it must be one objective, or two different ones"
        )
    to_score = [x for x in goals if x.endswith("_to_score")]
    if to_score and options.score is None:
        raise ConfigError(f"{path}: objective {to_score[0]} needs a score to reach: score = 475")
    if options.score is not None and not to_score:
        raise ConfigError(
            f"{path}: score is {options.score:g}, but nothing waits for it; leave it out, or use "
            'objective = "seconds_to_score"'
        )
    if options.pruner != "none" and len(goals) > 1:
        raise ConfigError(
            f"{path}: pruner is {options.pruner}, which compares trials by one objective, and there are two; leave it out"
        )
    return options


def _trials(path: str, options: Options, space: Space, asked: int | None) -> int:
    trials = options.trials if asked is None else asked
    if options.method == "grid":
        for name, domain in space.items():
            if not domain.grid():
                raise ConfigError(
                    f"{path}: search.{name} is a range, and a grid needs single values: give a list, or a range with num = 5 "
                    "or with a step"
                )
        size = grid_size(space)
        if trials is not None and trials != size:
            raise ConfigError(
                f"{path}: trials is {trials}, but the grid has {size} combinations; leave trials out, or use "
                'method = "random"'
            )
        if size > MAX_TRIALS:
            raise ConfigError(
                f'{path}: the grid has {size:,} combinations; use method = "random" and trials = 100'
            )
        return size
    if trials is None:
        raise ConfigError(f"{path}: trials is missing; say how many there are to be: trials = 20")
    return trials


def _of_experiments(path: str, trials: int | None) -> Sweep:
    """Return the sweep that the elite platform's experiments stand for."""
    found = read_experiments(path)
    if found.space:
        if trials is None:
            raise ConfigError(
                f"{path}: a random search over {', '.join(found.space)} needs a number of trials: gossamer sweep "
                f"{path} --trials 20"
            )
        method, chosen = "random", ()
    else:
        method, chosen = "list", found.experiments
        if trials not in (None, len(chosen)):
            raise ConfigError(
                f"--trials is {trials}, but {path} holds {len(chosen)} experiments; leave it out"
            )
    return Sweep(
        file=path,
        method=method,
        trials=len(chosen) if trials is None else trials,
        seeds=1,
        judge=Judge(("return",)),
        pruner="none",
        sampler_seed=1,
        space=found.space,
        build=found.build,
        experiments=chosen,
        identity={"experiments": found.written},
        notes=found.notes,
    )


def _check(sweep: Sweep) -> None:
    """Try every value against its setting, the others being the first of theirs."""
    if sweep.method == "list":
        for number, chosen in enumerate(sweep.experiments):
            try:
                sweep.preset(chosen)
            except ConfigError as error:
                told = str(error).removeprefix("settings: ")
                raise ConfigError(f"{sweep.file}: experiment {number + 1}: {told}") from None
        return
    first = {name: domain.ends()[0] for name, domain in sweep.space.items()}
    seen: set[str] = set()
    for name, domain in sweep.space.items():
        for value in domain.ends():
            chosen = {**first, name: value}
            if (key := encoded(chosen)) not in seen:
                seen.add(key)
                _refuse_without_evaluations(sweep, _try(sweep, chosen, [name]))
    if sweep.method == "grid":
        for number in range(min(sweep.trials, MAX_CHECKED)):
            chosen = grid_choice(sweep.space, number)
            if encoded(chosen) not in seen:
                _try(sweep, chosen, list(chosen))


def _try(sweep: Sweep, chosen: Mapping[str, Any], varied: Sequence[str]) -> TrainConfig:
    """Return the config of a trial; of a mistake tell which of the varied settings it is about, if it is of one."""
    try:
        return sweep.preset(chosen)[1]
    except ConfigError as error:
        told = str(error).removeprefix("settings: ")
        if "no environment given" in told:
            told = 'no environment given; add env_id = "CartPole-v1" to [settings]'
        blamed = [x for x in varied if x in told or x.partition(".")[0] in told.partition(" ")[0]]
        words = "".join(f"search.{name} = {shown(chosen[name])}: " for name in blamed)
        raise ConfigError(f"{sweep.file}: {words}{told}") from None


def _refuse_without_evaluations(sweep: Sweep, config: TrainConfig) -> None:
    wants = "evaluation" in sweep.judge.objectives or sweep.pruner != "none"
    if wants and config.evaluation.every_seconds == 0:
        who = f"pruner {sweep.pruner}" if sweep.pruner != "none" else "objective evaluation"
        raise ConfigError(
            f"{sweep.file}: {who} needs evaluations, but evaluation.every_seconds is 0; set it in [settings]: "
            "evaluation.every_seconds = 10"
        )
