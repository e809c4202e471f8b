"""Settings of what batches are made of: a queue, and replays that keep what was collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - settings are read by their annotations
from dataclasses import dataclass
from typing import Any, ClassVar

from gossamer.errors import ConfigError
from gossamer.replay.selectors.base import Selector
from gossamer.system.ranges import Count, Share

ELITE_PLATFORM_UPDATES = 10_000
"""Updates, one a batch, over which the elite platform annealed, times its alfa_annealing_factor."""
_NAMES = {"capacity": "capacity", "sample_ratio": "fraction", "p": "norm_order",
          "lambda_batch_multiplier": "candidate_multiplier", "elite_batch_size": "elite_batch"}  # fmt: skip
_STRATEGIES = {"strategy1": "nearest", "strategy2": "stratified", "strategy3": "least_used",
               "strategy4": "stratified_least_used"}  # fmt: skip
_DISTANCES = {"ln_norm": "lp", "cos_dist": "cosine", "kl_div": "kl"}
_OURS = ("learn_start", "shared", "path", "device")
_SAMPLING = {"elite_sampling": "elite", "attentive_sampling": "attentive"}


def of_elite_platform(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section as it is here, if it is written as the elite replay platform did: with a "type".

    Raises:
        ConfigError: it has a type, and is none of that platform's.
    """
    if "type" not in given:
        return dict(given)

    def read(names: Mapping[str, str], value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in names:
            ours = '; kinds of gossamer\'s own are chosen by "name"' if key == "type" else ""
            raise ConfigError(
                f"replays: {key} is {value!r}; it must be one of {', '.join(names)}{ours}"
            )
        return names[value]

    kinds = {"queue": "queue", "standard": "uniform", "custom": "elite"}
    made: dict[str, Any] = {"name": read(kinds, given["type"], "type")}
    if made["name"] == "elite":
        # Without a way to sample it only inserted by distance.
        made |= {"candidate_multiplier": 1.0, "anneal_updates": ELITE_PLATFORM_UPDATES}
        made["strategy"] = "least_used"
    for key, value in given.items():
        if key in _NAMES:
            made[_NAMES[key]] = value
        elif key == "dist_function":
            made["distance"] = read(_DISTANCES, value, key)
        elif key == "sample_strategy":
            made["name"] = read(_SAMPLING, value, key)
        elif key == "elite_sampling_strategy":
            made["strategy"] = read(_STRATEGIES, value, key)
        elif key == "insert_strategy":
            made["insert"] = read({"elite_insertion": "elite"}, value, key)
        elif key == "alfa_annealing_factor":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"replays: {key} is {value!r}; it must be a number, such as 1.5")
            made["anneal_updates"] = round(ELITE_PLATFORM_UPDATES * value)
        elif key in _OURS and made["name"] != "queue":
            made[key] = value
        elif key != "type":
            allowed = [*_NAMES, *_OURS, "dist_function", "sample_strategy", "elite_sampling_strategy",
                       "insert_strategy", "alfa_annealing_factor"]  # fmt: skip
            raise ConfigError(
                f"replays: {key!r} beside a type; it must be one of {', '.join(allowed)}"
            )
    extra = [key for key in given if key not in ("type", "capacity", "sample_ratio", *_OURS)]
    if given["type"] != "custom" and extra:
        raise ConfigError(
            f"replays: {extra[0]!r} beside type {given['type']}, which is for type custom alone"
        )
    if given["type"] == "custom" and "sample_strategy" not in given:
        made["candidate_multiplier"] = 1.0  # whatever was given: it was not used
    return made


@dataclass(frozen=True)
class QueueSettings:
    """Each trajectory is used once, in order of arrival. Actors wait when the queue is full."""

    name: ClassVar[str] = "queue"
    translate: ClassVar[Callable[[Mapping[str, Any]], dict[str, Any]]] = staticmethod(
        of_elite_platform
    )

    fraction: Share = 1.0
    """Share of a batch's columns, in (0, 1]. The fractions of all entries sum to 1."""
    capacity: Count = 1
    """Trajectories that may wait in the queue, >= 1, besides the one in training (with replays: the one being
    stored). Matters at lag free."""


ReplaySettings = QueueSettings | Selector
"""An entry of `replays`: the queue, or a replay of some kind."""
