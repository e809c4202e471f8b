"""The ways in which a command can end badly."""

from __future__ import annotations

from typing import ClassVar


class ConfigError(ValueError):
    """A `ValueError` for a user's mistake, in one line: the setting, its value, the allowed values, what to type."""


class RunFailed(RuntimeError):
    """A `RuntimeError` for a run that cannot continue; says why and what to type; a command then exits with code 1."""


class OthersLeft(RunFailed):
    """A `RunFailed` of a learner that another has left, with which it cannot go on."""


class NeverBegan(RunFailed):
    """A `RunFailed` for a run whose time was over before it began to train."""

    SAYS: ClassVar[str] = "stopped before training began"
    """How its message begins, also on a command's standard error."""
