"""What every peer's `train.py` shares: its command line, and a meter with one rule for speed and for a score.

Runs inside a peer's own environment (`run.py` puts this folder on its path), so it needs only the standard library.

- **Speed**: env steps (agent decisions) from the end of the first update to the end of the last, per second.
- **Seconds to a score**: wall time from the start of the process, imports included, until the last 100 training
  episodes average the score. Returns are of full games with rewards as the environment pays them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

WINDOW = 100
"""Training episodes that a score is the mean of."""
STARTED_AT = "PEER_STARTED_AT"
"""Environment variable with the time at which the process was started, in seconds since the epoch."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the command line that every peer's `train.py` has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--env", default="PongNoFrameskip-v4", help="environment id")
    made.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="training time at most, from the end of the first update",
    )
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--stop-at-return", type=float, help="mean of 100 training episodes")
    made.add_argument("--total-env-steps", type=int, help="env steps at most")
    made.add_argument(
        "--settings", choices=("own", "ours"), default="own", help="the peer's, or gossamer's"
    )
    return made


class Finished(Exception):
    """Ends a training loop that has no other way out."""


class Meter:
    """Counts env steps and episodes of one training, and says when it is over."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._started = float(os.environ.get(STARTED_AT, time.time()))
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._mean: float | None = None
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._seconds_to_return: float | None = None
        self._steps_to_return: int | None = None
        self.env_steps = 0
        self.episodes = 0

    @property
    def over(self) -> bool:
        """Whether training should end: time since the first update, of two at least, env steps or the score."""
        steps, first = self._asked.total_env_steps, self._first
        measured = first is not None and self._last is not first
        return (
            (measured and time.monotonic() - first[0] >= self._asked.seconds)
            or (steps is not None and self.env_steps >= steps)
            or self._seconds_to_return is not None
        )

    def stepped(self, num_steps: int, returns: Iterable[float] = ()) -> None:
        """Count env steps, and the returns of the episodes that ended with them."""
        self.env_steps += num_steps
        for value in returns:
            self._returns.append(float(value))
            self.episodes += 1
            if len(self._returns) == WINDOW:
                self._averaged(statistics.fmean(self._returns))

    def told(self, env_steps: int, mean: float | None, *, full: bool) -> None:
        """Take over what a peer says that counts by itself.

        Args:
            env_steps: so far.
            mean: return of its last 100 training episodes; None: there is none yet.
            full: whether that mean is of 100 episodes.
        """
        self.env_steps = env_steps
        if mean is not None and not math.isnan(mean):
            self._mean = mean
            if full:
                self._averaged(mean)

    def updated(self) -> None:
        """Note that an update has ended just now."""
        self._last = (time.monotonic(), self.env_steps)
        self._first = self._first or self._last

    def report(self, packages: Iterable[str], **more: object) -> None:
        """Print the one JSON line that `run.py` reads."""
        mean = self._mean
        if self._returns:
            mean = statistics.fmean(self._returns)
        result = {
            "steps_per_second": self._speed(),
            "env_steps": self.env_steps,
            "seconds": round(time.time() - self._started, 3),
            "seconds_to_return": self._seconds_to_return,
            "env_steps_to_return": self._steps_to_return,
            "mean_return": mean,
            "episodes": self.episodes,
            "versions": versions(packages),
            **more,
        }
        print(f"\n{json.dumps(result)}", flush=True)

    def _averaged(self, mean: float) -> None:
        goal = self._asked.stop_at_return
        if goal is not None and mean >= goal and self._seconds_to_return is None:
            self._seconds_to_return = round(time.time() - self._started, 3)
            self._steps_to_return = self.env_steps

    def _speed(self) -> float | None:
        """Return env steps a second between two updates' ends; None before the second."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "numpy", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
