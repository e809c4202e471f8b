"""What is known of the machine: how much memory this process may still take, and which cores."""

from __future__ import annotations

import functools
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from gossamer.build.plan import Plan, make_plan
from gossamer.config import make_config
from gossamer.config.cores import MACHINE
from gossamer.envs.registry import read_spec
from gossamer.machine import Machine, free_memory, processor_name, same_folder, this_machine
from gossamer.record.software import describe_machine
from gossamer.spec import EnvSpec
from gossamer.system.cores import (
    can_pin,
    cpu_quota,
    cpus_by_core,
    machine_cores,
    num_cores,
    num_cpus,
    numbers_in,
)


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


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[int]], None]:
    """Let this process run on some CPUs."""
    return lambda cpus: monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(cpus), raising=False
    )


def siblings(root: Path, *lists: str) -> None:
    """Write which hardware threads share a core, for each CPU as its kernel does."""
    for cpus in lists:
        for cpu in numbers_in(cpus):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{cpus}\n")


def quota(folder: Path, version: int, text: str, period: int = 100_000) -> None:
    """Write what the kernel tells of a control group's time."""
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{text} {period}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{text}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


def test_hyper_threads_are_no_cores(tmp_path: Path, allowed) -> None:
    siblings(tmp_path, "0,4", "1,5", "2,6", "3,7")
    allowed(range(8))
    assert cpus_by_core(tmp_path) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert (num_cores(tmp_path), num_cpus(tmp_path)) == (4, 8)
    allowed([1, 4, 5, 6])
    assert cpus_by_core(tmp_path) == [(1, 5), (4,), (6,)], "of the cores that are allowed"
    assert (num_cores(tmp_path), num_cpus(tmp_path)) == (3, 4)


def test_pairs_may_be_neighbours(tmp_path: Path, allowed) -> None:
    siblings(tmp_path, "0-1", "2-3")
    allowed(range(4))
    assert cpus_by_core(tmp_path) == [(0, 1), (2, 3)]


def test_a_part_of_the_cores_leaves_the_machine_as_large(
    tmp_path: Path, allowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    siblings(tmp_path, *(f"{i},{i + 4}" for i in range(4)))
    allowed([1, 5])
    assert machine_cores(tmp_path) == 4


@pytest.mark.parametrize(
    ("cpus", "expected"), [("0-1", [(0,), (1,)]), ("0", [(0,)]), ("0-3", [(0, 1), (2, 3)])]
)
def test_two_hardware_threads_are_two_cores_at_least(
    tmp_path: Path, allowed, cpus: str, expected: list[tuple[int, ...]]
) -> None:
    siblings(tmp_path, cpus)
    allowed(numbers_in(cpus))
    assert cpus_by_core(tmp_path) == expected
    assert num_cores(tmp_path) == len(expected)


def test_where_the_kernel_does_not_tell_every_cpu_is_a_core(tmp_path: Path, allowed) -> None:
    allowed([3, 9, 11])
    assert cpus_by_core(tmp_path) == [(3,), (9,), (11,)]
    siblings(tmp_path, "3,9")
    (tmp_path / "sys/devices/system/cpu/cpu3/topology/thread_siblings_list").write_text("odd\n")
    (tmp_path / "sys/devices/system/cpu/cpu9/topology/thread_siblings_list").write_text("1-2\n")
    assert cpus_by_core(tmp_path) == [(3,), (9,), (11,)]


@pytest.mark.parametrize(("physical", "found"), [(4, 4), (None, 8), (1, 2), (16, 8)])
def test_other_systems_are_asked_for_their_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, physical: int | None, found: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    assert num_cores(tmp_path) == found
    assert num_cpus(tmp_path) == 8
    assert not can_pin()


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct", ""])
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, allowed, mount: str) -> None:
    version = 1 if mount else 2
    allowed(range(64))
    siblings(tmp_path, *(f"{i},{i + 32}" for i in range(32)))
    assert (num_cores(tmp_path), cpu_quota(tmp_path)) == (32, math.inf), "no groups at all"
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "4:cpu,cpuacct:/pod/one\n3:cpuset:/\n0::/\n" if mount else "0::/pod/one\n"
    (tmp_path / "proc/self/cgroup").write_text(f"9:name=systemd:/\n{line}")
    top = tmp_path / "sys/fs/cgroup" / mount
    quota(top, version, "-1" if mount else "max")
    assert num_cores(tmp_path) == 32, "no limit"
    quota(top, version, "4000000")
    assert (num_cores(tmp_path), num_cpus(tmp_path)) == (32, 40), "more than the cores"
    quota(top, version, "400000")
    assert (num_cores(tmp_path), num_cpus(tmp_path)) == (4, 4), "its own group is at the top"
    quota(top / "pod", version, "150000", 50_000)
    assert num_cores(tmp_path) == 3, "the smallest of all above"
    quota(top / "pod/one", version, "190000")
    assert num_cores(tmp_path) == 1, "whole cores"
    quota(top / "pod/one", version, "10000")
    assert (num_cores(tmp_path), num_cpus(tmp_path)) == (1, 1)
    quota(top / "pod/one", version, "10000", 0)
    assert num_cores(tmp_path) == 3, "no period, no limit"


def test_this_machine_has_what_it_has() -> None:
    machine = this_machine()
    assert 1 <= machine.cores <= machine.cpus <= (os.cpu_count() or 1)
    assert replace(machine, cores=8, cpus=16).share_of(3) == replace(machine, cores=3, cpus=6)


LARGE = Machine(cores=8, processor="Large", gpus=(), bf16=("cpu",), torch="2.0", cpus=16)


