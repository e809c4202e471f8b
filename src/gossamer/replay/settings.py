"""Settings of what batches are made of: a queue, and replays that keep what was collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - settings are read by their annotations
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gossamer.types import ConfigError

ELITE_PLATFORM_UPDATES = 10_000
"""Updates, one a batch, over which the elite platform annealed, times its alfa_annealing_factor."""
_NAMES = {"capacity": "capacity", "sample_ratio": "fraction", "p": "norm_order",
          "lambda_batch_multiplier": "candidate_multiplier", "elite_batch_size": "elite_batch"}  # fmt: skip
_STRATEGIES = {"strategy1": "nearest", "strategy2": "stratified", "strategy3": "least_used",
               "strategy4": "stratified_least_used"}  # fmt: skip
_DISTANCES = {"ln_norm": "lp", "cos_dist": "cosine", "kl_div": "kl"}
_OURS = ("learn_start", "shared", "path")
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

    fraction: float = 1.0
    """Share of a batch's columns, in (0, 1]. The fractions of all entries sum to 1."""
    capacity: int = 1
    """Trajectories that may wait in the queue, >= 1, besides the one in training (with replays: the one being
    stored). Matters at lag free."""


@dataclass(frozen=True)
class UniformSettings:
    """Uniform sampling from the newest columns."""

    name: ClassVar[str] = "uniform"

    fraction: float = 0.5
    """Share of a batch's columns, in (0, 1). The fractions of all entries sum to 1."""
    capacity: int | None = None
    """Number of columns to keep, at least as many as a batch has. Default: as capacity_steps says."""
    capacity_steps: int = 100_000
    """Number of rows (env steps and resets) to keep, >= 1, if capacity is not given."""
    learn_start: int = 0
    """Number of rows to store before replaying begins, >= 0, counted over the whole run; until then batches
    have online columns only. 0: begin when there are enough columns for a batch."""
    shared: bool = False
    """Every learner samples from the data of all learners. capacity is per learner."""
    path: str = ""
    """Folder for a file that holds the replay, for replays larger than memory; the file is removed when the
    run ends. Empty: keep the replay in memory."""


@dataclass(frozen=True)
class CircularSettings(UniformSettings):
    """Every column is replayed equally often, soon after it was stored: the least used first, then the newest.

    Of R replayed columns for each online one, each comes R times: IMPACT's circular buffer with K = R + 1.
    What was stored before learn_start, or is more than a learner can use, gives way to what is newer.
    """

    name: ClassVar[str] = "circular"


@dataclass(frozen=True)
class EliteSettings(UniformSettings):
    """Draws more columns than needed and keeps the least used ones, or those whose features have changed least.

    Every batch runs the policy over its candidates once more.
    """

    name: ClassVar[str] = "elite"

    strategy: Literal["nearest", "stratified", "least_used", "stratified_least_used"] = "least_used"
    """Which candidates are kept. nearest: those with the smallest distances. least_used: the least often
    sampled, then the nearest. stratified, stratified_least_used: candidates are sorted by distance and cut
    into as many segments as columns are needed; one is kept from each, the nearest or the least used."""
    candidate_multiplier: float = 2.0
    """Candidates drawn per column needed, >= 1; falls linearly to 1, which is uniform sampling."""
    anneal_updates: int = 10_000
    """Number of updates with replayed columns until candidate_multiplier has fallen to 1, >= 0."""
    distance: Literal["lp", "cosine", "kl"] = "lp"
    """Distance between the present features of a column and the stored ones. lp: norm of the difference.
    cosine: 1 - cosine similarity. kl: KL divergence of their softmaxes."""
    norm_order: float = 2.0
    """Order p of the norm lp, > 0."""
    insert: Literal["fifo", "elite"] = "fifo"
    """Column to overwrite when the replay is full. fifo: the oldest. elite: of elite_batch random columns,
    the one whose features have changed most."""
    elite_batch: int = 20
    """With insert elite: number of random columns to choose the overwritten one from, >= 1."""


@dataclass(frozen=True)
class AttentiveSettings(EliteSettings):
    """Like elite, but keeps columns similar to the newest state: attentive experience replay (Sun et al. 2020)."""

    name: ClassVar[str] = "attentive"

    strategy: Literal["nearest", "stratified", "least_used", "stratified_least_used"] = "nearest"
    """Which candidates are kept. nearest: those with the smallest distances, as published. least_used: the
    least often sampled, then the nearest. stratified, stratified_least_used: candidates are sorted by
    distance and cut into as many segments as columns are needed; one is kept from each, the nearest or the
    least used."""


ReplaySettings = (
    QueueSettings | UniformSettings | CircularSettings | EliteSettings | AttentiveSettings
)
