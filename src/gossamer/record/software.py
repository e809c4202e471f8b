"""What a run's record says of the software and the machine; read without importing either."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from gossamer.machine import processor_name
from gossamer.system.cores import machine_cores, num_cores, num_cpus

_PACKAGES = (
    "gossamer",
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "mujoco",
    "envpool",
    "minigrid",
    "vizdoom",
    "safetensors",
    "rich",
)


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape results, those that are installed."""
    from importlib import metadata  # 25 ms, which a list of runs need not wait for

    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_state() -> dict[str, Any] | None:
    """Commit of gossamer's sources and whether they were changed since; None outside a checkout."""
    folder = str(Path(__file__).parent)
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": changed != ""}


def describe_machine() -> dict[str, Any]:
    """Host, processor, cores and hardware threads this process may use, cores of the whole machine, memory."""
    import psutil

    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": num_cores(),
        "hardware_threads": num_cpus(),
        "machine_cores": machine_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _git(folder: str, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *command], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
