"""A connection to a Ray cluster: what is refused, what is left behind, and what hosts reserve; without a cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossamer.config import TrainConfig, make_config
from gossamer.errors import ConfigError

pytest.importorskip("ray", reason="Ray is an optional extra")

from gossamer.run.placements.cluster import joining, remote_runs
from gossamer.run.placements.cluster import session as session_module
from gossamer.run.placements.cluster.remote_runs import RunCluster, WholeRun
from gossamer.run.placements.cluster.session import Session


class FakeRay:
    """A cluster that has what it is made with; `reserved` lists the options of actors."""

    def __init__(self, cpus: float, gpus: float):
        self.there = {"CPU": cpus, "GPU": gpus}
        self.machines: list[dict[str, float]] = []
        """What each machine has; empty: one has everything."""
        self.address = ""
        self.reserved: list[dict[str, Any]] = []
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")

    def is_initialized(self) -> bool:
        return bool(self.address)

    def init(self, address: str, **_: Any) -> None:
        self.address = "127.0.0.1:6379" if address == "local" else address

    def shutdown(self) -> None:
        self.address = ""

    def cluster_resources(self) -> dict[str, float]:
        return self.there

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": x} for x in self.machines or [self.there]]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.address)

    def remote(self, **options: Any) -> Any:
        self.reserved.append(options)
        method = SimpleNamespace(remote=lambda *_: None)
        return lambda _: SimpleNamespace(remote=lambda *_: SimpleNamespace(changes=method))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay(cpus=6.0, gpus=3.0)
    for module in (session_module, remote_runs):
        monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(session_module, "ray_worker", SimpleNamespace(print_to_stdstream=print))
    monkeypatch.setattr(session_module, "cluster_of_this_machine", lambda: "")
    monkeypatch.setattr(session_module, "RAY_VARIABLES", {})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


def config(learners: int, per: int = 0, **settings: Any) -> TrainConfig:
    several = {"learners_per_process": per} if per else {}
    made = {"num_learners": learners, "placement": "cluster", **several}
    return make_config("CartPole-v1", {**made, **{f"cluster.{k}": x for k, x in settings.items()}})


def prints() -> bool:
    return cast("Any", session_module.ray_worker).print_to_stdstream is print


def test_a_cluster_that_has_too_little_is_left(ray: FakeRay) -> None:
    with pytest.raises(ConfigError, match="7 x 1 CPUs are asked for, but the cluster has 6"):
        Session(config(7), 7, 7, 1)
    assert not ray.is_initialized()
    assert prints()
    kept = Session(config(6), 6, 6, 1)
    assert kept.started
    assert not prints()
    kept.close()
    assert not ray.is_initialized()
    assert prints()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray ends by its group of processes")
def test_what_a_terminal_tells_its_processes_does_not_reach_ray(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    begun: list[subprocess.Popen[bytes]] = []

    def init(**_: Any) -> None:
        begun.append(services.start_ray_process(["sleep", "60"], "test", fate_share=True).process)

    before = services.ConsolePopen
    monkeypatch.setattr(ray, "init", init)
    Session(config(2), 2, 2, 1).close()
    assert services.ConsolePopen is before
    (process,) = begun
    try:
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    finally:
        process.kill()
        process.wait()


def test_a_cluster_of_the_user_is_not_left(ray: FakeRay) -> None:
    ray.init("10.0.0.1:6379")
    with pytest.raises(ConfigError, match="but the cluster has 6"):
        Session(config(7), 7, 7, 1)
    assert ray.is_initialized()
    assert prints()


@pytest.mark.parametrize("address", ["10.0.0.2:6379", "10.0.0.1:6380", "nonsense"])
def test_another_address_than_that_of_the_cluster_of_the_user_is_refused(
    ray: FakeRay, address: str
) -> None:
    ray.init("10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"at 10\.0\.0\.1:6379 already"):
        Session(config(2, address=address), 2, 2, 1)
    assert ray.is_initialized()
    for same in ("10.0.0.1:6379", ""):
        Session(config(2, address=same), 2, 2, 1).close()


def test_a_cluster_that_another_run_has_started_for_itself_is_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would end with that run."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(joining.services, "find_gcs_addresses", lambda: {address})
        monkeypatch.setattr(joining.services, "resolve_ip_for_localhost", lambda host: host)
        started: list[str] = []  # by ray start
        monkeypatch.setattr(
            joining.services, "find_bootstrap_address", lambda _: started[0] if started else None
        )
        assert joining.cluster_of_this_machine() == ""
        started.append(address)
        assert joining.cluster_of_this_machine() == address


def test_an_address_that_is_none_is_told_with_what_names_it(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS is auto, where .*host:port.*or unset it$"):
        Session(config(2), 2, 2, 1)
    with pytest.raises(ConfigError, match=r"^cluster.address is host, where .*address out$"):
        Session(config(2, address="host"), 2, 2, 1)


def test_this_machine_has_several_names(ray: FakeRay) -> None:
    ray.init("127.0.0.1:6379")
    Session(config(2, address="localhost:6379"), 2, 2, 1).close()


def test_a_host_reserves_for_each_of_its_learners(ray: FakeRay) -> None:
    """Of five learners the last is alone; Ray gives parts of one GPU, or whole ones."""
    with pytest.raises(ConfigError, match=r"GPUs, 2 for each host, .* has 3: .* 0\.5, or"):
        Session(config(5, per=2, gpus_per_learner=0.75), 3, 2, 2)
    ray.there["GPU"] = 5.0
    made = Session(config(5, per=2, gpus_per_learner=0.75, cpus_per_learner=1), 3, 2, 2)
    for ranks in ((0, 2), (4, 5)):
        made.agent(cast("Any", SimpleNamespace(ranks=ranks)), {})
    assert [(x["num_cpus"], x["num_gpus"]) for x in ray.reserved] == [(2, 2), (1, 0.75)]


def test_what_all_learners_reserve_has_to_be_there(ray: FakeRay) -> None:
    Session(config(6, per=4), 2, 2, 4).close()  # of 4 and 2 learners: fits exactly
    with pytest.raises(
        ConfigError,
        match=r"4 x 2 CPUs are asked for, but the cluster has 6: --cluster\.cpus-per-learner 1, or",
    ):
        Session(config(4, per=4), 1, 1, 8)
    with pytest.raises(
        ConfigError, match=r"4 x 1 GPUs .* has 3: --cluster\.gpus-per-learner 0\.75"
    ):
        Session(config(4, per=4, gpus_per_learner=1.0), 1, 1, 4)


def test_more_than_any_machine_has_is_refused_with_what_fits(ray: FakeRay) -> None:
    ray.machines = [{"CPU": 2.0, "GPU": 1.0}] * 3
    Session(config(2, cpus_per_learner=2), 2, 2, 2).close()
    with pytest.raises(
        ConfigError,
        match=r"^4 CPUs are asked for on one machine, but none .* than 2: --cluster\.cpus-per-learner 2$",
    ):
        Session(config(1, cpus_per_learner=4), 1, 1, 4)
    with pytest.raises(ConfigError, match=r"1 x 8 CPUs .* has 6: --cluster\.cpus-per-learner 2$"):
        Session(config(1, cpus_per_learner=8), 1, 1, 8)
    with pytest.raises(ConfigError, match=r"7 x 1 CPUs .* has 6: fewer learners$"):
        Session(config(7), 7, 7, 1)
    with pytest.raises(ConfigError, match=r"^2 GPUs .* than 1: --cluster\.gpus-per-learner 1$"):
        Session(config(1, gpus_per_learner=2.0), 1, 1, 1)


def test_a_whole_run_reserves_gpus_for_each_of_its_learners(ray: FakeRay) -> None:
    made = RunCluster(config(2, gpus_per_learner=1.0), jobs=0, cores=2)
    made.begin("run", WholeRun({}, [], {}, "out"), lambda _: None)
    assert ray.reserved[0]["num_gpus"] == 2
    assert made.jobs == 3
