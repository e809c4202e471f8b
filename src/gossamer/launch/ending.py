"""How a run ends in words: a line for the user, or an error with whose fault it is."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from gossamer.types import ConfigError, RunFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.record.folder import RunFolder


def raise_failure(failure: BaseException) -> None:
    """Raise what ends the run as one line, after the traceback of whose fault it is."""
    if isinstance(failure, ConfigError):
        raise failure
    if isinstance(failure, RunFailed):
        _, _, details = str(failure).strip().partition("\n")
        if details:
            print(details, file=sys.stderr)
        raise RunFailed(headline(failure)) from failure
    if isinstance(failure, OSError):
        raise RunFailed(
            f"could not write to the run folder: {failure.strerror or failure}; the last checkpoint "
            "is kept, resume from it once there is room"
        ) from failure
    traceback.print_exception(failure)
    raise RunFailed(headline(failure)) from failure


def headline(error: BaseException) -> str:
    """Say in one line what failed; a RunFailed of several lines holds a traceback after the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, RunFailed):
        return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {' '.join(lines)}"


def ending(summary: Mapping[str, Any], folder: RunFolder) -> str:
    """Say in one line what came of a run, and what to type next."""
    parts = [f"{summary['exit_reason']}: {summary['env_steps']:,} env steps"]
    parts.append(f"{summary['seconds']:.0f} s")
    if summary["steps_per_second"]:
        parts.append(f"{summary['steps_per_second']:,.0f} steps/s")
    if summary["mean_return_last_100"] is not None:
        parts.append(f"return {summary['mean_return_last_100']:.4g}")
    if summary["best_evaluation"] is not None:
        parts.append(f"best evaluation {summary['best_evaluation']:.4g}")
    stopped = summary["exit_reason"].startswith("stopped")
    verb = "train --resume" if stopped else "eval"
    hint = "" if summary["exit_reason"].startswith("failed") else f"; next: gossamer {verb} "
    return ", ".join(parts) + (hint and f"{hint}{folder.path}")
