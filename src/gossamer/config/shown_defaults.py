"""Defaults as runs use them: those of a suite with an algorithm, and what all suites have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossamer.config.cores import AUTO
from gossamer.config.files import suite_layer
from gossamer.config.layers import resolve
from gossamer.config.machine_layers import ONE_HERE
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import flatten, to_tree
from gossamer.envs.settings import SUITE_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

BY_SUITE = "by suite"
"""Stands for a default that suites of environments have different values of."""
BY_TOPOLOGY = "by topology"
"""Stands for a default that topologies have different values of."""


def default_algorithm() -> str:
    """Return the name of the algorithm that environments of no known suite are trained with."""
    return str(suite_layer("other").settings["algorithm"]["name"])


def defaults_by_suite(algorithm: str) -> dict[str, dict[str, Any]]:
    """Return by suite, and then by dotted name, the values that a run with an algorithm would have.

    The machine has no say: where its cores decide the number of learners, that is "auto".
    """
    return {suite: defaults_of(env_id, algorithm) for suite, env_id in SUITE_IDS.items()}


def defaults_of(env_id: str, algorithm: str) -> dict[str, Any]:
    """Return by dotted name the values that a run in an environment with an algorithm would have; see `defaults_by_suite`."""
    given = {"env_id": env_id, "algorithm": algorithm, "device": "cpu"}  # a GPU has no say either
    config, origin = resolve(given=given, machine="")
    values = dict(flatten(to_tree(config))) | {"device": TrainConfig().device}
    if origin["num_learners"].endswith(ONE_HERE):
        values["num_learners"] = AUTO
    return values


def in_common(by_suite: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return by dotted name the value that all suites have, or BY_SUITE."""
    first, *others = by_suite.values()
    return {
        name: value if all(one.get(name) == value for one in others) else BY_SUITE
        for name, value in first.items()
        if name != "env_id"
    }
