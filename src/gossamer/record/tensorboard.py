"""TensorBoard event files, for those who ask with --tensorboard."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gossamer.machine import MissingExtra
from gossamer.record.metrics import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class TensorboardWriter:
    """Writes rows of metrics as scalars over env steps into `<run folder>/tensorboard`."""

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        """Begin an event file; ConfigError if the package is missing.

        Args:
            folder: The run folder.
            resumed_at: Env steps of the checkpoint; TensorBoard then hides what came after it.
        """
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise MissingExtra("--tensorboard needs tensorboard", "tensorboard") from None
        purge = None if resumed_at is None else resumed_at + 1
        self._writer: Any = module.SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def write(self, row: Mapping[str, Any], env_steps: int) -> None:
        """Add every finite number of a row."""
        for name, value in plain(row).items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, env_steps)

    def close(self) -> None:
        """Write out what is queued."""
        self._writer.close()
