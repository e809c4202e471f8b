"""What is known of the machine: how much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gossamer.machine import free_memory


def group(folder: Path, version: int, limit: str, used: int, inactive: int) -> None:
    """Write what the kernel tells of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {inactive}\nslab 7\n")


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_the_container_leaves(tmp_path: Path, version: int) -> None:
    machine = psutil.virtual_memory().total
    assert 0 < free_memory(tmp_path) <= machine, "no groups at all"
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "4:cpu,memory:/pod/one\n3:cpuset:/\n" if version == 1 else "0::/pod/one\n"
    (tmp_path / "proc/self/cgroup").write_text(f"9:name=systemd:/\n{line}")
    top = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    group(top, version, "max" if version == 2 else str(2**63 - 4096), 5, 0)
    assert 10**7 < free_memory(tmp_path) <= machine, "no limit"
    group(top, version, "9000000", 5_000_000, 1_000_000)
    assert free_memory(tmp_path) == 5_000_000, "in a container: its own group is at the top"
    group(top / "pod", version, "8000000", 5_000_000, 1_000_000)
    assert free_memory(tmp_path) == 4_000_000, "the smallest of all above"
    group(top / "pod/one", version, "3000000", 2_500_000, 0)
    assert free_memory(tmp_path) == 500_000
    group(top / "pod/one", version, "3000000", 3_000_001, 0)
    assert free_memory(tmp_path) == 0
