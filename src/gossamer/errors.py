"""The two ways in which a command can end badly."""

from __future__ import annotations


class ConfigError(ValueError):
    """The user's mistake, told in one line: what was wrong, the value, what is allowed, what to type."""


class RunFailed(RuntimeError):
    """A run that cannot go on; the message is for the user and the exit code is 1."""
