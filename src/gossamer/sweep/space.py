"""The space that a sweep searches: for every setting a list of choices or a range of numbers."""

from __future__ import annotations

import json
import math
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gossamer.config.suggestions import did_you_mean
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import find_annotation
from gossamer.config.values import bare, kinds_of, shown
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_CHOICES = 10_000
"""Longest list of choices, and most values of a range with steps."""
_KEYS = ("min", "max", "log", "step", "num")


@dataclass(frozen=True)
class Choices:
    """A list of values, in no order that a method may use."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return a value, all equally likely for a share drawn from [0, 1)."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def grid(self) -> tuple[Any, ...]:
        """Return the values of a grid."""
        return self.values

    def ends(self) -> tuple[Any, ...]:
        """Return the values that a setting must accept, or the file is refused."""
        return self.values

    def holds(self, value: Any) -> bool:
        """Whether a trial may have this value."""
        return any(encoded(value) == encoded(x) for x in self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones for settings that take no others."""

    low: float
    high: float
    log: bool = False
    """Uniform in the logarithm."""
    step: float | None = None
    """Distance between values, counted from `low`."""
    num: int | None = None
    """Number of values, evenly spaced, in a logarithmic range by their ratio."""
    whole: bool = False

    def at(self, share: float) -> float:
        """Return a value, all equally likely for a share drawn from [0, 1)."""
        if self.grid():
            return Choices(self.grid()).at(share)
        low, high = self.low, self.high
        if self.whole:  # every number is as likely as its part of the scale
            low, high = low - 0.5, high + 0.5
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    def grid(self) -> tuple[float, ...]:
        """Return the only values that there are; empty: all between the ends."""
        low, high = self.low, self.high
        if self.step is not None:
            count = math.floor((high - low) / self.step + 1e-9) + 1
            made = [low + i * self.step for i in range(count)]
        elif self.num is not None:
            shares = [i / (self.num - 1) for i in range(self.num)]
            made = [low * (high / low) ** x if self.log else low + (high - low) * x for x in shares]
        else:
            return ()
        # As they would be written: 0.1 and three steps of it are 0.4.
        made = [float(f"{x:.12g}") for x in made]
        return tuple(dict.fromkeys(round(x) for x in made)) if self.whole else tuple(made)

    def ends(self) -> tuple[Any, ...]:
        """Return the values that a setting must accept, or the file is refused."""
        return (self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Whether a trial may have this value."""
        number = type(value) is int or (type(value) is float and not self.whole)
        return number and (value in self.grid() if self.grid() else self.low <= value <= self.high)


Domain = Choices | Range
Space = dict[str, Domain]
"""By dotted setting name, in the order of the file."""


def encoded(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value)


def read_space(search: Mapping[str, Any]) -> Space:
    """Return the space of a table `[search]`; dotted names and nested tables mean the same.

    Args:
        search: as TOML has it.

    Raises:
        ConfigError: a list or a range that is empty, or neither, or a setting that is there twice.
    """
    space: Space = {}
    for typed, value in leaves(search):
        if (name := typed.replace("-", "_")) in space:
            raise ConfigError(f"search.{name} is given twice; leave one of them out")
        space[name] = _domain(name, value, f"search.{typed}")
    if not space:
        raise ConfigError(
            "[search] is empty; give a list or a range for at least one setting, for example "
            '"optimizer.learning_rate" = {min = 1e-4, max = 1e-2, log = true}'
        )
    return space


def choices_of(experiments: Sequence[Mapping[str, Any]]) -> Space:
    """Return, for every setting that some experiments have, the different values that it has in them."""
    found: dict[str, dict[str, Any]] = {}
    for one in experiments:
        for name, value in one.items():
            found.setdefault(name, {})[encoded(value)] = value
    return {name: Choices(tuple(values.values())) for name, values in found.items()}


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every setting or range in nested tables."""
    for name, value in tree.items():
        is_range = isinstance(value, dict) and ({"min", "max"} & value.keys() or not value)
        if isinstance(value, dict) and not is_range:
            yield from leaves(cast("Mapping[str, Any]", value), f"{path}{name}.")
        else:
            yield path + name, value


def _domain(name: str, value: Any, where: str) -> Domain:
    if isinstance(value, list):
        values = cast("list[Any]", value)
        if not values:
            raise ConfigError(f"{where} is an empty list; give at least one value: [0.1, 0.2]")
        if len(values) > MAX_CHOICES:
            raise ConfigError(f"{where} has {len(values)} values; it may have {MAX_CHOICES:_}")
        words = [encoded(x) for x in values]
        if len(set(words)) < len(words):
            twice = next(x for i, x in enumerate(words) if x in words[:i])
            raise ConfigError(f"{where} has {shown(json.loads(twice))} twice; leave one out")
        return Choices(tuple(values))
    if not isinstance(value, dict):
        raise ConfigError(
            f"{where} is {shown(value)}, a single value; put it into [settings], or give a list ([{shown(value)}, ...]) or a "
            "range ({min = ..., max = ...})"
        )
    return _range(name, cast("dict[str, Any]", value), where)


def _range(name: str, given: Mapping[str, Any], where: str) -> Range:
    for key in given:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS, f"; it may have {', '.join(_KEYS)}")
            raise ConfigError(f"{where}: {key} is not known in a range{hint}")
    for key in ("min", "max"):
        if key not in given:
            raise ConfigError(f"{where} has no {key}; a range is {{min = ..., max = ...}}")
    for key in ("min", "max", "step"):
        if key in given and not _is_number(given[key]):
            raise ConfigError(f"{where}: {key} is {shown(given[key])}; it must be a number")
    low, high, step, num = given["min"], given["max"], given.get("step"), given.get("num")
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise ConfigError(f"{where}: log is {shown(log)}; it must be true or false")
    if low > high:
        raise ConfigError(
            f"{where} is empty: min {low:g} is more than max {high:g}; exchange the two"
        )
    if log and low <= 0:
        raise ConfigError(f"{where}: min is {low:g}, but a logarithmic range begins above 0")
    if step is not None and (step <= 0 or log or num is not None):
        why = "with log or num it has no meaning" if step > 0 else "it must be more than 0"
        raise ConfigError(f"{where}: step is {step:g}; {why}; leave one of them out")
    if step is not None and (high - low) / step >= MAX_CHOICES:
        raise ConfigError(f"{where}: step {step:g} makes more than {MAX_CHOICES:_} values")
    if num is not None and not (type(num) is int and 2 <= num <= MAX_CHOICES):
        raise ConfigError(f"{where}: num is {shown(num)}; it must be in [2, {MAX_CHOICES}]")
    whole = _takes_whole_numbers(name, where)
    fractions = [x for x in (low, high, step) if x is not None and x != int(x)]
    if whole and fractions:
        raise ConfigError(
            f"{where}: {name} takes whole numbers alone, and the range has {fractions[0]:g}"
        )
    kind = int if whole else float
    step = None if step is None else kind(step)
    return Range(kind(low), kind(high), log=log, step=step, num=num, whole=whole)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _takes_whole_numbers(name: str, where: str) -> bool:
    """Whether a setting takes whole numbers alone; ConfigError if it takes no numbers."""
    annotation: Any = find_annotation(TrainConfig, name)
    section, dot, rest = name.partition(".")
    if annotation is None and dot:  # with the member that it is of: algorithm.ppo.passes
        annotation = find_annotation(TrainConfig, f"{section}.{rest.partition('.')[2]}")
    if annotation is None:
        return False  # a class of the user's has it, or nobody: that is told where values are tried
    bases = _bases(annotation)
    if float in bases:
        return False
    if int not in bases:
        raise ConfigError(f"{where} is a range, but {name} takes no numbers; give a list of values")
    return True


def _bases(annotation: Any) -> set[Any]:
    """Return the plain types of a setting, or of an entry of its list."""
    found: set[Any] = set()
    for kind in kinds_of(annotation):
        base, _ = bare(kind)
        if typing.get_origin(base) is tuple:
            found |= _bases(typing.get_args(base)[0])
        else:
            found.add(base)
    return found


def random_choice(space: Space, number: int, seed: int) -> dict[str, Any]:
    """Return the settings of trial `number` of a random search; they depend on nothing else."""
    draws = np.random.default_rng([seed, number])
    return {name: domain.at(float(draws.random())) for name, domain in space.items()}


def grid_size(space: Space) -> int:
    """Return how many combinations a grid has."""
    return math.prod(len(domain.grid()) for domain in space.values())


def grid_choice(space: Space, number: int) -> dict[str, Any]:
    """Return combination `number` of a grid; the last setting changes fastest."""
    chosen: dict[str, Any] = {}
    for name, domain in reversed(space.items()):
        number, index = divmod(number, len(domain.grid()))
        chosen[name] = domain.grid()[index]
    return {name: chosen[name] for name in space}
