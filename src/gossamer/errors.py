"""The two ways in which a command can end badly."""

from __future__ import annotations


class ConfigError(ValueError):
    """A `ValueError` for a user's mistake, in one line: the setting, its value, the allowed values, what to type."""


class RunFailed(RuntimeError):
    """A `RuntimeError` for a run that cannot continue; says why and what to type; a command then exits with code 1."""
