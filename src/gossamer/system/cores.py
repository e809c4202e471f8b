"""The processor's cores that this process may use: its affinity, hyper-threads, and the quota of its container."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path("/")
"""Where /proc and /sys are looked up."""


def num_cores(root: Path = ROOT) -> int:
    """Return how many cores this process may compute on, >= 1: no more than its container's quota of them.

    Two hardware threads of one core count as one, since they share the units that multiply; but a machine of two
    hardware threads has two cores to us: acting beside learning hides the time that each of them waits.
    """
    return min(len(cpus_by_core(root)), _whole_quota(root))


def num_cpus(root: Path = ROOT) -> int:
    """Return how many hardware threads this process may use, >= 1, hyper-threads among them."""
    return min(sum(map(len, cpus_by_core(root))), _whole_quota(root))


def machine_cores(root: Path = ROOT) -> int:
    """Return how many cores the machine has, >= 1, counted as in `num_cores`, whichever of them this process may use."""
    if not can_pin():
        return len(_cores_elsewhere())
    return len(_by_core(root, range(os.cpu_count() or 1)))


def can_pin() -> bool:
    """Whether a process can be kept to some of the cores."""
    return hasattr(os, "sched_getaffinity")


def cpus_by_core(root: Path = ROOT) -> list[tuple[int, ...]]:
    """Return the numbers of the hardware threads that this process may run on, those of one core together.

    Args:
        root: that /sys is looked up in.
    """
    if not can_pin():
        return _cores_elsewhere()
    return _by_core(root, sorted(os.sched_getaffinity(0)))


def _by_core(root: Path, cpus: Sequence[int]) -> list[tuple[int, ...]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        found.setdefault(_siblings(root, cpu), []).append(cpu)
    if len(found) == 1:
        half = (len(cpus) + 1) // 2
        return [tuple(x) for x in (cpus[:half], cpus[half:]) if x]
    return [tuple(cpus) for cpus in found.values()]


def _siblings(root: Path, cpu: int) -> tuple[int, ...]:
    """Return the hardware threads of a CPU's core, itself where the kernel does not tell, as in some containers."""
    with suppress(OSError, ValueError):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        found = numbers_in((folder / "thread_siblings_list").read_text())
        if cpu in found:
            return found
    return (cpu,)


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as the kernel writes it: 0-2,8.

    Raises:
        ValueError: it is no such list.
    """
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _cores_elsewhere() -> list[tuple[int, ...]]:
    """Return the cores of a system that does not tell which of them a process may use."""
    import psutil

    cpus = os.cpu_count() or 1
    cores = min(max(psutil.cpu_count(logical=False) or cpus, min(cpus, 2)), cpus)
    return [tuple(range(core, cpus, cores)) for core in range(cores)]


def _whole_quota(root: Path) -> int:
    """Return the whole cores that a quota is worth: a part of one more would stop all threads at once, again and again."""
    quota = cpu_quota(root)
    return max(math.floor(quota), 1) if quota < math.inf else sys.maxsize


def cpu_quota(root: Path = ROOT) -> float:
    """Return how many CPUs' worth of time the control groups of this process may use; infinity: no limit.

    Args:
        root: that /proc and /sys are looked up in.
    """
    quotas = [math.inf]
    for folder, version in group_folders("cpu", root):
        # No such file, "max", -1 or a period of 0: no limit here.
        with suppress(OSError, ValueError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = (
                    (folder / name).read_text()
                    for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                )
            if int(quota) > 0 < int(period):
                quotas.append(int(quota) / int(period))
    return min(quotas)


def group_folders(controller: str, root: Path = ROOT) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the control groups that this process is in, and of those above, with their version, 1 or 2.

    Args:
        controller: whose groups, as version 1 calls them: cpu, memory.
        root: that /proc and /sys are looked up in.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in groups:
        _, controllers, group = line.split(":", 2)
        version, top = 2, root / "sys/fs/cgroup"
        if controller in controllers.split(","):
            version = 1
            # Controllers that share a hierarchy are mounted under all of their names, often with links from each.
            top = next(
                (x for x in (top / controller, top / controllers) if x.is_dir()), top / controller
            )
        elif controllers:
            continue
        # A container may see the path that its group has outside, where its own is at the top.
        folder = top / group.strip("/")
        for place in [folder, *folder.parents]:
            if place.is_relative_to(top):
                yield place, version
