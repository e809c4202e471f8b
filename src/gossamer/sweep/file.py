"""The file of a sweep: settings that are fixed, settings that are searched, the method, and the objectives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence  # noqa: TC003 - options are read by their annotations
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from gossamer.config import TrainConfig
from gossamer.config.files import config_layer, how_to_translate
from gossamer.config.names import nested, place
from gossamer.config.suggestions import did_you_mean
from gossamer.config.tree import fields_of, use_named
from gossamer.config.values import read_value, shown
from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.record.objectives import MAX_SEEDS, Judge, Objective
from gossamer.sweep.presets import preset_of, refuse_moving
from gossamer.sweep.space import (
    Space,
    choices_of,
    encoded,
    grid_choice,
    grid_size,
    leaves,
    random_choice,
    read_space,
)
from gossamer.system.ranges import Number, Seed
from gossamer.system.reading import expand

MAX_TRIALS = 100_000
MAX_CHECKED = 300
"""Combinations of a grid that are tried against the settings before anything begins."""
MAX_DRAWN = 30
"""Combinations of which one has to accept a value."""


@dataclass(frozen=True)
class Options:
    """Keys beside the tables of a sweep's file."""

    method: Literal["grid", "random", "tpe", "list"] = "random"
    """grid: every combination. random: independent draws. tpe: Optuna's tree-structured Parzen estimator. list: the
    settings of [[experiments]], in turn."""
    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] | None = None
    """Number of trials, >= 1; a grid has as many as combinations, a list as experiments."""
    seeds: Annotated[int, Meta(ge=1, le=MAX_SEEDS)] = 1
    """Runs of a trial, in [1, 1000], each with a seed of its own; a trial is worth their mean."""
    objective: tuple[Objective, ...] = ("return",)
    """Objectives by which trials are judged; with two, the best trials are those that no other one beats in both."""
    score: Number | None = None
    """Mean return of 100 training episodes that seconds_to_score and steps_to_score wait for."""
    pruner: Literal["none", "median", "halving", "hyperband"] = "none"
    """Rule by which trials are stopped early for their evaluations: Optuna's median, asynchronous halving or hyperband."""
    sampler_seed: Seed = 1
    """Seed of random and tpe, >= 0."""
    config: tuple[str, ...] = ()
    """Presets or settings files below [settings]; later ones win."""