def threads_of(cores: int, cpus: int = 0, env_id: str = "PongNoFrameskip-v4", **given: Any) -> Plan:
    config = make_config(env_id, {"num_envs": 1024, **given})
    spec = spec_of(env_id)
    return make_plan(config, spec, replace(LARGE, cores=cores, cpus=cpus or cores))


@functools.cache
def spec_of(env_id: str) -> EnvSpec:
    return read_spec(env_id, make_config(env_id).env)


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "CartPole-v1"])
@pytest.mark.parametrize("lag", ["0", "1", "free"])
@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 32, 64, 256])
def test_no_more_threads_than_cores_want_to_compute(env_id: str, lag: str, cores: int) -> None:
    for learners in (1, 2, 4, 16):
        share = max(cores // learners, 1)
        for cpus in (share, 2 * share):
            plan = threads_of(share, cpus, env_id, lag=lag, num_learners=learners)
            computing = [plan.learner_threads, plan.actor_threads]
            # Without lag they take turns, as those that are alone on their core do.
            together = max(computing) if lag == "0" or share == 1 else sum(computing)
            assert together <= share
            # These give way to the learner's.
            assert plan.env_threads <= (cpus if lag == "0" else share)


def test_two_groups_are_chosen_where_workers_that_are_asked_for_divide_each() -> None:
    for workers, groups in ((0, 2), (2, 2), (4, 2), (8, 1)):
        given = {"num_envs": 8, "env.workers": workers}
        assert threads_of(16, env_id="cases_envs:Picture", **given).env_groups == groups


@pytest.mark.parametrize("lag", ["0", "1", "free"])
@pytest.mark.parametrize("cores", [4, 8, 16, 64])
def test_actors_in_processes_share_what_the_learner_leaves(lag: str, cores: int) -> None:
    for actors in (1, 2, cores // 4, cores // 2):
        plan = threads_of(cores, lag=lag, actors_per_learner=actors)
        acting = actors * plan.actor_threads
        assert max(plan.learner_threads, acting) <= cores
        assert lag == "0" or plan.learner_threads + acting <= cores


def test_a_process_for_acting_that_nobody_asked_for_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gossamer.config.cores.main_is_ours", lambda: True)
    monkeypatch.delenv(MACHINE)
    settings = {"env_id": "CartPole-v1", "algorithm": "vtrace"}
    for cores in (2, 8, 64):
        without = threads_of(cores, **settings, actors_per_learner=0)
        assert threads_of(cores, **settings) == replace(without, actors=1)
    monkeypatch.setattr("gossamer.build.plan.free_memory", lambda: 200 << 20)
    assert threads_of(2, **settings).actors == 0
    assert threads_of(2, **settings, actors_per_learner=1).actors == 1, "as was asked for"


@pytest.mark.parametrize(
    ("cores", "lag", "threads", "groups"),
    [
        (1, "0", (1, 1, 1), 1),
        (1, "1", (1, 1, 1), 1),
        (2, "0", (2, 2, 2), 1),
        (2, "1", (1, 1, 2), 1),
        (2, "free", (1, 1, 2), 1),
    ],
)
def test_few_cores_are_planned_as_ever(
    cores: int, lag: str, threads: tuple[int, int, int], groups: int
) -> None:
    plan = threads_of(cores, lag=lag, num_envs=0)
    assert (plan.learner_threads, plan.actor_threads, plan.env_threads) == threads
    assert (plan.num_envs, plan.env_groups) == (64, groups)


def test_hyper_threads_step_environments_where_nobody_learns_beside_them() -> None:
    assert threads_of(8, 16, lag="1").env_threads == 8
    assert threads_of(8, 16, lag="0").env_threads == 16
    assert threads_of(8, 16, lag="1", env_threads=5).env_threads == 5


def test_who_goes_elsewhere_is_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with same_folder():
        os.chdir(there)
    assert Path.cwd() == here
    with suppress(ArithmeticError), same_folder():
        os.chdir(there)
        raise ArithmeticError
    assert Path.cwd() == here
    with same_folder():
        os.chdir(there)
        here.rmdir()
    assert Path.cwd() == there, "the folder to come back to is gone"


def test_memory_is_told_where_python_was_built_for_older_versions_of_macos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sysconf(name: str) -> int:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert describe_machine()["memory_bytes"] == psutil.virtual_memory().total


def test_models_of_arm_processors_have_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    told = tmp_path / "proc/cpuinfo"
    told.parent.mkdir()
    for part, name in (("0xd0c", "aarch64 0x41 0xd0c"), ("0xd40", "aarch64 0x41 0xd40")):
        told.write_text(
            f"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\nprocessor\t: 1\n"
            "CPU implementer\t: 0x41\nCPU part\t: 0xfff\n"
        )
        assert processor_name(tmp_path) == name
    told.write_text("processor\t: 0\nmodel name\t: AMD EPYC\n\nmodel name\t: other\n")
    assert processor_name(tmp_path) == "AMD EPYC"
    told.unlink()
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    sysctl = Mock(return_value=subprocess.CompletedProcess([], 0, "Apple M2 Pro\n"))
    monkeypatch.setattr(subprocess, "run", sysctl)
    assert processor_name(tmp_path) == "Apple M2 Pro"
    sysctl.side_effect = FileNotFoundError
    assert processor_name(tmp_path) == "arm"


def test_commands_may_open_as_many_files_where_the_usual_limit_is_lower() -> None:
    look = (
        "import resource, sys; from gossamer.cli import main; sys.argv[1:] = ['--version']; main(); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    for limits, expected in (("-S -n 256", 1024), ("-n 256", 256), ("-S -n 2000", 2000)):
        words = ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh", sys.executable, "-c", look]
        told = subprocess.run(words, capture_output=True, text=True, check=True)
        assert int(told.stdout.split()[-1]) == expected, limits
