"""Weights & Biases, for those who ask with --wandb."""

from __future__ import annotations

import importlib
import json
import os
import re
import uuid
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.record.files import write_text
from gossamer.record.metrics import plain
from gossamer.system.reading import parse_json, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PROJECT = "gossamer"
"""Project of runs for which nobody names one."""


class WandbLog:
    """Sends rows of metrics to one W&B run, the same one after a resume."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], say: Callable[[str], object] = print
    ) -> None:
        """Begin or continue the W&B run; ConfigError if the package is missing, or W&B refuses.

        Args:
            folder: The run folder; `wandb.json` in it remembers the W&B run's id and its project.
            config: The settings, shown beside the run.
            say: Told that no more rows are sent.
        """
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise MissingExtra("--wandb needs the package wandb", "wandb") from None
        self._say = say
        run_id, project = _id_and_project(folder / "wandb.json")
        try:
            self._run: Any = wandb.init(
                project=project,
                name=folder.name,
                id=run_id,
                resume="allow",
                dir=str(folder),
                config=plain(config),
            )
        except (wandb.Error, ValueError) as error:  # of its own variables, such as WANDB_MODE
            why = " ".join(str(error).split())
            raise ConfigError(
                f"--wandb: {why}; type: wandb login, or set WANDB_MODE=offline"
            ) from error

    def write(self, row: Mapping[str, Any], env_steps: int) -> None:
        """Send every finite number of a row; what goes wrong ends this, not the run."""
        if self._run is None:
            return
        numbers = {k: v for k, v in plain(row).items() if isinstance(v, int | float)}
        try:
            self._run.log(numbers, step=env_steps)
        except Exception as error:  # noqa: BLE001 - whatever it raises whose process has died
            self._run = None
            why = " ".join(str(error).split()) or type(error).__name__
            self._say(f"no more rows are sent to Weights & Biases in this session: {why}")

    def close(self) -> None:
        """Send what is queued."""
        if self._run is not None:
            self._run.finish()


def _id_and_project(path: Path) -> tuple[str, str]:
    """Return what a run folder remembers; for a new run, an id that is remembered, and the project of W&B's own variable."""
    try:
        held = parse_json(read_plain(path))
        run_id: str = re.fullmatch(r"[\w-]{1,64}", held["id"])[0]  # type: ignore[index]
        project: str = re.fullmatch(r"[^/\\#?%:]{1,128}", held.get("project", PROJECT))[0]  # type: ignore[index]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        run_id, project = uuid.uuid4().hex[:12], os.environ.get("WANDB_PROJECT") or PROJECT
        write_text(path, json.dumps({"id": run_id, "project": project}))
    return run_id, project
