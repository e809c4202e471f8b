"""What a run uses of its machine: processor time, memory and the GPU; and what others use meanwhile."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


class Usage:
    """Measures this process, the workers that it has started, and processes that are watched."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()
        psutil.cpu_percent()  # both tell of the time since the last call
        self._workers: dict[int, psutil.Process] = {}
        self._watched: tuple[int, ...] = ()

    def watch(self, pids: Iterable[int]) -> None:
        """Count these processes from now on."""
        self._watched = tuple(pids)

    def measure(self) -> dict[str, float]:
        """Return metrics of the time since the last call: 100 percent are one core."""
        machine = psutil.cpu_percent() * (psutil.cpu_count() or 1)
        cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss
        workers = [child.pid or 0 for child in multiprocessing.active_children()]
        for pid in (*workers, *self._watched):
            with suppress(psutil.Error):
                if pid not in self._workers:
                    self._workers[pid] = psutil.Process(pid)
                worker = self._workers[pid]
                cpu += worker.cpu_percent()
                memory += worker.memory_info().rss
        others = max(0.0, machine - cpu)
        return {"cpu_percent": cpu, "others_cpu_percent": others, "memory_bytes": memory}


def gpu_usage(device: str) -> dict[str, float]:
    """Return metrics of the GPU that this process computes on; nothing if that is its CPU."""
    if device != "cuda":
        return {}
    import torch

    row: dict[str, float] = {"gpu_memory_bytes": float(torch.cuda.memory_reserved())}
    with suppress(Exception):  # needs NVIDIA's management library, which may be missing
        row["gpu_percent"] = float(torch.cuda.utilization())
    return row
