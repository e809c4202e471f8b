"""TensorBoard event files, for those who ask with --tensorboard."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gossamer.machine import MissingExtra
from gossamer.record.metrics import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


EVALUATION = "evaluation_"
"""What names of metrics begin with that rows repeat until there is another evaluation."""
AT = "evaluation_env_steps"
"""Where the evaluation was that a row tells of."""


class TensorboardWriter:
    """Writes rows of metrics as scalars over env steps into `<run folder>/tensorboard`, and the settings as hparams."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        resumed_at: int | None = None,
    ) -> None:
        """Begin an event file; ConfigError if the package is missing.

        Args:
            folder: The run folder.
            settings: By dotted name.
            resumed_at: Env steps of the checkpoint; TensorBoard then hides what came after it.
        """
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise MissingExtra("--tensorboard needs tensorboard", "tensorboard") from None
        purge = None if resumed_at is None else resumed_at + 1
        self._writer: Any = module.SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        self._settings = settings or {}
        self._told: dict[str, float] = {}  # the newest of what is a result
        self._evaluated: dict[str, tuple[int, float]] = {}  # where, and what, by name

    def write(self, row: Mapping[str, Any], env_steps: int) -> None:
        """Add every finite number of a row; an evaluation once, where it was, as long as rows repeat it."""
        evaluated_at = row.get(AT)
        self._told.pop("evaluation_candidate", None)  # rows tell it until it is decided
        for name, value in plain(row).items():
            if not isinstance(value, int | float) or name == AT:
                continue
            evaluates = name.startswith(EVALUATION)
            if evaluates or name == "return_mean_100":
                self._told[name] = value
            if not evaluates:
                self._writer.add_scalar(name, value, env_steps)
            elif evaluated_at is not None and self._evaluated.get(name) != (evaluated_at, value):
                self._evaluated[name] = evaluated_at, value
                self._writer.add_scalar(name, value, evaluated_at)

    def close(self) -> None:
        """Add settings and results as hparams, and write out what is queued."""
        if self._settings and self._told:
            shown = {
                k: x if isinstance(x, bool | int | float | str) else str(x)
                for k, x in self._settings.items()
            }
            results = {f"hparam/{name}": x for name, x in self._told.items()}
            self._writer.add_hparams(shown, results, run_name=".")
        self._writer.close()
