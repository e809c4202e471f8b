"""Weights & Biases, for those who ask with --wandb."""

from __future__ import annotations

import importlib
import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from gossamer.machine import MissingExtra
from gossamer.record.files import write_whole
from gossamer.record.metrics import plain
from gossamer.system.reading import parse_json, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class WandbLog:
    """Sends rows of metrics to one W&B run, the same one after a resume."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], *, project: str = "gossamer"
    ) -> None:
        """Begin or continue the W&B run; ConfigError if the package is missing.

        Args:
            folder: The run folder; `wandb.json` in it remembers the W&B run's id.
            config: The settings, shown beside the run.
            project: W&B project.
        """
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise MissingExtra("--wandb needs the package wandb", "wandb") from None
        self._run: Any = wandb.init(
            project=project,
            name=folder.name,
            id=_run_id(folder / "wandb.json"),
            resume="allow",
            dir=str(folder),
            config=plain(config),
        )

    def write(self, row: Mapping[str, Any], env_steps: int) -> None:
        """Send every finite number of a row."""
        numbers = {k: v for k, v in plain(row).items() if isinstance(v, int | float)}
        self._run.log(numbers, step=env_steps)

    def close(self) -> None:
        """Send what is queued."""
        self._run.finish()


def _run_id(path: Path) -> str:
    try:
        return re.fullmatch(r"[\w-]{1,64}", parse_json(read_plain(path))["id"])[0]  # type: ignore[index]
    except (OSError, ValueError, KeyError, TypeError):
        made = uuid.uuid4().hex[:12]
        data = json.dumps({"id": made}).encode()
        write_whole(path, lambda file: file.write(data))
        return made