TABLES = ("settings", "search", "experiments")


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was asked for; every value that it names is one that its setting accepts."""

    file: str
    """Path as typed."""
    options: Options
    trials: int
    """Number of trials."""
    settings: Mapping[str, Any]
    """Nested settings of every trial."""
    space: Space
    """Values to try, by dotted setting name."""
    experiments: tuple[dict[str, Any], ...]
    """Settings of each trial of a list, by dotted name; of other methods there are none."""
    identity: Mapping[str, Any]
    """Everything that must not change while the sweep goes on, as JSON."""

    @property
    def judge(self) -> Judge:
        """Judge of its runs."""
        score = self.options.score
        return Judge(self.options.objective, math.inf if score is None else score)

    @property
    def uses_optuna(self) -> bool:
        """Whether Optuna chooses or prunes."""
        return self.options.method == "tpe" or self.options.pruner != "none"

    def choice(self, number: int) -> dict[str, Any]:
        """Return the settings that a trial tries, where Optuna does not choose them; they depend on its number alone."""
        if self.options.method == "list":
            return self.experiments[number]
        if self.options.method == "grid":
            return grid_choice(self.space, number)
        return random_choice(self.space, number, self.options.sampler_seed)

    def first_choice(self) -> dict[str, Any]:
        """Return settings of some trial, which need not be one that is tried; of those that can work together, if one is found."""
        if self.experiments:
            return self.experiments[0]
        first = {name: domain.ends()[0] for name, domain in self.space.items()}
        if self.options.method == "grid":
            return first
        return _drawn_with(self, {}, first) or first

    def allows(self, number: int, chosen: Mapping[str, Any]) -> bool:
        """Whether a trial may try these settings: nothing is run because a file says so that was not typed."""
        if self.experiments:
            return encoded(chosen) == encoded(self.experiments[number])
        return set(chosen) == set(self.space) and all(
            self.space[x].holds(y) for x, y in chosen.items()
        )

    def preset(self, chosen: Mapping[str, Any]) -> tuple[str, TrainConfig]:
        """Return the settings of a trial, as a preset and as a config; ConfigError if they cannot work together."""
        made = nested(self.settings)
        for name, value in chosen.items():
            place(made, name, value)
        return preset_of(made, self.options.config)


def read_sweep(path: str, *, trials: int | None = None) -> Sweep:
    """Read the file of a sweep.

    Args:
        path: a .toml file.
        trials: how many trials there are to be, in place of what the file says.

    Raises:
        ConfigError: one line about the first mistake; every value has been tried against its setting.
    """
    if (typed := expand(path)).suffix != ".toml":
        told = f"{path} is not a sweep's file; it ends in .toml"
        if typed.suffix == ".json":
            told += (
                f"; experiments of the elite replay platform become one: {how_to_translate(typed)}"
            )
        raise ConfigError(told)
    given = config_layer(path, path).settings
    try:
        sweep = _sweep_of(path, given, trials)
        _check(sweep)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return sweep


def _sweep_of(path: str, given: Mapping[str, Any], trials: int | None) -> Sweep:
    """Return what a file asks for, with values that need not fit their settings."""
    _refuse_unknown(given)
    options = _options(given)
    settings = nested(cast("Mapping[str, Any]", given.get("settings", {})))
    experiments = _experiments(options, given)
    search = cast("Mapping[str, Any]", given.get("search", {}))
    for table in (
        *(config_layer(x).settings for x in options.config),
        settings,
        search,
        *experiments,
    ):
        for name, value in leaves(table):
            for one in cast("list[Any]", value) if isinstance(value, list) else [value]:
                # A range over a setting of a class of the user's takes the numbers that this takes.
                use_named(TrainConfig, name, one)
                if name == "init_from" and isinstance(one, str) and one:
                    refuse_moving(one)
    space = choices_of(experiments) if experiments else read_space(search)
    own = "is set by the sweep for each of its runs; say"
    if "run_folder" in {*space, *settings}:
        raise ConfigError(f"run_folder {own} --folder PATH to gossamer sweep")
    if "seed" in space and not experiments:
        raise ConfigError(f"seed {own} seeds = N")
    if "env_id" in space and not experiments:
        raise ConfigError(
            "search.env_id: returns of different environments cannot be compared; write a file for each of them"
        )
    identity = {
        **{name: getattr(options, name) for name in fields_of(Options) if name != "trials"},
        "settings": settings,
        "search": search,
        "config": {name: dict(config_layer(name).settings) for name in options.config},
        **({"experiments": experiments} if experiments else {}),
    }
    count = _trials(options, space, len(experiments), trials)
    sweep = Sweep(path, options, count, settings, space, experiments, identity)
    if sweep.uses_optuna and find_spec("optuna") is None:
        what = f"pruner {options.pruner}" if options.method != "tpe" else "method tpe"
        raise MissingExtra(f"{what} needs Optuna", "sweep")
    return sweep


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    known = (*fields_of(Options), *TABLES)
    for name in given:
        if name in known:
            continue
        if name in fields_of(TrainConfig):
            raise ConfigError(f"{name} is a setting of training; put it into [settings]")
        hint = did_you_mean(name, known, f"; it may hold {', '.join(known)}")
        raise ConfigError(f"{name} is not known in a sweep's file{hint}")
    for name in ("settings", "search"):
        if not isinstance(given.get(name, {}), dict):
            raise ConfigError(f"{name} is {shown(given[name])}; it must be a table: [{name}]")


def _experiments(options: Options, given: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the experiments of a list, by dotted names."""
    listed = given.get("experiments", [])
    if (options.method == "list") != bool(listed) or not isinstance(listed, list):
        raise ConfigError(
            'method = "list" tries [[experiments]], a table of settings each, and no other method has them'
        )
    if listed and "search" in given:
        raise ConfigError("a list of experiments searches nothing; leave [search] out")
    found: list[dict[str, Any]] = []
    for one in cast("list[Any]", listed):
        if not isinstance(one, dict):
            raise ConfigError(
                f"experiments holds {shown(one)}; each must be a table: [[experiments]]"
            )
        found.append(dict(leaves(nested(cast("Mapping[str, Any]", one)))))
    return tuple(found)


