"""What a run uses of its machine: processor time, memory and the GPU; and what others use meanwhile."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

LOOK_EVERY_SECONDS = 3.0
"""Time between two looks for processes that have come or gone."""


class Usage:
    """Measures this process, processes that are watched, and all that they have started.

    Args:
        look_every_seconds: time between two looks for processes that have come or gone.
    """

    def __init__(self, look_every_seconds: float = LOOK_EVERY_SECONDS) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()
        psutil.cpu_percent()  # both tell of the time since the last call
        self._others: dict[int, psutil.Process] = {}
        self._watched: tuple[int, ...] = ()
        self._every, self._look_at = look_every_seconds, 0.0

    def watch(self, pids: Iterable[int]) -> None:
        """Count these processes, and what they have started, from now on."""
        self._watched, self._look_at = tuple(pids), 0.0

    def _look(self) -> None:
        """Find the processes that are there; what is known of them stays, as their times are those since the last call."""
        roots = (self._process.pid, *self._watched)
        found = set(self._watched).union(*map(descendants, roots)) - {self._process.pid}
        known, self._others = self._others, {}
        for pid in found:
            with suppress(psutil.Error):
                process = known.get(pid)
                if process is None or not process.is_running():  # or its number is another's now
                    process = psutil.Process(pid)
                self._others[pid] = process

    def measure(self) -> dict[str, float]:
        """Return metrics of the time since the last call: 100 percent are one core."""
        if (now := time.monotonic()) >= self._look_at:
            self._look()
            self._look_at = now + self._every
        machine = psutil.cpu_percent() * (psutil.cpu_count() or 1)
        cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss
        for process in self._others.values():
            with suppress(psutil.Error):
                used, held = process.cpu_percent(), process.memory_info().rss
                cpu += used
                memory += held
        others = max(0.0, machine - cpu)
        return {"cpu_percent": cpu, "others_cpu_percent": others, "memory_bytes": memory}


def descendants(pid: int) -> set[int]:
    """Return the processes that one has started, and those that these have; none if there is no such process."""
    if not has_children_files():  # this reads of every process on the machine
        with suppress(psutil.Error):
            return {child.pid for child in psutil.Process(pid).children(recursive=True)}
        return set()
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = _children(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@cache
def has_children_files() -> bool:
    """Whether the kernel tells which children a thread has."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").exists()


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):  # it has ended
        # Paths would cost as much as all the rest.
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
                found.update(map(int, file.read().split()))
    return found


def gpu_usage(device: torch.device) -> dict[str, float]:
    """Return metrics of the GPU that a learner computes on; nothing if that is a CPU."""
    if device.type != "cuda":
        return {}
    import torch

    row: dict[str, float] = {"gpu_memory_bytes": float(torch.cuda.memory_reserved(device))}
    with suppress(Exception):  # needs NVIDIA's management library, which may be missing
        row["gpu_percent"] = float(torch.cuda.utilization(device))
    return row
