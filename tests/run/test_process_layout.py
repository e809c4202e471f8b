"""Which learners share a process, and where it runs."""

from __future__ import annotations

import fcntl
import os
import resource

import pytest

from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.run.placements import process_layout as layout_module
from gossamer.run.placements.fork_server import ready
from gossamer.run.placements.process_layout import layout_of, transport_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def of(cores: list[int], *, pins: bool = True) -> None:
        monkeypatch.setattr(layout_module, "num_cores", lambda: len(cores))
        monkeypatch.setattr(layout_module, "cpus_by_core", lambda: [(core,) for core in cores])
        monkeypatch.setattr(layout_module, "can_pin", lambda: pins)

    return of


def laid_out(learners: int, per: int = 0):
    settings = {"num_learners": learners, "learners_per_process": per}
    return layout_of(make_config("CartPole-v1", settings))


def test_many_learners_share_a_process_a_core(machine) -> None:
    machine([3, 5])
    found = laid_out(25)
    assert [len(ranks) for ranks in found.ranks] == [13, 12]
    assert [rank for ranks in found.ranks for rank in ranks] == list(range(25))
    assert found.cores == ((3,), (5,))
    assert not found.overlaps


def test_few_learners_have_cores_of_their_own(machine) -> None:
    machine([0, 1, 2, 3, 4, 5, 6, 7])
    found = laid_out(2)
    assert found.cores == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.share == 4
    assert found.overlaps
    assert laid_out(8).share == 1
    assert not laid_out(8).overlaps


def test_as_many_processes_for_each_core_or_any_core_for_each(machine) -> None:
    machine([0, 1])
    assert laid_out(4).cores == ((0,), (1,), (0,), (1,))
    assert laid_out(3).cores == ((), (), ())
    assert laid_out(3).share == 1


def test_a_system_that_does_not_pin_shares_its_cores_out_too(machine) -> None:
    machine([0, 1, 2, 3, 4, 5, 6, 7], pins=False)
    found = laid_out(2)
    assert found.cores == ((), ())
    assert found.share == 4
    assert found.overlaps


def test_a_process_has_the_hyper_threads_of_its_cores(machine, monkeypatch) -> None:
    machine([0, 1, 2, 3])
    monkeypatch.setattr(layout_module, "cpus_by_core", lambda: [(i, i + 4) for i in range(4)])
    assert laid_out(2).cores == ((0, 4, 1, 5), (2, 6, 3, 7))
    assert laid_out(2).share == 2


def test_of_a_quota_no_core_is_taken_that_others_may_have(machine, monkeypatch) -> None:
    machine([0, 1, 2, 3])
    monkeypatch.setattr(layout_module, "cpus_by_core", lambda: [(i,) for i in range(64)])
    assert laid_out(2).cores == ((), ())
    assert laid_out(2).share == 2


def test_as_many_to_a_process_as_asked_for(machine) -> None:
    machine([0, 1])
    assert laid_out(5, per=2).ranks == (range(2), range(2, 4), range(4, 5))


@pytest.mark.parametrize(("asked", "share"), [({"cluster.cpus_per_learner": 2}, 6), ({}, 3)])
def test_a_host_of_a_cluster_has_cores_for_each_of_its_learners(
    machine, asked: dict[str, int], share: int
) -> None:
    machine([0, 1])
    settings = {"num_learners": 5, "learners_per_process": 3, "placement": "cluster", **asked}
    found = layout_of(make_config("CartPole-v1", settings))
    assert [len(ranks) for ranks in found.ranks] == [3, 2]
    assert found.share == share


def on_cluster(per: int, transport: str):
    settings = {"num_learners": 2, "placement": "cluster", "learners_per_process": per}
    settings |= {"topology.name": "allreduce", "topology.transport": transport}
    return make_config("CartPole-v1", {**settings, "cluster.gpus_per_learner": 1.0})


@pytest.mark.parametrize(
    ("transport", "found"), [("nccl", "nccl"), ("auto", "nccl"), ("gloo", "gloo")]
)
def test_gpus_of_a_cluster_are_not_counted_on_this_machine(transport: str, found: str) -> None:
    config = on_cluster(1, transport)
    layout = layout_of(config)
    assert layout is not None
    assert transport_of(config, layout, "cuda") == found


@pytest.mark.parametrize("transport", ["nccl", "gloo"])
def test_learners_of_a_host_have_no_transport_of_their_own(transport: str) -> None:
    config = on_cluster(2, transport)
    layout = layout_of(config)
    assert layout is not None
    with pytest.raises(ConfigError, match="--learners-per-process 1"):
        transport_of(config, layout, "cuda")


def test_descriptors_of_any_number_are_waited_for() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    read, write = os.pipe()
    high = fcntl.fcntl(read, fcntl.F_DUPFD, 1500)
    try:
        assert ready([high], 0.0) == set()
        os.write(write, b"x")
        assert ready([high], 1.0) == {high}
    finally:
        for descriptor in (read, write, high):
            os.close(descriptor)
