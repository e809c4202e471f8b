"""What a run shows while it trains: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

from gossamer.record.metrics import plain
from gossamer.record.terminal import LivePanel, quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import RenderableType

PLAIN_EVERY_SECONDS = 5.0
"""At most one plain line in this time."""
REDRAWS_PER_SECOND = 2
"""Of the panel."""


class Progress:
    """Shows the newest metrics. Nothing here raises: a broken terminal must not end a run.

    `update` only notes the row; drawing happens on another thread, or once in five seconds.
    """

    def __init__(
        self,
        total_env_steps: int,
        *,
        target: float | None = None,
        title: str = "",
        stop_after_seconds: float = 0.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to show.

        Args:
            total_env_steps: Where the run ends.
            target: Mean return at which it ends earlier; shown beside the return.
            title: Environment, algorithm; the panel's title.
            stop_after_seconds: Time at which it ends earlier; 0 for none.
            stream: Where to; standard error if None.
            clock: Seconds that only grow.
        """
        self._total, self._target = total_env_steps, target
        self._stop_after_seconds = stop_after_seconds
        self._clock = clock
        self._row: dict[str, Any] = {}
        self._printed_at = float("-inf")
        self._unprinted = False
        self._panel = LivePanel(
            title, self._body, stream=stream, redraws_per_second=REDRAWS_PER_SECOND
        )

    def update(self, row: Mapping[str, Any]) -> None:
        """Note the newest values of some metrics, by their names in METRICS."""
        quietly(lambda: self._update(row))

    def begin_at(self, env_steps: int, seconds: float) -> None:
        """Show where a resumed run goes on, before its first row."""
        self._row = {"env_steps": env_steps, "time_s": seconds}

    def message(self, text: str) -> None:
        """Print a line, above the panel if there is one."""
        self._panel.print(text)

    def notice(self, text: str) -> bool:
        """Show a text under the panel from the next drawing on; False without a panel."""
        self._panel.notice = text
        return self._panel.is_shown

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        if self._unprinted and not self._panel.is_shown:
            quietly(self._print_row)
        self._panel.close()

    def _update(self, row: Mapping[str, Any]) -> None:
        # None says that there is nothing new to say.
        news = {name: value for name, value in plain(row).items() if value is not None}
        held = dict(self._row)
        if "evaluation_best" in news:  # a candidate that is not told with it any more is decided
            held.pop("evaluation_candidate", None)
        self._row = {**held, **news}  # replaced, not changed: another thread may be drawing
        self._unprinted = True
        if not self._panel.is_shown and self._clock() - self._printed_at >= PLAIN_EVERY_SECONDS:
            self._print_row()

    def _print_row(self) -> None:
        self._printed_at, self._unprinted = self._clock(), False
        self._panel.print("  ".join(self._sections()))

    def _body(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        steps = float(self._row.get("env_steps", 0))
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(ratio=1)
        table.add_row(ProgressBar(total=max(1, self._total), completed=min(steps, self._total)))
        for section in self._sections():
            table.add_row(Text(section))
        return table

    def _sections(self) -> list[str]:
        row = self._row
        sections = [
            self._steps_text(row),
            self._returns_text(row),
            _values_text(row, _LEARNER),
            _values_text(row, _SHARES),
        ]
        return [section for section in sections if section]

    def _steps_text(self, row: Mapping[str, Any]) -> str:
        steps, speed = row.get("env_steps", 0), row.get("steps_per_second")
        text = f"steps {share_text(steps, self._total)}"
        if speed:
            text += f" {speed:,.0f}/s"
        left = seconds_left(row, self._total, self._stop_after_seconds)
        most = "at most " if self._target is not None else ""  # which may be reached any moment
        return text if left is None else f"{text} left {most}{duration_text(left)}"

    def _returns_text(self, row: Mapping[str, Any]) -> str:
        parts: list[str] = []
        if "return_mean_100" in row:
            goal = "" if self._target is None else f" (stops at {self._target:g})"
            parts.append(f"return {row['return_mean_100']:.4g}{goal}")
        if "episodes" in row:
            parts.append(f"episodes {row['episodes']:,}")
        if "evaluation_mean" in row:
            best = f"best {row['evaluation_best']:.4g}" if "evaluation_best" in row else ""
            if best and "evaluation_candidate" in row:
                best += f", {row['evaluation_candidate']:.4g} to be confirmed"
            best = best and f" ({best})"
            whose = (
                f" of learner {row['evaluation_learner']}" if "evaluation_learner" in row else ""
            )
            parts.append(f"evaluation {row['evaluation_mean']:.4g}{whose}{best}")
        return " ".join(parts)


_LEARNER = {
    "loss": ("learner/loss", ".3g"),
    "policy": ("learner/policy_loss", ".3g"),
    "value": ("learner/value_loss", ".3g"),
    "entropy": ("learner/entropy_nats", ".3g"),
    "lag": ("lag_versions_mean", ".2g"),
    "replayed": ("replay/ratio", ".2g"),
    "age": ("replay/age_updates", ".0f"),
    "rejected": ("learner/rejected_fraction", ".0%"),
    "disagreement": ("topology/disagreement", ".2g"),
}
_SHARES = {
    "env": ("share/env", ".0%"),
    "inference": ("share/inference", ".0%"),
    "actor waits": ("share/wait_actor", ".0%"),
    "learn": ("share/learn", ".0%"),
    "learner waits": ("share/wait_learner", ".0%"),
    "picking": ("share/replay", ".0%"),
    "waits for it": ("share/wait_replay", ".0%"),
    "mix": ("share/mix", ".0%"),
    "waits for learners": ("share/wait_peers", ".0%"),
    "waits for its turn": ("share/wait_turn", ".0%"),
}


def _values_text(row: Mapping[str, Any], values: Mapping[str, tuple[str, str]]) -> str:
    there = ((label, name, form) for label, (name, form) in values.items() if name in row)
    return " ".join(f"{label} {format(row[name], form)}" for label, name, form in there)


def share_text(steps: int, total_env_steps: int) -> str:
    """Return how far a run is, such as `250,000/1,000,000 (25%)`."""
    return f"{steps:,}/{total_env_steps:,} ({min(1.0, steps / max(1, total_env_steps)):.0%})"


def seconds_left(
    row: Mapping[str, Any], total_env_steps: int, stop_after_seconds: float
) -> float | None:
    """Return how long a run takes to its end at its present speed; None where that is not known yet.

    Args:
        row: newest metrics, of which `env_steps`, `steps_per_second` and `time_s` count.
        total_env_steps: where it ends.
        stop_after_seconds: where it ends if that is sooner; 0: no limit.
    """
    left: list[float] = []
    if speed := row.get("steps_per_second"):
        left.append((total_env_steps - row.get("env_steps", 0)) / speed)
    if stop_after_seconds:
        left.append(stop_after_seconds - row.get("time_s", 0.0))
    return max(0.0, min(left)) if left else None


def duration_text(seconds: float) -> str:
    """Return seconds in words, such as `12m05s`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
