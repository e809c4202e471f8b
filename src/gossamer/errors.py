"""The two ways in which a command can end badly."""

from __future__ import annotations


class ConfigError(ValueError):
    """A mistake of the user, in one line: the setting, its value, what is allowed, what to type. A `ValueError`."""


class RunFailed(RuntimeError):
    """A run that cannot continue; the message says why and what to type. A `RuntimeError`; the exit code of a command is 1."""