def _options(given: Mapping[str, Any]) -> Options:
    values: dict[str, Any] = {}
    for name, field in fields_of(Options).items():
        try:
            if name in given:
                values[name] = read_value(given[name], field.annotation)
        except ValueError as error:
            raise ConfigError(f"{name} is {shown(given[name])}; it must be {error}") from None
    options = Options(**values)
    goals = options.objective
    if len(goals) not in (1, 2) or len(set(goals)) < len(goals):
        raise ConfigError(
            f"objective is {', '.join(goals) or 'empty'}; it must be one objective, or two different ones"
        )
    to_score = [x for x in goals if x.endswith("_to_score")]
    if to_score and options.score is None:
        raise ConfigError(f"objective {to_score[0]} needs a score to reach: score = 475")
    if options.score is not None and not to_score:
        raise ConfigError(
            f"score is {options.score:g}, but nothing waits for it; leave it out, or use "
            'objective = "seconds_to_score"'
        )
    if options.pruner != "none" and len(goals) > 1:
        raise ConfigError(
            f"pruner is {options.pruner}, which compares trials by one objective, and there are two; leave it out"
        )
    return options


def _trials(options: Options, space: Space, experiments: int, asked: int | None) -> int:
    """Return how many trials there are to be."""
    trials = options.trials if asked is None else asked
    if options.method == "list":
        if trials not in (None, experiments):
            raise ConfigError(
                f"trials is {trials}, but there are {experiments} experiments; leave trials out"
            )
        return experiments
    if options.method == "grid":
        for name, domain in space.items():
            if not domain.grid():
                raise ConfigError(
                    f"search.{name} is a range, and a grid needs single values: give a list, or a range with num = 5 "
                    "or with a step"
                )
        size = grid_size(space)
        if trials is not None and trials != size:
            raise ConfigError(
                f"trials is {trials}, but the grid has {size} combinations; leave trials out, or use "
                'method = "random"'
            )
        if size > MAX_TRIALS:
            raise ConfigError(
                f'the grid has {size:,} combinations; use method = "random" and trials = 100'
            )
        return size
    if trials is None:
        raise ConfigError("trials is missing; say how many there are to be: trials = 20")
    return trials


def _check(sweep: Sweep) -> None:
    """Try every value against its setting, the others being the first of theirs, and the combinations of a list or a small grid."""
    for number, chosen in enumerate(sweep.experiments, start=1):
        _try(sweep, chosen, (), f"experiment {number}: ")
    if sweep.experiments:
        return
    first = sweep.first_choice()
    varied = [
        ({**first, name: value}, [name])
        for name, domain in sweep.space.items()
        for value in domain.ends()
    ]
    if sweep.options.method == "grid":
        numbers = range(min(sweep.trials, MAX_CHECKED))
        varied += [(sweep.choice(number), list(sweep.space)) for number in numbers]
    seen: set[str] = set()
    for chosen, names in varied:
        if (key := encoded(chosen)) in seen:
            continue
        seen.add(key)
        try:
            _try(sweep, chosen, names)
        except ConfigError:
            # A trial whose settings cannot work together is skipped, so a value need not go with the first of all others.
            kept = {name: chosen[name] for name in names}
            if sweep.options.method == "grid" or _drawn_with(sweep, kept) is None:
                raise


def _drawn_with(
    sweep: Sweep, kept: Mapping[str, Any], *before: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the first of some choices that can be together with `kept`; None if none is found.

    Args:
        sweep: whose space they are drawn from.
        kept: values of some settings.
        before: choices that are tried before those that are drawn.
    """
    drawn = (random_choice(sweep.space, number, 0) for number in range(MAX_DRAWN))
    for one in itertools.chain(before, drawn):
        chosen = {**one, **kept}
        try:
            _try(sweep, chosen, ())
        except ConfigError:
            continue
        return chosen
    return None


def _try(sweep: Sweep, chosen: Mapping[str, Any], varied: Sequence[str], where: str = "") -> None:
    """Refuse the settings of a trial that cannot be; tell which of the varied ones a mistake is about, if it is about one."""
    try:
        config = sweep.preset(chosen)[1]
    except ConfigError as error:
        told = str(error).removeprefix("settings: ")
        if "no environment given" in told:
            told = 'no environment given; add env_id = "CartPole-v1" to [settings]'
        blamed = [x for x in varied if x in told or x.partition(".")[0] in told.partition(" ")[0]]
        where += "".join(f"search.{name} = {shown(chosen[name])}: " for name in blamed)
        raise ConfigError(f"{where}{told}") from None
    pruner = sweep.options.pruner
    wants = "evaluation" in sweep.options.objective or pruner != "none"
    if wants and config.evaluation.every_seconds == 0:
        who = f"pruner {pruner}" if pruner != "none" else "objective evaluation"
        raise ConfigError(
            f"{who} needs evaluations, but evaluation.every_seconds is 0; set it in [settings]: "
            "evaluation.every_seconds = 10"
        )
