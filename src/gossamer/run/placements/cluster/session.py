"""A connection to a Ray cluster: one that is there, or one that is started here for the run."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import ray
from ray._private import services
from ray._private import worker as ray_worker
from ray.exceptions import RayError

from gossamer.errors import ConfigError
from gossamer.run.placements.cluster.agent import Agent
from gossamer.run.placements.cluster.joining import cluster_of_this_machine, show_token_if_asked
from gossamer.system.reading import clipped

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from gossamer.config import TrainConfig
    from gossamer.run.placements.child_protocol import LearnerTask

RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_DEDUP_LOGS": "0",
}
"""Environment variables for Ray: nothing leaves this machine; nobody else's errors are printed."""
OBJECT_STORE_BYTES = 512 << 20
"""Memory for what travels, of a cluster that is started here."""


class Session:
    """Ray as a run uses it; one per process at a time.

    Args:
        config: of the run.
        num_hosts: agents that there will be.
        fewest: agents without which there is no run.
        share: cores of each.
        per_host: learners of each, but for the last, which may have fewer; 0: as many as share a process.

    Raises:
        ConfigError: there is no such cluster, too little in it, or this process belongs to another one.
    """

    def __init__(
        self,
        config: TrainConfig,
        num_hosts: int,
        fewest: int,
        share: float,
        per_host: int = 0,
    ):
        self._asked = config.cluster.address
        self.address = self._asked or os.environ.get("RAY_ADDRESS", "")
        self._share, self._gpus = share, config.cluster.gpus_per_learner
        self._learners = config.num_learners
        self._per_host = min(per_host or config.learners_per_process or 1, self._learners)
        self._per_actor = config.cluster.cpus_per_actor
        self._actors = self._learners * (config.actors_per_learner or 0) if self._per_actor else 0
        self._given = ray.is_initialized()
        self.started = False
        """Whether this is a cluster of our own."""
        for name, value in RAY_VARIABLES.items():
            os.environ.setdefault(name, value)
        # What Ray prints of dead processes would run through our lines, which tell of them too.
        self._prints: Any = getattr(ray_worker, "print_to_stdstream", None)
        if self._prints is not None:
            ray_worker.print_to_stdstream = lambda *_, **__: None  # type: ignore[assignment]
        try:
            if self._given:
                _refuse_another(self._asked)
            else:
                self._connect(num_hosts)
            self._actors = self._actors * fewest // max(num_hosts, 1)
            self._refuse_too_few(fewest)
        except BaseException:
            self.close()  # or the next run of this process would take this cluster for the user's
            raise

    def _connect(self, num_hosts: int) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            address = self.address or cluster_of_this_machine()
            if address:
                show_token_if_asked(address)
                ray.init(address=address, **quiet)
                return
            wanted = num_hosts * self._share + self._actors * self._per_actor
            cores = max(os.cpu_count() or 1, int(wanted + 0.999))
            with _hearing_no_terminal():
                ray.init(
                    address="local",
                    num_cpus=cores,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    **quiet,
                )
            self.started = True
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise ConfigError(self._why_not(error)) from error

    def _why_not(self, error: Exception) -> str:
        why = clipped(_reason(error), 200)
        if "AF_UNIX" in why:
            return f"placement is cluster, but the path of Ray's folder is too long for its sockets ({why}): RAY_TMPDIR=/tmp"
        if self.address:
            name = "cluster.address" if self._asked else "RAY_ADDRESS"
            return (
                f"{name} is {self.address}, where no Ray cluster lets gossamer in ({why}): start one with ray start --head, "
                f"or {'leave the address out' if self._asked else 'unset it'}"
            )
        return (
            f"placement is cluster, but Ray does not let gossamer in on this machine ({why}): ray stop ends a cluster that "
            "is damaged, and --cluster.address names another"
        )

    def _refuse_too_few(self, num_hosts: int) -> None:
        """Refuse a cluster in which the hosts could not be placed even if nobody else were there."""
        there = cast("dict[str, float]", ray.cluster_resources())
        learners = min(num_hosts * self._per_host, self._learners)
        hosts, rest = divmod(learners, self._per_host)
        each = {"CPU": self._share / self._per_host, "GPU": self._gpus}
        full, last = self._resources(self._per_host), self._resources(rest)
        asked = {kind: hosts * full[kind] + last[kind] for kind in each}
        beside = self._actors * self._per_actor
        if beside and asked["CPU"] + beside > there.get("CPU", 0.0):
            raise ConfigError(
                f"{learners} x {each['CPU']:g} CPUs for learners and {self._actors} x {self._per_actor:g} CPUs for actors "
                f"are asked for, but the cluster has {there.get('CPU', 0.0):g}: fewer --actors-per-learner, or "
                "--cluster.cpus-per-actor 0 for actors beside their learner"
            )
        for kind, wanted in each.items():
            flag = f"--cluster.{kind.lower()}s-per-learner"
            most = max(
                (x["Resources"].get(kind, 0.0) for x in ray.nodes() if x["Alive"]), default=0.0
            )
            if asked[kind] > (has := there.get(kind, 0.0)):
                fits = min(has // learners, most // self._per_host)
                if kind == "GPU":
                    host = has / num_hosts
                    host = math.floor(host) if host > 1 else host
                    fits = math.floor(100 * host / self._per_host) / 100
                more = f", {full[kind]:g} for each host,"
                more *= full[kind] != self._per_host * wanted
                # Of no core for each there is nothing to type: 0 is auto.
                less = [f"{flag} {fits:g}"] * (fits >= 1 or kind == "GPU")
                less += ["fewer learners"] * (learners > 1 or not less)
                raise ConfigError(
                    f"{learners} x {wanted:g} {kind}s{more} are asked for, but the cluster has {has:g}: "
                    f"{', or '.join(less)}"
                )
            if full[kind] > most:
                raise ConfigError(
                    f"{full[kind]:g} {kind}s are asked for on one machine, but none of the cluster has more than {most:g}: "
                    f"{flag} {most // self._per_host or most / self._per_host:.2g}"
                )

    def _resources(self, learners: int) -> dict[str, float]:
        """Return what a host of so many learners reserves."""
        gpus = learners * self._gpus
        # Ray gives a part of one GPU, or whole GPUs.
        gpus = math.ceil(gpus) if gpus > 1 else gpus
        return {"CPU": learners * self._share / self._per_host, "GPU": gpus}

    def options(self, learners: int) -> dict[str, Any]:
        """Return the options of a Ray actor that is placed where there is room for so many learners."""
        reserved = self._resources(learners)
        return {
            "num_cpus": reserved["CPU"],
            "num_gpus": reserved["GPU"],
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
        }

    def __str__(self) -> str:
        nodes = sum(node["Alive"] for node in ray.nodes())
        where = "started here" if self.started else "joined"
        return f"a Ray cluster of {nodes} machine{'s' * (nodes > 1)} ({where})"

    def agent(self, task: LearnerTask, hears: Mapping[int, tuple[int, ...]]) -> Any:
        """Start an agent on some machine; a Ray actor handle, at once. Arguments as `Agent` has them."""
        options = self.options(len(range(*task.ranks)))
        # Orders in their order, while the supervisor waits for news.
        options |= {"concurrency_groups": {"news": 1}, "max_concurrency": 1}
        return cast("Any", ray.remote(**options)(Agent)).remote(task, hears)

    def close(self) -> None:
        """Leave the cluster; end it, if it was started here."""
        if not self._given:
            ray.shutdown()
        if self._prints is not None:
            ray_worker.print_to_stdstream = self._prints


@contextlib.contextmanager
def _hearing_no_terminal() -> Generator[None]:
    """Context in which Ray starts its processes each in a group of its own.

    A terminal that is closed, or `timeout`, tells all of this process's group to end: learners could save nothing then.
    """
    started: Any = getattr(services, "ConsolePopen", None)
    # Elsewhere than on Linux, Ray ends what it has started by its group if this process is killed.
    if started is None or sys.platform != "linux":
        yield
        return
    services.ConsolePopen = partial(started, process_group=0)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        services.ConsolePopen = started


def _refuse_another(asked: str) -> None:
    """Refuse an address that is not that of the cluster to which this process belongs already."""
    there = ray.get_runtime_context().gcs_address
    if asked and not _are_alike(asked, there):
        raise ConfigError(
            f"cluster.address is {clipped(asked)}, but this process belongs to the Ray cluster at {there} already: leave the "
            "address out, or call ray.shutdown() first"
        )


def _are_alike(one: str, other: str) -> bool:
    """Whether two addresses, host:port, lead to the same place."""
    ends: list[set[tuple[str, str]]] = []
    for address in (one, other):
        host, _, port = address.rpartition(":")
        try:
            found = {str(x[4][0]) for x in socket.getaddrinfo(host.strip("[]") or None, None)}
        except OSError:
            return one == other
        if found & {"127.0.0.1", "::1"}:
            found.add(ray.util.get_node_ip_address())
        ends.append({(host, port) for host in found})
    return bool(ends[0] & ends[1])


def _reason(error: Exception) -> str:
    """Return the line that says why: Ray's own error stands behind the general one."""
    first = [str(x).partition("\n")[0] for x in (error.__cause__, error.__context__, error) if x]
    return next((x for x in first if x and "Traceback" not in x), type(error).__name__)
