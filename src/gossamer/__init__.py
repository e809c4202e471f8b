"""Gossamer: deep reinforcement learning with many actors and many learners.

Names are resolved when first used, so that importing this imports neither torch nor a simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.config import EvaluationConfig as EvaluationConfig
    from gossamer.config import TrainConfig as TrainConfig
    from gossamer.config import make_config as make_config
    from gossamer.errors import ConfigError as ConfigError
    from gossamer.errors import RunFailed as RunFailed
    from gossamer.roles.policy import Policy as Policy
    from gossamer.run.evaluate import evaluate as evaluate
    from gossamer.run.load_policy import load_policy as load_policy
    from gossamer.run.train import train as train

    __version__: str

_HOMES = {
    "ConfigError": "gossamer.errors",
    "EvaluationConfig": "gossamer.config",
    "Policy": "gossamer.roles.policy",
    "RunFailed": "gossamer.errors",
    "TrainConfig": "gossamer.config",
    "evaluate": "gossamer.run.evaluate",
    "load_policy": "gossamer.run.load_policy",
    "make_config": "gossamer.config",
    "train": "gossamer.run.train",
}

__all__ = [
    "ConfigError",
    "EvaluationConfig",
    "Policy",
    "RunFailed",
    "TrainConfig",
    "__version__",
    "evaluate",
    "load_policy",
    "make_config",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("gossamer")
        except PackageNotFoundError:  # run from a checkout that was never installed
            return "0+unknown"
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
